#include "parallel_core/optimizer/model_layout.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/parallel_state.h"

namespace tapestry {

namespace {

class GroupOfRanks final : public optim::RankGroup {
 public:
  explicit GroupOfRanks(ProcessGroup& group) : group_(group) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  void sum(const Tensor& values) const override { group_.all_reduce(values); }
  void all_to_all(const Tensor& output,
                  const Tensor& input,
                  const std::vector<int64_t>& output_counts,
                  const std::vector<int64_t>& input_counts) const override {
    group_.all_to_all(output, input, output_counts, input_counts);
  }

 private:
  ProcessGroup& group_;
};

class ModelLayout final : public optim::ParameterLayout {
 public:
  ModelLayout(const nn::Module& model, const DistributedDataParallel* data_parallel) {
    for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
      logical_.emplace(entry.name, entry.parameter->logical());
    }
    if (model_parallel_is_initialized() && get_tensor_model_parallel_world_size() > 1) {
      slices_.emplace(get_tensor_model_parallel_group());
    }
    if (data_parallel != nullptr) {
      copies_.emplace(data_parallel->group());
    }
  }

  std::vector<nn::LogicalTensor> logical(const std::string& parameter_name) const override {
    return logical_.at(parameter_name);
  }
  const optim::RankGroup* slices() const override { return slices_ ? &*slices_ : nullptr; }
  const optim::RankGroup* copies() const override { return copies_ ? &*copies_ : nullptr; }

 private:
  std::map<std::string, std::vector<nn::LogicalTensor>> logical_;
  std::optional<GroupOfRanks> slices_;
  std::optional<GroupOfRanks> copies_;
};

}  // namespace

std::shared_ptr<const optim::ParameterLayout> model_layout(
    const nn::Module& model, const DistributedDataParallel* data_parallel) {
  return std::make_shared<ModelLayout>(model, data_parallel);
}

}  // namespace tapestry
