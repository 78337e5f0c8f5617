#include "parallel_core/config/recompute_tables.h"

#include <algorithm>
#include <numeric>

#include "parallel_core/config/layer_split.h"
#include "text/util/regular_expression.h"

namespace tapestry {

namespace {

using config::Value;

LayerTable no_layers_of(const LayerTable& counts) {
  LayerTable table = counts;
  for (auto& row : table) {
    std::fill(row.begin(), row.end(), 0);
  }
  return table;
}

void check_size(const std::string& key, const char* what, size_t found, size_t expected) {
  check<ValueError>(found == expected, key, " has ", found, " ", what, "(s); the pipeline has ",
                    expected);
}

// At most all layers of a cell, or all or none of them.
int64_t limited(const Value& wanted, int64_t most) {
  return wanted.is<bool>() ? (wanted.as<bool>() ? most : 0) : std::min(wanted.as<int64_t>(), most);
}

LayerTable deal_out(const Value::List& stages, const LayerTable& counts) {
  LayerTable table = no_layers_of(counts);
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    int64_t held = 0;
    for (const auto& row : counts) {
      held += row[stage];
    }
    int64_t left = limited(stages[stage], held);
    for (size_t chunk = 0; left > 0; chunk = (chunk + 1) % counts.size()) {
      if (table[chunk][stage] < counts[chunk][stage]) {
        ++table[chunk][stage];
        --left;
      }
    }
  }
  return table;
}

LayerTable by_chunk(const std::string& key, const Value::List& rows, const LayerTable& counts) {
  check_size(key, "row", rows.size(), counts.size());
  LayerTable table = counts;
  for (size_t chunk = 0; chunk < rows.size(); ++chunk) {
    const bool whole = rows[chunk].is<bool>();
    if (!whole) {
      check_size(key, "number", rows[chunk].as<Value::List>().size(), counts[chunk].size());
    }
    for (size_t stage = 0; stage < counts[chunk].size(); ++stage) {
      table[chunk][stage] =
          limited(whole ? rows[chunk] : rows[chunk].as<Value::List>()[stage], counts[chunk][stage]);
    }
  }
  return table;
}

LayerTable table_of(const std::string& key, const Value& value, const LayerTable& counts) {
  if (value.is<bool>()) {
    return value.as<bool>() ? counts : no_layers_of(counts);
  }
  const auto& list = value.as<Value::List>();
  if (list.empty()) {
    return no_layers_of(counts);
  }
  if (std::any_of(list.begin(), list.end(), [](const Value& v) { return v.is<Value::List>(); })) {
    return by_chunk(key, list, counts);
  }
  check_size(key, "number", list.size(), counts.front().size());
  return deal_out(list, counts);
}

bool is_empty(const LayerTable& table) {
  return std::all_of(table.begin(), table.end(), [](const auto& row) {
    return std::all_of(row.begin(), row.end(), [](int64_t n) { return n == 0; });
  });
}

const std::vector<std::string> kUsualOperations = {"feed_forward\\.mul",
                                                   "feed_forward\\.w1\\.activation\\.silu"};
const std::vector<std::string> kUsualCommunication = {".*\\.norm"};
// Whatever the activation, gated or not.
const std::vector<std::string> kMlpActivations = {"feed_forward\\..*\\.activation\\..*",
                                                  "feed_forward\\.mul"};
const std::vector<std::string> kCoreAttention = {"attention\\.core_attention"};

template <class T>
std::string list_text(const std::vector<T>& items) {
  std::string text;
  for (const T& item : items) {
    if constexpr (std::is_same_v<T, int64_t>) {
      text += concat(text.empty() ? "" : ", ", item);
    } else {
      text += (text.empty() ? "" : ", ") + list_text(item);
    }
  }
  return "[" + text + "]";
}

std::string patterns_text(const std::vector<PatternLayers>& patterns) {
  std::string text;
  for (const PatternLayers& entry : patterns) {
    text += concat(text.empty() ? "" : ", ", "'", entry.pattern, "': ", list_text(entry.layers));
  }
  return "{" + text + "}";
}

bool has_pattern(const std::vector<PatternLayers>& patterns, const std::string& pattern) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const PatternLayers& entry) {
    return entry.pattern == pattern && !is_empty(entry.layers);
  });
}

