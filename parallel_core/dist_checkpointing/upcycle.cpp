#include "parallel_core/dist_checkpointing/upcycle.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "autograd/io/tensor_source.h"
#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/dist_checkpointing/file_place.h"
#include "parallel_core/dist_checkpointing/hf_config.h"
#include "parallel_core/dist_checkpointing/part_io.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/pipeline_parallel/collect.h"

namespace tapestry {

namespace {

// What a tensor of the mixture starts with.
enum class Start { kDense, kZero, kAsMade };
struct Origin {
  Start start = Start::kDense;
  std::string name = {};  // of the dense model's tensor
};

Origin origin_of(const std::string& logical) {
  constexpr std::string_view kMoe = ".moe.";
  constexpr std::string_view kExperts = ".moe.experts.";
  const size_t moe = logical.find(kMoe);
  if (moe == std::string::npos) {
    return {.name = logical};
  }
  if (logical.compare(moe, kExperts.size(), kExperts) == 0) {
    const size_t matrix = logical.find('.', moe + kExperts.size());
    return {.name = concat(logical.substr(0, moe), ".feed_forward", logical.substr(matrix))};
  }
  const bool is_output = logical.find(".shared_expert.w_down.", moe) != std::string::npos;
  return {.start = is_output ? Start::kZero : Start::kAsMade};
}

struct DenseWeights {
  std::string path;
  std::unique_ptr<TensorSource> files;
  FileNames scheme;

  FilePlace place(const std::string& name, const Shape& shape) const {
    return file_place(scheme, name, shape);
  }
};

DenseWeights open_dense(const ParallelModel& model,
                        const TransformerConfig& config,
                        const std::string& path) {
  TransformerConfig dense = config;
  dense.moe = {};
  DenseWeights out{.path = resolve_checkpoint(path), .files = nullptr, .scheme = {}};
  if (model.has_file_names_of_config()) {
    check_hf_config(dense, out.path);
  }
  out.files = open_weights(out.path);
  const std::vector<std::string> list = out.files->names();
  if (model.has_file_names_of_config()) {
    out.scheme = FileNames(name_scheme(std::set<std::string>(list.begin(), list.end())), dense);
  }
  return out;
}

void check_fit(const ParallelModel& model, const DenseWeights& dense) {
  nn::LoadReport report;
  std::set<std::string> used;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      const Origin origin = origin_of(logical.name);
      if (origin.start != Start::kDense) {
        continue;
      }
      const FilePlace place = dense.place(origin.name, logical.shape);
      const bool is_first = used.insert(place.name).second;
      if (!dense.files->contains(place.name)) {
        if (is_first) {
          report.missing.push_back(origin.name);
        }
      } else if (is_first && dense.files->shape(place.name) != place.shape) {
        report.mismatched.push_back({place.name, place.shape, dense.files->shape(place.name)});
      }
    }
  }
  const std::vector<std::string> names = dense.files->names();
  std::vector<double> ranks_with;
  for (const std::string& name : names) {
    const bool known = used.contains(name) || is_constant(dense.scheme.scheme, name);
    ranks_with.push_back(known ? 1 : 0);
  }
  sum_over_pipeline(ranks_with);
  sum_over(experts_group(), ranks_with);
  for (size_t i = 0; i < names.size(); ++i) {
    if (ranks_with[i] == 0) {
      report.unexpected.push_back(names[i]);
    }
  }
  check<ValueError>(report.empty(), dense.path,
                    ": the weights do not fit the model that experts are to be made from\n",
                    report.str());
}

}  // namespace

void load_upcycled(ParallelModel& model,
                   const TransformerConfig& config,
                   const std::string& path,
                   optim::Optimizer* optimizer) {
  const NoGradGuard guard;
  const DenseWeights dense = open_dense(model, config, path);
  check_fit(model, dense);
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    const std::vector<nn::LogicalTensor>& tensors = entry.parameter->logical();
    const auto starts_as = [&](Start start) {
      return std::any_of(tensors.begin(), tensors.end(), [start](const nn::LogicalTensor& logical) {
        return origin_of(logical.name).start == start;
      });
    };
    if (starts_as(Start::kAsMade)) {
      continue;
    }
    Part part{.values = entry.parameter->detach()};
    if (optimizer != nullptr) {
      const optim::Optimizer::OwnPart own = optimizer->own_part(entry.name);
      part = {.values = zeros(optimizer->updates_pieces() ? Shape{own.count} : own.shape),
              .first = own.first};
    }
    if (starts_as(Start::kZero)) {
      copy_values(zeros(part.values.shape(), part.values.dtype()), part.values);
    } else {
      for (const nn::LogicalTensor& logical : tensors) {
        read_part(logical, dense.place(origin_of(logical.name).name, logical.shape), *dense.files,
                  part);
      }
    }
    if (optimizer != nullptr) {
      optimizer->set_own_main_param(entry.name, part.values);
    } else {
      entry.parameter->bump_version();
    }
  }
}

}  // namespace tapestry
