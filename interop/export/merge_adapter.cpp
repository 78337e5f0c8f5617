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
#include "autograd/io/packed_folder.h"
#include "autograd/io/safetensors_directory.h"
#include "autograd/io/strict_json.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "interop/architectures/file_place.h"
#include "interop/export/adapter_product.h"
#include "interop/export/export_source.h"
#include "interop/export/hf_export.h"
#include "interop/export/model_files.h"
#include "interop/export/new_folder.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/dist_checkpointing/peft_names.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"
#include "text/tokenizers/huggingface/tokenizer_files.h"
#include "text/tokenizers/tokenizer.h"
#include "text/util/file.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kPieceElements = int64_t{1} << 20U;
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kBias = ".bias";
constexpr const char* kHeadTensor = "lm_head.weight";
constexpr const char* kScoreTensor = "score.weight";

// What becomes of a tensor of the result.
struct Piece {
  std::string source;   // tensor of the base that it starts from; empty: it is the adapter's
  std::string adapter;  // tensor of the adapter that takes its place; empty: none
  std::string module;   // path of the module whose adapter is added; empty: none
  std::string path;     // under which adapter_config.json knows it
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
    find_parameters();
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
      out[name].path = module;
      out[name].transposed = transposed_ && name != kHeadTensor;
    }
    for (const auto& [module, name] : parameters_) {
      out[name].module = module;
      out[name].path = path_of(name);
      out[name].transposed = true;
    }
    for (const auto& [name, stored] : replaced_) {
      out[name].adapter = stored;
    }
    if (gives_score_head()) {
      out.erase(kHeadTensor);  // in whose place it stands
      return out;
    }
    const bool head = adapted_.contains(kHeadTensor) || replaced_.contains(kHeadTensor);
    if (!tied || table_.empty() || (!head && !replaced_.contains(table_))) {
      return out;
    }
    if (replaced_.contains(kHeadTensor) && replaced_.contains(table_) &&
        same_bytes(*adapter_, replaced_.at(kHeadTensor), replaced_.at(table_))) {
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
  /// Whether the base is a language model, and the result one for sequence classification.
  bool gives_score_head() const {
    return replaced_.contains(kScoreTensor) && !names_.contains(kScoreTensor);
  }
  /// Where the dtype and the shape of a tensor of the result come from.
  TensorInfo like(const std::string& name, const Piece& piece) const {
    const bool is_new = piece.source.empty();
    const TensorSource& source = is_new ? *adapter_ : static_cast<const TensorSource&>(base_);
    const std::string& stored = is_new ? piece.adapter : piece.source;
    return {.name = name, .dtype = source.dtype(stored), .shape = source.shape(stored)};
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

  bool is_new_score(const std::string& name) const {
    return name == kScoreTensor && !names_.contains(name) &&
           modules_.config().task_type == kSequenceClassification;
  }

  // The base's name of a tensor that the adapter's file calls `name`, without prefix; empty if it
  // has none. Bases that were saved without their output layer lack the part's name.
  std::string base_name(const std::string& name) const {
    const bool has_part = !part_.empty() && name.starts_with(part_);
    const std::string bare = has_part ? name.substr(part_.size()) : name;
    const bool is_head = !table_.empty() && (name == kHeadTensor || is_new_score(name));
    return names_.contains(name) || is_head ? name : names_.contains(bare) ? bare : std::string();
  }

  // The path that PEFT has for a module of the base's files.
  std::string path_of(const std::string& module) const {
    const bool lacks_part = bare_ && !module.starts_with(part_) && module != "lm_head";
    return lacks_part ? concat(part_, module) : module;
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
      } else if (parameters_.contains(module)) {
        found_.insert(module);
      } else if (const std::string of = base_name(module + std::string(kWeight)); of.empty()) {
        error(stored, ": the base has no module ", module);
      } else if (!modules_.targets(module)) {
        error(stored, ": target_modules of adapter_config.json do not mean this module");
      } else {
        adapted_[of] = module;
      }
    }
  }

  // Matrices of stacked experts, by the names that their adapters' tensors begin with.
  void find_parameters() {
    for (const std::string& name : names_) {
      const std::string path = path_of(name);
      if (base_.shape(name).size() == 3 && modules_.targets_parameter(path)) {
        const std::string down = concat(path.substr(0, path.rfind('.')), ".down_proj");
        parameters_[peft_parameter_stem(path, modules_.targets_parameter(down))] = name;
      }
    }
  }

  // A tensor that takes the place of the base's: of a module of modules_to_save, or a bias beside
  // an adapter.
  void read_whole(const std::string& stored, std::string name) {
    const size_t dot = name.rfind('.');
    const std::string module = dot == std::string::npos ? "" : name.substr(0, dot);
    bool meant = modules_.saves(module);
    if (module.ends_with(kBaseLayer) && name.ends_with(kBias)) {
      const std::string path = module.substr(0, module.size() - kBaseLayer.size());
      meant = modules_.config().trains_biases && modules_.targets(path);
      name = concat(path, kBias);
    }
    const std::string of = base_name(name);
    if (of.empty()) {
      error(stored, ": the base has no tensor ", name);
    } else if (!meant) {
      error(stored, ": modules_to_save and bias of adapter_config.json do not mean this tensor");
    } else if (const Shape shape = is_new_score(of)
                                       ? Shape{1, base_.shape(table_)[1]}
                                       : base_.shape(names_.contains(of) ? of : table_);
               adapter_->shape(stored) != shape) {
      error(stored, ": has shape ", adapter_->shape(stored), ", the base's ", of, " ", shape);
    } else {
      replaced_[of] = stored;
    }
  }

  // Every matrix that is meant must be there, and every bias.
  void find_missing() {
    for (const auto& [module, name] : parameters_) {
      if (!found_.contains(module)) {
        error(stem_of(module),
              ".lora_A.weight: is missing; target_parameters of adapter_config.json mean ",
              path_of(name));
      }
    }
    for (const std::string& name : names_) {
      if (modules_.config().trains_biases && name.ends_with(kBias) && !replaced_.contains(name)) {
        const std::string module = path_of(name.substr(0, name.size() - kBias.size()));
        if (modules_.targets(module)) {
          error(stem_of(module), kBaseLayer, kBias,
                ": is missing; bias: lora_only of adapter_config.json means it");
        }
      }
      if (!name.ends_with(kWeight) || base_.shape(name).size() != 2 || adapted_.contains(name)) {
        continue;
      }
      const std::string module = name.substr(0, name.size() - kWeight.size());
      const std::string path = path_of(module);
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

  std::string base_folder_;
  std::string adapter_folder_;
  SafetensorsDirectory base_;
  std::unique_ptr<TensorSource> adapter_;
  PeftModules modules_;
  std::set<std::string> names_;                    // of the base
  bool transposed_ = false;                        // matrices of layers are [in, out]
  std::string part_;                               // "model."
  bool bare_ = false;                              // the base's names are without it
  std::string table_;                              // of embeddings, in the base
  std::map<std::string, std::string> adapted_;     // tensor of the base: path of its module
  std::map<std::string, std::string> parameters_;  // stem of the adapter's: tensor of the base
  std::set<std::string> found_;                    // of these, what the adapter has
  std::map<std::string, std::string> replaced_;    // tensor of the base: that of the adapter
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
  // Visits rows [begin, end) of the tensor, which has `columns` in each, in pieces of whole rows.
  static void for_each_piece(const TensorSource& source,
                             const std::string& name,
                             int64_t columns,
                             int64_t begin,
                             int64_t end,
                             const std::function<void(const Tensor& rows, int64_t first)>& visit) {
    if (columns == 0 || begin == end) {
      return;
    }
    const DType dtype = source.dtype(name);
    const int64_t together = std::clamp<int64_t>(kPieceElements / columns, 1, end - begin);
    for (int64_t first = begin; first < end; first += together) {
      const int64_t rows = std::min(together, end - first);
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
    const Shape& shape = source.shape(name);
    const int64_t count = shape.size() > 0 ? shape[0] : 1;
    for_each_piece(source, name, count > 0 ? shape.numel() / count : 0, 0, count,
                   [&](const Tensor& rows, int64_t) { put(in_dtype(rows, dtype)); });
  }

  void write_merged(const std::string& name, const Piece& piece, DType dtype) {
    const TensorSource& base = merge_.base();
    const Shape& shape = base.shape(piece.source);
    check<ValueError>(shape.size() == 2 || shape.size() == 3, base.file_of(piece.source), ": ",
                      piece.source, " has shape ", shape, ", and is no matrix");
    const int64_t experts = shape.size() == 3 ? shape[0] : 1;
    const int64_t columns = shape[shape.size() - 1];
    const int64_t rows = shape[shape.size() - 2];
    const PeftModules& modules = merge_.modules();
    AdapterProduct product(merge_.adapter(), stem_of(piece.module),
                           /*out=*/piece.transposed ? columns : rows,
                           /*in=*/piece.transposed ? rows : columns, modules.rank(piece.path),
                           modules.scale(piece.path), modules.config().use_dora, piece.transposed,
                           experts);
    for (int64_t e = 0; e < experts; ++e) {
      if (e > 0) {
        product.choose(e);
      }
      write_matrix(name, piece, dtype, product,
                   {.first = e * rows, .rows = rows, .columns = columns});
    }
  }

  // A matrix in the base's tensor, which may have several below one another.
  struct MatrixRows {
    int64_t first = 0;
    int64_t rows = 0;
    int64_t columns = 0;
  };
  void write_matrix(const std::string& name,
                    const Piece& piece,
                    DType dtype,
                    AdapterProduct& product,
                    const MatrixRows& matrix) {
    const TensorSource& base = merge_.base();
    const auto values_of = [](const Tensor& wide) {
      return std::span<double>(wide.data<double>(), static_cast<size_t>(wide.numel()));
    };
    const auto widened = [](const Tensor& narrow) {
      const Tensor wide = empty(narrow.shape(), kFloat64);
      copy_values(narrow, wide);
      return wide;
    };
    const auto for_each = [&](const std::function<void(const Tensor& rows, int64_t first)>& visit) {
      for_each_piece(base, piece.source, matrix.columns, matrix.first, matrix.first + matrix.rows,
                     visit);
    };
    if (product.needs_lengths()) {
      for_each([&](const Tensor& part, int64_t first) {
        product.measure(values_of(widened(part)), first - matrix.first);
      });
    }
    for_each([&](const Tensor& part, int64_t first) {
      const Tensor wide = widened(part);
      product.add_to(values_of(wide), first - matrix.first);
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
    TensorInfo tensor = merge.like(name, piece);
    tensor.dtype = is_stored_float(tensor.dtype) ? wanted.value_or(tensor.dtype) : tensor.dtype;
    files[merge.file_of(name)].push_back(std::move(tensor));
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

namespace {

std::optional<int64_t> pad_id_in(const std::string& folder) {
  const bool has_tokenizer =
      data::huggingface::has_tokenizer_files(folder) || path_exists(folder + "/tokenizer.model");
  const int64_t pad = has_tokenizer ? tokenizer_of_folder(folder)->pad_id() : -1;
  return pad < 0 ? std::nullopt : std::optional(pad);
}

MergeSummary merge_folder(const std::string& base,
                          const std::string& adapter,
                          const MergeOptions& options) {
  const Merge merge(base, adapter);
  MergeSummary summary{.base = base};
  ModelConfigFile config(base);
  bool tied = config.is_tied();
  const Pieces pieces = merge.pieces(tied, summary.remarks);
  const auto files = planned_files(merge, pieces, options.dtype);
  const bool as_it_was = !options.dtype && !merge.gives_score_head() &&
                         pieces.size() == merge.base().names().size();  // sizes, too
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
  if (merge.gives_score_head()) {
    config.set_score_head(pad_id_in(base));
    summary.remarks.push_back(
        "the adapter has a score head: the result is a reward model, without the base's output "
        "layer");
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

}  // namespace

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
  check<IoError>(folder_exists(base) && !holds_adapter(base), base,
                 ": is to be the base, but holds no model of its own; name the folder of the model "
                 "that the adapter is for");
  check_adapter_base(adapter, base);
  if (!is_packed_folder(base)) {
    return merge_folder(base, adapter, options);
  }
  // The folder that the file stands for, for as long as it is needed.
  const NewFolder work(options.output + ".base");
  const std::string folder = (fs::path(work.temporary()) / "model").string();
  export_hf(open_export_source(base), folder, {});
  MergeSummary summary = merge_folder(folder, adapter, options);
  summary.base = base;
  return summary;
}

}  // namespace tapestry