// Calls f(layer, chunk, stage, place in its cell) for every layer.
template <class F>
void for_each_layer(const LayerTable& counts, const F& f) {
  size_t layer = 0;
  for (size_t chunk = 0; chunk < counts.size(); ++chunk) {
    for (size_t stage = 0; stage < counts[chunk].size(); ++stage) {
      for (int64_t place = 0; place < counts[chunk][stage]; ++place) {
        f(layer++, chunk, stage, place);
      }
    }
  }
}

std::vector<bool> layers_listed(const std::string& key,
                                const std::vector<int64_t>& numbers,
                                size_t num_layers) {
  std::vector<bool> out(num_layers, false);
  for (const int64_t layer : numbers) {
    check<ValueError>(layer >= 0 && layer < static_cast<int64_t>(num_layers), key, ": layer ",
                      layer, " is not one of 0 to ", num_layers - 1);
    out[static_cast<size_t>(layer)] = true;
  }
  return out;
}

// recompute_config.
void choose_by_tables(const RecomputeConfig& config,
                      const LayerTable& counts,
                      std::vector<LayerRecompute>& layers) {
  const RecomputeTables tables = recompute_tables(config, counts);
  std::optional<std::vector<bool>> full;
  std::optional<std::vector<bool>> selected;
  if (config.recompute_layers) {
    check<ValueError>(is_empty(tables.layer_recompute),
                      "recompute and recompute_layers both say which layers are recomputed; keep "
                      "one");
    full = layers_listed("recompute_layers", *config.recompute_layers, layers.size());
  }
  if (config.select_recompute_layers) {
    selected =
        layers_listed("select_recompute_layers", *config.select_recompute_layers, layers.size());
  }
  for_each_layer(counts, [&](size_t index, size_t chunk, size_t stage, int64_t place) {
    LayerRecompute& layer = layers[index];
    const auto is_on = [&](const LayerTable& table) { return place < table[chunk][stage]; };
    const auto add = [&](const std::vector<PatternLayers>& from,
                         const std::vector<PatternLayers>& excluded, std::vector<std::string>& to) {
      for (const PatternLayers& entry : from) {
        if (is_on(entry.layers) && !has_pattern(excluded, entry.pattern)) {
          to.push_back(entry.pattern);
        }
      }
    };
    layer.full = full ? (*full)[index] : is_on(tables.layer_recompute);
    if (!selected || (*selected)[index]) {
      add(tables.select_recompute, tables.select_recompute_exclude, layer.select);
    }
    add(tables.select_comm_recompute, tables.select_comm_recompute_exclude, layer.select_comm);
    add(tables.select_recompute_exclude, {}, layer.exclude);
    add(tables.select_comm_recompute_exclude, {}, layer.comm_exclude);
    layer.repeats_communication = config.mp_comm_recompute;
    layer.slices_input = config.recompute_slice_activation;
  });
}

// The keys of model_config.
void choose_by_granularity(const TransformerConfig& model,
                           const LayerTable& counts,
                           std::vector<LayerRecompute>& layers) {
  const std::string granularity =
      model.recompute_granularity.value_or(model.recompute_activations ? "selective" : "");
  const int64_t number = model.recompute_num_layers.value_or(1);
  for_each_layer(counts, [&](size_t index, size_t /*chunk*/, size_t /*stage*/, int64_t place) {
    LayerRecompute& layer = layers[index];
    if (granularity == "full") {
      const bool block = model.recompute_method == "block";
      layer.full = !block || place < number;
      layer.keeps_input = block || place % number == 0;
    }
    const auto add = [&](const std::vector<std::string>& patterns) {
      layer.select.insert(layer.select.end(), patterns.begin(), patterns.end());
    };
    if (granularity == "selective") {
      add(model.use_flash_attention ? kMlpActivations : kCoreAttention);
    }
    if (model.select_recompute && granularity != "selective") {
      add(model.use_flash_attention ? kMlpActivations : kCoreAttention);
    }
    if (model.select_comm_recompute) {
      layer.select_comm = kUsualCommunication;
    }
    layer.slices_input = model.distribute_saved_activations;
  });
}

}  // namespace

