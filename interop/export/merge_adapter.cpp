#include "interop/export/merge_adapter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/safetensors_directory.h"
#include "autograd/io/strict_json.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "interop/architectures/file_place.h"
#include "interop/export/adapter_product.h"
#include "interop/export/model_files.h"
#include "interop/export/new_folder.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"
#include "text/util/file.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kPieceElements = int64_t{1} << 20U;
constexpr std::string_view kWeight = ".weight";
constexpr const char* kHeadTensor = "lm_head.weight";

// What becomes of a tensor of the result.
struct Piece {
  std::string source;   // tensor of the base that it starts from; empty: it is the adapter's
  std::string adapter;  // tensor of the adapter that takes its place; empty: none
  std::string module;   // path of the module whose adapter is added; empty: none
  bool transposed = false;
};

// The tensors of the result by name, with the file of the base that each belongs to.
using Pieces = std::map<std::string, Piece>;

std::string stem_of(const std::string& module) { return concat(kPeftPrefix, module); }

// What the two folders hold and how they fit together.
class Merge {
 public:
  Merge(std::string base_folder, std::string adapter_folder)
      : base_folder_(std::move(base_folder)),
        adapter_folder_(std::move(adapter_folder)),
        base_(base_folder_),
        adapter_(open_adapter(adapter_folder_)),
        modules_(read_peft_config(adapter_folder_), config_path()) {
    const std::vector<std::string> list = base_.names();
    names_ = {list.begin(), list.end()};
    const NameScheme scheme = name_scheme(names_);
    transposed_ = scheme.transposed();
    part_ = scheme.part();
    bare_ = scheme.bare();
    const std::string table = file_place(scheme, "tok_embeddings.weight", {1, 1}).name;
    if (names_.contains(table)) {
      table_ = table;
    }
    read_adapter();
    find_missing();
    check<ValueError>(errors_.empty(), adapter_folder_, ": the adapter does not fit the base in ",
                      base_folder_, errors_);
  }

  const SafetensorsDirectory& base() const { return base_; }
  const TensorSource& adapter() const { return *adapter_; }
  const PeftModules& modules() const { return modules_; }
  /// What becomes of each tensor; with `tied`, whether the base has one matrix for its table and
  /// its output. Sets it to false where the result has two.
  Pieces pieces(bool& tied, std::vector<std::string>& remarks) const {
    Pieces out;
    for (const std::string& name : names_) {
      out[name] = {.source = name, .adapter = {}, .module = {}};
    }
    for (const auto& [name, module] : adapted_) {
      out[name].module = module;
      out[name].transposed = transposed_ && name != kHeadTensor;
    }
    for (const auto& [name, stored] : replaced_) {
      out[name].adapter = stored;
    }
    const bool head = adapted_.contains(kHeadTensor) || replaced_.contains(kHeadTensor);
    if (!tied || table_.empty() || (!head && !replaced_.contains(table_))) {
      return out;
    }
    if (replaced_.contains(kHeadTensor) && replaced_.contains(table_) && same_tensors()) {
      if (!names_.contains(kHeadTensor)) {
        out.erase(kHeadTensor);
      }
      return out;
    }
    tied = false;
    remarks.push_back(
        "the base has one matrix for its table of embeddings and its output, of which the adapter "
        "changes one alone: the result has two, and tie_word_embeddings: false");
    out[kHeadTensor].source = table_;
    return out;
  }
  /// The file of the base that a tensor of the result goes to.
  std::string file_of(const std::string& tensor) const {
    return fs::path(base_.file_of(beside(tensor))).filename().string();
  }
  /// What that file says of itself.
  const std::map<std::string, std::string>& metadata_beside(const std::string& tensor) const {
    return base_.reader(beside(tensor)).metadata();
  }

 private:
  // The tensor itself, or if the base has none of that name the table that it starts as.
  const std::string& beside(const std::string& tensor) const {
    return names_.contains(tensor) ? tensor : table_;
  }
  std::string config_path() const {
    return (fs::path(adapter_folder_) / kAdapterConfigFile).string();
  }
  template <class... Args>
  void error(const Args&... text) {
    errors_ += concat("\n  ", text...);
  }

  // The base's name of a tensor that the adapter's file calls `name`, without prefix; empty if it
  // has none. Bases that were saved without their output layer lack the part's name.
  std::string base_name(const std::string& name) const {
    const bool has_part = !part_.empty() && name.starts_with(part_);
    const std::string bare = has_part ? name.substr(part_.size()) : name;
    const bool is_head = name == kHeadTensor && !table_.empty();
    return names_.contains(name) || is_head ? name : names_.contains(bare) ? bare : std::string();
  }

