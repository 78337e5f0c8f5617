#include "interop/export/gguf_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "autograd/tensor/error.h"
#include "interop/architectures/hf_names.h"
#include "interop/architectures/registry.h"
#include "interop/architectures/rules.h"
#include "parallel_core/transformer/rotary_frequencies.h"

namespace tapestry {
namespace {

using architectures::Architecture;
using architectures::NamePair;
using architectures::Objection;

// The family whose GGUF form says the configuration.
const Architecture& gguf_family(const TransformerConfig& config) {
  std::vector<std::pair<std::string, std::vector<Objection>>> families;
  std::string known;
  for (const Architecture& family : architectures::all()) {
    if (!family.gguf) {
      continue;
    }
    const std::string name(family.gguf->architecture);
    families.emplace_back(name, architectures::gguf_objections(family, config));
    if (families.back().second.empty()) {
      return family;
    }
    const bool repeats = families.size() > 1 && families[families.size() - 2].first == name;
    known += repeats ? "" : concat(known.empty() ? "" : ", ", name);
  }
  throw ValueError(concat("GGUF: the architectures that are written (", known,
                          ") cannot say this model. Nearest are",
                          architectures::nearest(families)));
}

// Makes the list of tensors.
class GgufTable {
 public:
  GgufTable(const TransformerConfig& config,
            const architectures::GgufTables& tables,
            GgufModel& model)
      : c_(config), tables_(tables), model_(model) {}

  void fill() {
    const auto is_input = [](const NamePair& row) { return row.logical.ends_with("_embeddings."); };
    for (const NamePair& row : tables_.top) {
      if (is_input(row)) {
        add("", "", row);
      }
    }
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) {
      for (const NamePair& row : tables_.layer) {
        add(concat("layers.", layer, "."), concat("blk.", layer, "."), row);
      }
    }
    if (c_.rotary_config.rope_type == "llama3") {
      divisors();
    }
    for (const NamePair& row : tables_.top) {
      if (!is_input(row)) {
        add("", "", row);
      }
    }
  }

 private:
  // What is of a name; no rows: the model has none.
  struct Form {
    int64_t rows = 0;
    int64_t columns = 0;  // 0: a vector, that of a norm
    bool bias = false;
    int64_t heads = 0;  // whose rows are turned
  };

  Form form_of(std::string_view logical) const {
    const int64_t size = c_.kv_channels.value();
    const int64_t queries = c_.num_attention_heads * size;
    const int64_t keys = c_.num_query_groups * size;
    const int64_t inner = c_.ffn_hidden_size;
    const bool norm_bias = c_.normalization == "LayerNorm";
    const auto is = [&](std::string_view name) { return logical == name; };
    if (is("tok_embeddings.") || (is("lm_head.") && c_.untie_embeddings_and_output_weights)) {
      return {.rows = c_.vocab_size, .columns = c_.hidden_size};
    }
    if (is("pos_embeddings.") && c_.position_embedding_type == "learned_absolute") {
      return {.rows = c_.max_position_embeddings.value(), .columns = c_.hidden_size};
    }
    if (is("final_norm.") || is("attention_norm.") || is("ffn_norm.")) {
      return {.rows = c_.hidden_size, .bias = norm_bias};
    }
    if ((is("attention.q_norm.") || is("attention.k_norm.")) && c_.qk_layernorm) {
      return {.rows = size, .bias = norm_bias};
    }
    if (is("attention.wq.")) {
      return {queries, c_.hidden_size, c_.qkv_has_bias, c_.num_attention_heads};
    }
    if (is("attention.wk.") || is("attention.wv.")) {
      return {keys, c_.hidden_size, c_.qkv_has_bias, is("attention.wk.") ? c_.num_query_groups : 0};
    }
    if (is("attention.wo.")) {
      return {c_.hidden_size, queries, c_.out_proj_has_bias};
    }
    if (is("feed_forward.w_up.") || (is("feed_forward.w_gate.") && has_gated_mlp(c_))) {
      return {inner, c_.hidden_size, c_.mlp_has_bias};
    }
    return is("feed_forward.w_down.") ? Form{c_.hidden_size, inner, c_.mlp_has_bias} : Form();
  }