LayerTable normalised_layers(const std::string& key,
                             const RecomputeChoice& choice,
                             const LayerTable& counts) {
  return table_of(key, choice.value, counts);
}

std::vector<PatternLayers> normalised_patterns(const std::string& key,
                                               const RecomputeChoice& choice,
                                               const LayerTable& counts,
                                               const std::vector<std::string>& usual) {
  std::vector<PatternLayers> out;
  const Value& value = choice.value;
  if (value.is<Value::Map>()) {
    for (const auto& [pattern, layers] : value.as<Value::Map>()) {
      out.push_back({pattern, table_of(concat(key, ", ", pattern, ","), layers, counts)});
    }
    return out;
  }
  if (value.is<Value::List>() && !value.as<Value::List>().empty() &&
      value.as<Value::List>().front().is<std::string>()) {
    for (const Value& pattern : value.as<Value::List>()) {
      out.push_back({pattern.as<std::string>(), counts});
    }
    return out;
  }
  const LayerTable table = table_of(key, value, counts);
  for (const std::string& pattern : usual) {
    out.push_back({pattern, table});
  }
  return out;
}

RecomputeTables recompute_tables(const RecomputeConfig& config, const LayerTable& counts) {
  const auto patterns = [&](const char* key, const RecomputeChoice& choice,
                            const std::vector<std::string>& usual) {
    return normalised_patterns(key, choice, counts, usual);
  };
  RecomputeTables tables;
  tables.layer_recompute = normalised_layers("recompute", config.recompute, counts);
  tables.select_recompute =
      patterns("select_recompute",
               config.select_recompute_layers && config.select_recompute == RecomputeChoice{}
                   ? RecomputeChoice{true}
                   : config.select_recompute,
               kUsualOperations);
  tables.select_comm_recompute =
      patterns("select_comm_recompute", config.select_comm_recompute, kUsualCommunication);
  tables.select_recompute_exclude =
      patterns("select_recompute_exclude", config.select_recompute_exclude, kMlpActivations);
  tables.select_comm_recompute_exclude = patterns(
      "select_comm_recompute_exclude", config.select_comm_recompute_exclude, kUsualCommunication);
  return tables;
}

std::vector<LayerRecompute> layer_recompute(const AllConfig& config) {
  constexpr int64_t kMostLayers = 1'000'000;
  check<ValueError>(config.model_config.num_layers <= kMostLayers, "recomputation is for at most ",
                    kMostLayers, " layers, the model has ", config.model_config.num_layers);
  const LayerTable counts =
      layers_per_chunk(config.model_config.num_layers, config.parallel_config);
  std::vector<LayerRecompute> layers(static_cast<size_t>(config.model_config.num_layers));
  if (config.parallel_config.recompute_config) {
    choose_by_tables(*config.parallel_config.recompute_config, counts, layers);
  }
  if (!recomputes(layers)) {
    choose_by_granularity(config.model_config, counts, layers);
  }
  return layers;
}

bool recomputes(const std::vector<LayerRecompute>& layers) {
  return std::any_of(layers.begin(), layers.end(), [](const LayerRecompute& layer) {
    return layer.full || !layer.select.empty() || !layer.select_comm.empty() ||
           !layer.exclude.empty() || !layer.comm_exclude.empty();
  });
}