  void read_adapter() {
    for (const std::string& stored : adapter_->names()) {
      if (!stored.starts_with(kPeftPrefix)) {
        error(stored, ": does not begin with ", kPeftPrefix);
        continue;
      }
      const std::string name = stored.substr(kPeftPrefix.size());
      const size_t at = name.find(".lora_");
      if (at == std::string::npos) {
        read_whole(stored, name);
        continue;
      }
      const std::string module = name.substr(0, at);
      const std::string part = name.substr(at);
      const bool known = part == ".lora_A.weight" || part == ".lora_B.weight" ||
                         (part == ".lora_magnitude_vector" && modules_.config().use_dora);
      if (!known) {
        error(stored,
              ": adapters of linear modules have lora_A.weight and lora_B.weight, with "
              "use_dora lora_magnitude_vector, and no other tensors");
      } else if (const std::string of = base_name(module + std::string(kWeight)); of.empty()) {
        error(stored, ": the base has no module ", module);
      } else if (!modules_.targets(module)) {
        error(stored, ": target_modules of adapter_config.json do not mean this module");
      } else {
        adapted_[of] = module;
      }
    }
  }

  void read_whole(const std::string& stored, const std::string& name) {
    const std::string of = base_name(name);
    const size_t dot = name.rfind('.');
    if (of.empty()) {
      error(stored, ": the base has no tensor ", name);
    } else if (dot == std::string::npos || !modules_.saves(name.substr(0, dot))) {
      error(stored, ": modules_to_save of adapter_config.json do not mean this tensor");
    } else if (const Shape& shape = base_.shape(names_.contains(of) ? of : table_);
               adapter_->shape(stored) != shape) {
      error(stored, ": has shape ", adapter_->shape(stored), ", the base's ", of, " ", shape);
    } else {
      replaced_[of] = stored;
    }
  }

  // Every matrix that is meant must be there.
  void find_missing() {
    for (const std::string& name : names_) {
      if (!name.ends_with(kWeight) || base_.shape(name).size() != 2 || adapted_.contains(name)) {
        continue;
      }
      const std::string module = name.substr(0, name.size() - kWeight.size());
      const bool lacks_part = bare_ && !module.starts_with(part_) && module != "lm_head";
      const std::string path = lacks_part ? concat(part_, module) : module;
      const bool is_table =
          name == table_ || module.ends_with("wpe") || module.ends_with("pos_embeddings");
      const bool whole = modules_.config().targets.all_linear && is_table;
      if (!whole && modules_.targets(path)) {
        error(stem_of(path),
              ".lora_A.weight: is missing; target_modules of adapter_config.json "
              "mean this module",
              is_table ? ", and adapters of embeddings are not read" : "");
      }
    }
  }

  bool same_tensors() const {
    const std::string& a = replaced_.at(kHeadTensor);
    const std::string& b = replaced_.at(table_);
    if (adapter_->dtype(a) != adapter_->dtype(b)) {
      return false;
    }
    const auto bytes =
        static_cast<uint64_t>(adapter_->shape(a).numel() * size_of(adapter_->dtype(a)));
    constexpr uint64_t kStep = uint64_t{1} << 20U;
    std::vector<char> ours(kStep);
    std::vector<char> theirs(kStep);
    for (uint64_t at = 0; at < bytes; at += kStep) {
      const auto count = static_cast<size_t>(std::min(kStep, bytes - at));
      adapter_->read_bytes(a, at, count, ours.data());
      adapter_->read_bytes(b, at, count, theirs.data());
      if (!std::equal(ours.begin(), ours.begin() + static_cast<std::ptrdiff_t>(count),
                      theirs.begin())) {
        return false;
      }
    }
    return true;
  }

  std::string base_folder_;
  std::string adapter_folder_;
  SafetensorsDirectory base_;
  std::unique_ptr<TensorSource> adapter_;
  PeftModules modules_;
  std::set<std::string> names_;                  // of the base
  bool transposed_ = false;                      // matrices of layers are [in, out]
  std::string part_;                             // "model."
  bool bare_ = false;                            // the base's names are without it
  std::string table_;                            // of embeddings, in the base
  std::map<std::string, std::string> adapted_;   // tensor of the base: path of its module
  std::map<std::string, std::string> replaced_;  // tensor of the base: that of the adapter
  std::string errors_;
};

// Streams one tensor after the other into a file.
class TensorStream {
 public:
  TensorStream(const Merge& merge, AtomicFile& file) : merge_(merge), file_(file) {}