  // The tensors of a row; those of a row with the same name join them.
  void add(const std::string& logical_stem, const std::string& file_stem, const NamePair& row) {
    const Form form = form_of(row.logical);
    if (form.rows == 0) {
      return;
    }
    const bool paired = tables_.paired && !c_.rotary_config.rotary_interleaved;
    for (const char* part : {"weight", "bias"}) {
      const bool weight = part == std::string_view("weight");
      if (!weight && !form.bias) {
        continue;
      }
      const bool matrix = weight && form.columns > 0;
      const std::string logical = concat(logical_stem, row.logical, part);
      const std::string name = concat(file_stem, row.file, part);
      if (GgufTensor* joined = find(name)) {
        joined->shape[0] += form.rows;
        joined->logical.push_back(logical);
        continue;
      }
      model_.tensors.push_back({.name = name,
                                .shape = matrix ? Shape{form.rows, form.columns} : Shape{form.rows},
                                .logical = {logical},
                                .paired_heads = paired ? form.heads : 0,
                                .always_f32 = !matrix || row.logical == "pos_embeddings."});
    }
  }

  // Among the last ones, where it is if it is.
  GgufTensor* find(const std::string& name) {
    constexpr size_t kNear = 4;
    const size_t count = model_.tensors.size();
    for (size_t i = count - std::min(count, kNear); i < count; ++i) {
      if (model_.tensors[i].name == name) {
        return &model_.tensors[i];
      }
    }
    return nullptr;
  }

  // What each pair's frequency is divided by.
  void divisors() {
    RotaryConfig plain = c_.rotary_config;
    plain.rope_type = "default";
    const std::vector<double> base = rotary_frequencies(plain, c_.kv_channels.value());
    const std::vector<double> used = rotary_frequencies(c_.rotary_config, c_.kv_channels.value());
    GgufTensor tensor{.name = "rope_freqs.weight",
                      .shape = {static_cast<int64_t>(base.size())},
                      .logical = {},
                      .always_f32 = true};
    for (size_t j = 0; j < base.size(); ++j) {
      tensor.values.push_back(static_cast<float>(base[j] / used[j]));
    }
    model_.tensors.push_back(std::move(tensor));
  }

  const TransformerConfig& c_;
  const architectures::GgufTables& tables_;
  GgufModel& model_;
};

}  // namespace

GgufModel gguf_model(const TransformerConfig& config) {
  const architectures::GgufTables& tables = *gguf_family(config).gguf;
  GgufModel model{.architecture = std::string(tables.architecture), .keys = tables.keys};
  GgufTable(config, tables, model).fill();
  return model;
}

GgufType type_in_file(const GgufTensor& tensor, GgufType type) {
  if (tensor.always_f32) {
    return GgufType::kF32;
  }
  return gguf_can_hold(type, tensor.shape.back()) ? type : GgufType::kF16;
}

void add_model_metadata(const TransformerConfig& config,
                        const GgufModel& model,
                        const std::string& name,
                        GgufType type,
                        GgufMetadata& metadata) {
  constexpr uint32_t kQuantizationVersion = 2;
  const std::string& arch = model.architecture;
  metadata.add("general.architecture", arch);
  metadata.add("general.type", "model");
  metadata.add("general.name", name);
  metadata.add("general.file_type", gguf_file_type(type));
  metadata.add("general.quantization_version", kQuantizationVersion);
  AllConfig all;
  all.model_config = config;
  for (const architectures::GgufKey& key : model.keys) {
    const config::Value value = architectures::value_of(all, std::string(key.ours));
    const std::string full = concat(arch, ".", key.key);
    if (value.is<double>()) {
      metadata.add(full, static_cast<float>(value.as<double>()));
      continue;
    }
    const auto count = value.as<int64_t>();
    check<ValueError>(count >= 0 && count <= std::numeric_limits<uint32_t>::max(), "GGUF: ", full,
                      ": ", count, " does not fit 32 bits");
    metadata.add(full, static_cast<uint32_t>(count));
  }
  const double factor = config.rotary_config.seq_len_interpolation_factor.value_or(1.0);
  if (config.position_embedding_type == "rope" && factor != 1.0) {
    metadata.add(arch + ".rope.scaling.type", "linear");
    metadata.add(arch + ".rope.scaling.factor", static_cast<float>(factor));
  }
}

int64_t pair_rows(int64_t row, int64_t d) {
  const int64_t within = row % d;
  return row - within + within % 2 * (d / 2) + within / 2;
}

}  // namespace tapestry
