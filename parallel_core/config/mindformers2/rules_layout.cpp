// Rules of `parallelism`, `recompute` and `swap`.
#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "autograd/tensor/error.h"
#include "parallel_core/config/mindformers2/reading.h"
#include "parallel_core/config/schema/schema.h"
#include "text/util/regular_expression.h"

namespace tapestry::config::mindformers2 {
namespace {

constexpr const char* kShard = "parallelism.data_parallel_shard";
constexpr const char* kStages = "parallelism.pipeline_parallel_layers_per_stage";
constexpr const char* kFull = "recompute.full_recompute_layer";
constexpr const char* kSelect = "recompute.select_module";
constexpr const char* kConfig = "parallel_config.recompute_config.";

void translate_shards(Reading& r) {
  const int64_t shard = r.integer(kShard);
  const std::optional<int64_t> ranks = r.data_parallel_size();
  if (shard == 0 || shard < -1) {
    r.error(kShard, concat("is ", shard,
                           ", expected -1 for all data-parallel ranks, or their "
                           "number"));
    return;
  }
  if (shard == 1 && ranks.value_or(2) > 1) {
    return;  // each rank has all of its own
  }
  if (shard > 1 && ranks && shard != *ranks) {
    r.error(kShard, concat("is ", shard, ", but there are ", *ranks,
                           " data-parallel ranks: sharding over a part of them is not built; "
                           "write -1"));
    return;
  }
  if (shard > 1 && !ranks) {
    r.put("parallel_config.data_parallel_size", concat(shard), kShard);
  }
  r.put("parallel_config.zero_level", "z3", kShard);
  constexpr const char* kPolicy = "parallelism.reshard_after_forward_policy";
  const std::string policy = r.text(kPolicy);
  if (policy == "never" ||
      (policy == "default" && r.integer("parallelism.pipeline_parallel") > 1)) {
    r.put(concat(kConfig, "parallel_optimizer_comm_recompute"), "False", kPolicy);
  }
}

std::optional<int64_t> layer_number(std::string_view text) {
  while (text.starts_with(' ')) {
    text.remove_prefix(1);
  }
  while (text.ends_with(' ')) {
    text.remove_suffix(1);
  }
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0
             ? std::optional(number)
             : std::nullopt;
}

// "a-b" or "a".
std::optional<std::pair<int64_t, int64_t>> range_of(std::string_view text) {
  const size_t dash = text.find('-');
  const auto first = layer_number(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : layer_number(text.substr(dash + 1));
  return first && last && *first <= *last ? std::optional(std::pair(*first, *last)) : std::nullopt;
}

// Chunk c of rank r is stage c * ranks + r; the stages must be all layers in their order.
void translate_stages(Reading& r, int64_t ranks, int64_t chunks, int64_t layers) {
  const std::vector<std::string> texts = r.texts(kStages);
  if (static_cast<int64_t>(texts.size()) != ranks) {
    r.error(kStages, concat("has ", texts.size(), " texts, expected one for each of the ", ranks,
                            " ranks of pipeline_parallel"));
    return;
  }
  std::vector<std::pair<int64_t, int64_t>> stages(static_cast<size_t>(ranks * chunks));
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const auto parts = split_text(texts[rank], ',');
    if (static_cast<int64_t>(parts.size()) != chunks) {
      r.error(kStages, concat("'", texts[rank], "' has ", parts.size(), " chunks, expected ",
                              chunks, " (pipeline_parallel_interleave_num)"));
      return;
    }
    for (size_t chunk = 0; chunk < parts.size(); ++chunk) {
      const auto range = range_of(parts[chunk]);
      if (!range) {
        r.error(kStages, concat("'", parts[chunk], "' is no range of layers such as 0-3 or 4"));
        return;
      }
      stages[chunk * texts.size() + rank] = *range;
    }
  }
  int64_t next = 0;
  std::string rows;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    if (stages[stage].first != next) {
      r.error(kStages,
              concat("stage ", stage, " begins with layer ", stages[stage].first, ", expected ",
                     next, ": the stages must be all layers once, in their order"));
      return;
    }
    next = stages[stage].second + 1;
    const bool opens = stage % texts.size() == 0;
    rows += concat(stage == 0 ? "["
                   : opens    ? "], ["
                              : ", ",
                   stages[stage].second - stages[stage].first + 1);
  }
  if (layers > 0 && next != layers) {
    r.error(kStages, concat("ends with layer ", next - 1, ", but the model has ", layers,
                            " layers, the last of which is ", layers - 1));
    return;
  }
  r.put("parallel_config.num_layer_list",
        parse_yaml(chunks > 1 ? concat("[", rows, "]]") : concat(rows, "]"), r.place(kStages), true,
                   r.errors));
}

void translate_pipeline(Reading& r) {
  const int64_t ranks = r.integer("parallelism.pipeline_parallel");
  const int64_t chunks = r.integer("parallelism.pipeline_parallel_interleave_num");
  if (ranks < 1 || chunks < 1) {
    r.error(ranks < 1 ? "parallelism.pipeline_parallel"
                      : "parallelism.pipeline_parallel_interleave_num",
            "expected a number above 0");
    return;
  }
  if (chunks > 1) {
    r.put("parallel_config.virtual_pipeline_model_parallel_size", concat(chunks),
          "parallelism.pipeline_parallel_interleave_num");
  }
  const int64_t layers = r.has_section("model") ? r.integer("model.num_hidden_layers") : int64_t{0};
  const RawNode* given = r.find(kStages);
  if (given != nullptr && given->kind == RawNode::Kind::kList) {
    translate_stages(r, ranks, chunks, layers);
  } else if (given != nullptr && given->kind == RawNode::Kind::kScalar && given->scalar != "auto") {
    r.error(kStages, concat("is ", given->scalar,
                            ", expected auto or a list with a text for each "
                            "rank, such as [\"0-3\", \"4-7\"]"));
  } else if (layers > 0 && layers % (ranks * chunks) != 0) {
    r.error(given != nullptr ? kStages : "parallelism.pipeline_parallel",
            concat("auto divides ", layers, " layers (model.num_hidden_layers) evenly over ",
                   ranks * chunks, " stages, which is not possible; give a list"));
  }
}

void check_context(Reading& r) {
  constexpr const char* kDegree = "parallelism.ulysses_degree_in_cp";
  const int64_t ranks = r.integer("parallelism.context_parallel");
  const std::string method = r.text("parallelism.context_parallel_method");
  const bool given = r.given(kDegree) && !r.is_null(kDegree);
  const int64_t degree = given ? r.integer(kDegree) : 0;
  if (method == "hybrid" && ranks > 1 &&
      (!given || degree <= 1 || degree >= ranks || ranks % degree != 0)) {
    r.error(kDegree, concat("context_parallel_method hybrid needs a divisor of context_parallel ",
                            ranks, " between 1 and it"));
  } else if (method == "ulysses" && given && degree != ranks) {
    r.error(kDegree, concat("is ", degree,
                            ", but with context_parallel_method ulysses it is "
                            "context_parallel, ",
                            ranks));
  }
}

// The layer behind the model's own predicts further tokens, and here does what the last one does.
// False if that is not what is asked for.
bool drop_layer_ahead(Reading& r, const char* path, std::vector<int64_t>& layers) {
  if (!r.has_section("model") || r.integer("model.num_nextn_predict_layers") == 0 ||
      layers.back() != r.integer("model.num_hidden_layers")) {
    return true;
  }
  const int64_t ahead = layers.back();
  layers.pop_back();
  if (layers.empty() || layers.back() != ahead - 1) {
    r.error(path, concat("has layer ", ahead, ", which predicts further tokens, without layer ",
                         ahead - 1, ": it recomputes what that one does; name both"));
    return false;
  }
  return true;
}

// Layers of "5" or "0-19", one behind the other.
std::optional<std::vector<int64_t>> layers_of(Reading& r, const char* path, const RawNode& list) {
  std::vector<int64_t> layers;
  for (const RawNode& item : list.items) {
    const auto range = range_of(item.scalar);
    if (!range || (!layers.empty() && range->first <= layers.back()) ||
        range->second - range->first > 100000) {
      r.error(path,
              concat("'", item.scalar, "': expected layers such as 5 or 0-19, in ascending order"));
      return std::nullopt;
    }
    for (int64_t layer = range->first; layer <= range->second; ++layer) {
      layers.push_back(layer);
    }
  }
  if (layers.empty()) {
    r.error(path, "names no layers; expected a list such as [0-3]");
    return std::nullopt;
  }
  if (!drop_layer_ahead(r, path, layers)) {
    return std::nullopt;
  }
  return layers;
}

std::vector<std::string> texts_of(const std::vector<int64_t>& numbers) {
  std::vector<std::string> texts;
  texts.reserve(numbers.size());
  for (const int64_t number : numbers) {
    texts.push_back(concat(number));
  }
  return texts;
}

// A module of a layer of MindFormers, and the patterns that mean what it computes here.
struct LayerModule {
  const char* path;
  const char* pattern;
};
constexpr LayerModule kModules[] = {{"input_layernorm", "attention_norm\\.norm"},
                                    {"self_attention", "attention"},
                                    {"self_attention.linear_qkv", "attention\\.wq"},
                                    {"self_attention.linear_qb", "attention\\.wq"},
                                    {"self_attention.linear_kvb", "attention\\.wq"},
                                    {"self_attention.q_layernorm", "attention\\.q_norm\\.norm"},
                                    {"self_attention.k_layernorm", "attention\\.k_norm\\.norm"},
                                    {"self_attention.core_attention", "attention\\.core_attention"},
                                    {"self_attention.linear_proj", "attention\\.wo"},
                                    {"pre_mlp_layernorm", "ffn_norm\\.norm"},
                                    {"mlp", "feed_forward"},
                                    {"mlp.linear_fc1", "mlp\\.linear_fc1"},
                                    {"mlp.activation_func", "mlp\\.mul"},
                                    {"mlp.linear_fc2", "mlp\\.linear_fc2"}};

void add_modules(Reading& r, const RawNode& expression, std::set<std::string>& patterns) {
  bool found = false;
  try {
    const RegularExpression matcher(expression.scalar, "select_module");
    for (const LayerModule& module : kModules) {
      if (matcher.matches(module.path)) {
        patterns.insert(module.pattern);
        found = true;
      }
    }
  } catch (const Error& failure) {
    r.error(kSelect, failure.what());
    return;
  }
  if (!found) {
    r.note(kSelect, concat("'", expression.scalar,
                           "' matches no module of a layer, and recomputes nothing"));
  }
}

void translate_selection(Reading& r) {
  const RawNode* selection = r.find(kSelect);
  if (selection == nullptr || selection->entries.empty()) {
    r.error("recompute.mode", "select needs select_module, such as {self_attention: [0-3]}");
    return;
  }
  std::optional<std::vector<int64_t>> all;
  std::set<std::string> patterns;
  for (const auto& [expression, list] : selection->entries) {
    const auto layers = layers_of(r, kSelect, list);
    if (!layers) {
      return;
    }
    if (all && *all != *layers) {
      r.error(kSelect, concat("'", expression.scalar,
                              "' has other layers than the expressions before it; give all of "
                              "them the same"));
      return;
    }
    all = layers;
    add_modules(r, expression, patterns);
  }
  if (!patterns.empty()) {
    r.put(concat(kConfig, "select_recompute"),
          list_node({patterns.begin(), patterns.end()}, selection->place, true));
    r.put(concat(kConfig, "select_recompute_layers"), list_node(texts_of(*all), selection->place));
  }
}

// Names of operators, and the patterns whose results they make here.
constexpr LayerModule kOperators[] = {{"matmul", ".*\\.matmul"},
                                      {"grouped_matmul", ".*\\.matmul"},
                                      {"flash_attention", "attention\\.core_attention"},
                                      {"flashattentionscore", "attention\\.core_attention"},
                                      {"rmsnorm", ".*\\.norm"},
                                      {"rms_norm", ".*\\.norm"},
                                      {"silu", "mlp\\.mul"},
                                      {"swiglu", "mlp\\.mul"},
                                      {"rotary_position_embedding", "attention\\.apply_rotary_emb"},
                                      {"apply_rotary_pos_emb", "attention\\.apply_rotary_emb"},
                                      {"add", "add"}};

void translate_exclusions(Reading& r) {
  std::set<std::string> patterns;
  for (const std::string& text : r.texts("recompute.exclude_op")) {
    std::string low = text;
    std::transform(low.begin(), low.end(), low.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    bool found = false;
    for (const LayerModule& op : kOperators) {
      if (!low.empty() && std::string_view(op.path).find(low) != std::string_view::npos) {
        patterns.insert(op.pattern);
        found = true;
      }
    }
    if (!found) {
      r.note("recompute.exclude_op",
             concat("'", text, "' names no operator that is known here, and keeps nothing"));
    }
  }
  if (!patterns.empty()) {
    r.put(concat(kConfig, "select_recompute_exclude"),
          list_node({patterns.begin(), patterns.end()}, r.place("recompute.exclude_op"), true));
  }
}

}  // namespace

void translate_layout(Reading& r) {
  translate_shards(r);
  translate_pipeline(r);
  check_context(r);
  constexpr const char* kExperts = "parallelism.expert_parallel";
  if (r.integer(kExperts) != 1) {
    r.put("parallel_config.expert_model_parallel_size", r.text(kExperts), kExperts);
  }
  const bool has_experts = r.has_section("model") && !r.is_qwen3();
  if (has_experts && r.integer("parallelism.tensor_parallel") > 1) {
    r.put("parallel_config.expert_tensor_parallel_size", "1", kExperts);
  }
}

void translate_recompute(Reading& r) {
  const std::string mode = r.text("recompute.mode");
  if (mode == "None" || mode.empty()) {
    for (const char* key : {kFull, kSelect, "recompute.exclude_op"}) {
      if (r.given(key) && !r.is_null(key)) {
        r.note(key, "has no effect with recompute.mode None");
      }
    }
    return;
  }
  const RawNode* full = r.find(kFull);
  const bool has_full = full != nullptr && full->kind == RawNode::Kind::kList;
  if (mode == "full" && !has_full) {
    r.error("recompute.mode", "full needs full_recompute_layer, such as [0-3]");
    return;
  }
  if (has_full) {
    if (const auto layers = layers_of(r, kFull, *full)) {
      r.put(concat(kConfig, "recompute_layers"), list_node(texts_of(*layers), full->place));
    }
  }
  if (mode == "select") {
    translate_selection(r);
  }
  translate_exclusions(r);
}

}  // namespace tapestry::config::mindformers2