  void write(const std::string& name, const Piece& piece, DType dtype) {
    if (!piece.module.empty()) {
      write_merged(name, piece, dtype);
    } else if (!piece.adapter.empty()) {
      write_converted(merge_.adapter(), piece.adapter, dtype);
    } else {
      write_converted(merge_.base(), piece.source, dtype);
    }
  }

 private:
  // Visits the tensor in pieces of whole rows, as they are stored.
  static void for_each_piece(const TensorSource& source,
                             const std::string& name,
                             const std::function<void(const Tensor& rows, int64_t first)>& visit) {
    const Shape& shape = source.shape(name);
    const int64_t count = shape.size() > 0 ? shape[0] : 1;
    const int64_t columns = count > 0 ? shape.numel() / count : 0;
    if (columns == 0) {
      return;
    }
    const DType dtype = source.dtype(name);
    const int64_t together = std::clamp<int64_t>(kPieceElements / columns, 1, count);
    for (int64_t first = 0; first < count; first += together) {
      const int64_t rows = std::min(together, count - first);
      const Tensor piece = empty({rows, columns}, dtype);
      source.read_bytes(name, static_cast<uint64_t>(first * columns * size_of(dtype)),
                        static_cast<size_t>(piece.numel() * size_of(dtype)), piece.raw());
      visit(piece, first);
    }
  }
  void put(const Tensor& rows) {
    file_.write(rows.raw(), static_cast<size_t>(rows.numel() * size_of(rows.dtype())));
  }
  static Tensor in_dtype(const Tensor& rows, DType dtype) {
    if (rows.dtype() == dtype) {
      return rows;
    }
    Tensor out = empty(rows.shape(), dtype);
    copy_values(rows, out);
    return out;
  }
  void write_converted(const TensorSource& source, const std::string& name, DType dtype) {
    for_each_piece(source, name, [&](const Tensor& rows, int64_t) { put(in_dtype(rows, dtype)); });
  }

  void write_merged(const std::string& name, const Piece& piece, DType dtype) {
    const TensorSource& base = merge_.base();
    const Shape& shape = base.shape(piece.source);
    check<ValueError>(shape.size() == 2, base.file_of(piece.source), ": ", piece.source,
                      " has shape ", shape, ", and is no matrix");
    const PeftModules& modules = merge_.modules();
    AdapterProduct product(merge_.adapter(), stem_of(piece.module),
                           /*out=*/shape[piece.transposed ? 1 : 0],
                           /*in=*/shape[piece.transposed ? 0 : 1], modules.rank(piece.module),
                           modules.scale(piece.module), modules.config().use_dora,
                           piece.transposed);
    const auto values_of = [](const Tensor& wide) {
      return std::span<double>(wide.data<double>(), static_cast<size_t>(wide.numel()));
    };
    const auto widened = [](const Tensor& rows) {
      const Tensor wide = empty(rows.shape(), kFloat64);
      copy_values(rows, wide);
      return wide;
    };
    if (product.needs_lengths()) {
      for_each_piece(base, piece.source, [&](const Tensor& rows, int64_t first) {
        product.measure(values_of(widened(rows)), first);
      });
    }
    for_each_piece(base, piece.source, [&](const Tensor& rows, int64_t first) {
      const Tensor wide = widened(rows);
      product.add_to(values_of(wide), first);
      const Tensor rounded = in_dtype(wide, dtype);
      copy_values(rounded, wide);
      const std::span<double> values = values_of(wide);
      check<ValueError>(
          std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); }),
          name, ": with its adapter it has values that are not finite as ", name_of(dtype));
      put(rounded);
    });
  }

  const Merge& merge_;
  AtomicFile& file_;
};

bool is_stored_float(DType dtype) {
  return dtype == kFloat32 || dtype == kFloat16 || dtype == kBFloat16 || dtype == kFloat64;
}

// Files of weights with their tensors, as the base divides them.
std::map<std::string, std::vector<TensorInfo>> planned_files(const Merge& merge,
                                                             const Pieces& pieces,
                                                             std::optional<DType> wanted) {
  std::map<std::string, std::vector<TensorInfo>> files;
  for (const auto& [name, piece] : pieces) {
    const DType stored = merge.base().dtype(piece.source);
    files[merge.file_of(name)].push_back(
        {.name = name,
         .dtype = is_stored_float(stored) ? wanted.value_or(stored) : stored,
         .shape = merge.base().shape(piece.source)});
  }
  return files;
}