std::string layer_placement_text(const LayerTable& counts) {
  LayerTable ends = counts;
  int64_t end = 0;
  for (auto& row : ends) {
    for (int64_t& entry : row) {
      end += entry;
      entry = end;
    }
  }
  std::vector<int64_t> stages;
  std::vector<int64_t> chunks;
  for_each_layer(counts, [&](size_t /*layer*/, size_t chunk, size_t stage, int64_t /*place*/) {
    stages.push_back(static_cast<int64_t>(stage));
    chunks.push_back(static_cast<int64_t>(chunk));
  });
  return concat("num_layers per stage: ", list_text(counts),
                "\nAccumulated num_layers per stage: ", list_text(ends),
                "\nPipeline id list with start_stage: ", list_text(stages),
                "\nInterleave id list: ", list_text(chunks));
}

std::string formative_text(const RecomputeTables& tables) {
  std::string text =
      concat("Formative layer_recompute: ", list_text(tables.layer_recompute),
             "\nFormative select_recompute: ", patterns_text(tables.select_recompute),
             "\nFormative select_comm_recompute: ", patterns_text(tables.select_comm_recompute));
  const auto add = [&](const char* name, const std::vector<PatternLayers>& patterns) {
    const bool any = std::any_of(patterns.begin(), patterns.end(),
                                 [](const auto& entry) { return !is_empty(entry.layers); });
    text += any ? concat("\nFormative ", name, ": ", patterns_text(patterns)) : std::string();
  };
  add("select_recompute_exclude", tables.select_recompute_exclude);
  add("select_comm_recompute_exclude", tables.select_comm_recompute_exclude);
  return text;
}

std::string recompute_config_text(const AllConfig& config) {
  const std::optional<RecomputeConfig>& recompute = config.parallel_config.recompute_config;
  if (!recompute) {
    return {};
  }
  // A boolean in place of the block is one node, and so has one place.
  const auto place_of = [&](const char* key) {
    const auto origin = config.origins.find(key);
    return origin == config.origins.end() ? std::string() : origin->second.place;
  };
  const std::string place = place_of("parallel_config.recompute_config.recompute");
  if (!place.empty() && recompute->recompute.value.is<bool>() &&
      place == place_of("parallel_config.recompute_config") && !place.starts_with("--") &&
      *recompute == RecomputeConfig{.recompute = recompute->recompute}) {
    return {};
  }
  const RecomputeTables tables = recompute_tables(
      *recompute, layers_per_chunk(config.model_config.num_layers, config.parallel_config));
  std::string text = formative_text(tables);
  const auto add = [&](const char* name, const std::vector<PatternLayers>& selected,
                       const std::vector<PatternLayers>& excluded) {
    for (const PatternLayers& entry : selected) {
      if (!is_empty(entry.layers) && has_pattern(excluded, entry.pattern)) {
        text += concat("\n", name, ": '", entry.pattern,
                       "' is excluded too, and removed from the selection");
      }
    }
  };
  add("select_recompute", tables.select_recompute, tables.select_recompute_exclude);
  add("select_comm_recompute", tables.select_comm_recompute, tables.select_comm_recompute_exclude);
  return text;
}

std::vector<std::string> parts_of_pattern(const std::string& pattern) {
  std::vector<std::string> parts(1);
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern.compare(i, 2, "\\.") == 0) {
      parts.emplace_back();
      ++i;
    } else {
      parts.back() += pattern[i];
    }
  }
  return parts;
}

std::string complaint_of_pattern(const std::string& pattern) {
  for (const std::string& part : parts_of_pattern(pattern)) {
    if (part.empty()) {
      return concat("the pattern '", pattern, "' has an empty part");
    }
    if (const std::string reason = RegularExpression::complaint(part); !reason.empty()) {
      return concat("'", part, "' in the pattern '", pattern,
                    "' is no regular expression: ", reason);
    }
  }
  return {};
}

}  // namespace tapestry