void write_weights(const Merge& merge,
                   const Pieces& pieces,
                   const std::string& path,
                   const std::vector<TensorInfo>& tensors,
                   const std::map<std::string, std::string>& metadata) {
  const SafetensorsPlan plan = plan_safetensors(path, tensors, metadata);
  std::map<uint64_t, std::string> order;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.shape.numel() > 0) {
      order[plan.begin_of(tensor.name)] = tensor.name;
    }
  }
  AtomicFile file(path);
  file.write(plan.prologue);
  TensorStream stream(merge, file);
  for (const auto& [begin, name] : order) {
    stream.write(name, pieces.at(name), *plan.entries.at(name).dtype);
  }
  check<RuntimeError>(file.size() == plan.file_size, path, ": has ", file.size(), " bytes where ",
                      plan.file_size, " were planned");
  file.commit();
}

}  // namespace

void export_adapter_folder(const std::string& adapter, const std::string& output) {
  const std::string folder = resolve_checkpoint(adapter);
  check<IoError>(holds_adapter(folder), folder, ": holds no adapter, ", kAdapterConfigFile, " and ",
                 kAdapterWeightsFile);
  const PeftModules modules(read_peft_config(folder), concat(folder, "/", kAdapterConfigFile));
  const std::unique_ptr<TensorSource> weights = open_adapter(folder);
  for (const std::string& name : weights->names()) {
    check<ValueError>(name.starts_with(kPeftPrefix), weights->file_of(name), ": ", name,
                      " does not begin with ", kPeftPrefix);
  }
  NewFolder made(output);
  for (const char* name : {kAdapterConfigFile, kAdapterWeightsFile}) {
    copy_whole_file(fs::path(folder) / name, fs::path(made.temporary()) / name);
  }
  copy_other_files(folder, made.temporary());
  made.commit();
}

MergeSummary merge_adapter(const MergeOptions& options) {
  check<ValueError>(
      !options.dtype || (is_stored_float(*options.dtype) && *options.dtype != kFloat64),
      "merge: the dtype of weights is float32, float16 or bfloat16, not ",
      options.dtype ? name_of(*options.dtype) : "");
  const std::string adapter = resolve_checkpoint(options.adapter);
  check<IoError>(holds_adapter(adapter), adapter, ": holds no adapter, ", kAdapterConfigFile,
                 " and ", kAdapterWeightsFile);
  const std::string found = find_adapter_base(adapter, options.base).path;
  check<ValueError>(!found.empty(), adapter,
                    ": was trained beside the start values of its run, which are no model to merge "
                    "it with");
  const std::string base = resolve_checkpoint(found);
  check<IoError>(fs::is_directory(base) && !holds_adapter(base), base,
                 ": is to be the base, but holds no model of its own; name the folder of the model "
                 "that the adapter is for");
  check_adapter_base(adapter, base);
  const Merge merge(base, adapter);
  MergeSummary summary{.base = base};
  ModelConfigFile config(base);
  bool tied = config.is_tied();
  const Pieces pieces = merge.pieces(tied, summary.remarks);
  const auto files = planned_files(merge, pieces, options.dtype);
  const bool as_it_was =
      !options.dtype && pieces.size() == merge.base().names().size();  // sizes, too
  NewFolder folder(options.output);
  const fs::path output = folder.temporary();
  for (const auto& [name, tensors] : files) {
    write_weights(merge, pieces, (output / name).string(), tensors,
                  merge.metadata_beside(tensors.front().name));
    for (const TensorInfo& tensor : tensors) {
      summary.bytes += static_cast<uint64_t>(tensor.shape.numel() * size_of(tensor.dtype));
    }
  }
  for (const auto& [name, piece] : pieces) {
    ++summary.tensors;
    summary.modules += piece.module.empty() ? 0 : 1;
    summary.replaced += piece.adapter.empty() ? 0 : 1;
  }
  write_index(base, output.string(), files, as_it_was);
  if (options.dtype) {
    config.set_dtype(*options.dtype);
  }
  if (config.is_tied() != tied) {
    config.set_tied(tied);
  }
  copy_other_files(base, output.string());
  config.write(output.string());
  // Where the adapter's examples taught another end of an answer than the base has.
  if (const std::vector<int64_t> ends = generation_config_ends(adapter); !ends.empty()) {
    const fs::path path = output / "generation_config.json";
    const std::string text = fs::exists(path) ? data::read_file(path.string()) : "{}";
    write_file_atomically(path.string(), generation_config_with_ends(text, ends, path.string()));
  }
  folder.commit();
  return summary;
}

}  // namespace tapestry
