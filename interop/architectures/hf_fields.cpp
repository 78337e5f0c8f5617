#include "interop/architectures/hf_fields.h"

#include <algorithm>
#include <set>
#include <utility>

namespace tapestry::hf {

namespace {

constexpr int kMaxDepth = 32;

// What a run may choose otherwise than the file.
bool is_free(const std::string& key) {
  for (const char* free :
       {"hf_model_type", "group_query_attention", "seq_length", "attention_dropout",
        "hidden_dropout", "init_method_std", "moe_router_bias_update_rate",
        "moe_router_load_balancing_type", "moe_aux_loss_coeff", "aux_loss_types",
        "aux_loss_factors", "expert_group_size", "moe_z_loss_coeff", "moe_input_jitter_eps",
        "moe_expert_capacity_factor", "moe_token_drop_policy", "mtp_num_layers"}) {
    if (key == free) {
      return true;
    }
  }
  return false;
}

}  // namespace

Json parse_strictly(const std::string& text, const std::string& file) {
  std::vector<std::set<std::string>> names;  // of the objects that are open
  const auto look = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    check<IoError>(depth <= kMaxDepth, file, ": is nested deeper than ", kMaxDepth, " levels");
    if (event == Json::parse_event_t::object_start) {
      names.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      names.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto name = parsed.get<std::string>();
      check<IoError>(names.back().insert(name).second, file, ": the key \"", name,
                     "\" is given twice");
    }
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, look);
  } catch (const Json::exception& error) {
    throw IoError(concat(file, ": is no JSON: ", error.what()));
  }
  check<IoError>(json.is_object(), file, ": expected a JSON object, got ", json.type_name());
  return json;
}

void Fields::finding(const std::string& name, const std::string& text) {
  std::string line = concat(out.file, ": ", name, ": ", text);
  if (std::find(findings.begin(), findings.end(), line) == findings.end()) {
    findings.push_back(std::move(line));
  }
}

Found<int64_t> Fields::size(const std::string& name, int64_t value) {
  Found<int64_t> found = take<int64_t>(name, value, &Json::is_number_integer, "an integer above 0");
  if (found.written && (found.value < 1 || found.value > kMaxSize)) {
    finding(name, concat("expected an integer from 1 to ", kMaxSize, ", got ", found.text));
    sizes_[name] = 1;
    return {1, found.text, true};
  }
  sizes_[name] = found.value;
  return found;
}

void Fields::set_value(const std::string& key,
                       config::Value value,
                       const std::string& name,
                       const std::string& shown,
                       bool written) {
  out.settings.push_back({key, std::move(value), name, shown, written, !is_free(key)});
}

void Fields::read_tie(bool by_default) {
  const Found<bool> tie = boolean("tie_word_embeddings", by_default);
  set_value("untie_embeddings_and_output_weights", config::Value(!tie.value), "tie_word_embeddings",
            tie.text, tie.written);
}

void Fields::read_token_ids(const TokenIds& defaults) {
  const auto is_id = [](const Json& json) {
    return json.is_number_integer() && json.get<int64_t>() >= 0;
  };
  const auto one = [&](const char* name, std::optional<int64_t> id) -> std::optional<int64_t> {
    const Json* found = find(name);
    if (found == nullptr) {
      return has(name) ? std::nullopt : id;
    }
    if (is_id(*found)) {
      return found->get<int64_t>();
    }
    // -1 stands for none in some files.
    if (!found->is_number_integer()) {
      finding(name, concat("expected an id, got ", found->dump()));
    }
    return std::nullopt;
  };
  TokenIds& ids = out.token_ids;
  ids.bos = one("bos_token_id", defaults.bos);
  ids.pad = one("pad_token_id", defaults.pad);
  const Json* eos = find("eos_token_id");
  if (eos != nullptr && eos->is_array()) {
    if (std::all_of(eos->begin(), eos->end(), is_id)) {
      ids.eos = eos->get<std::vector<int64_t>>();
    } else {
      finding("eos_token_id", concat("expected an id or a list of ids, got ", eos->dump()));
    }
    return;
  }
  if (!has("eos_token_id")) {
    ids.eos = defaults.eos;
    return;
  }
  const auto first = defaults.eos.empty() ? std::nullopt : std::optional(defaults.eos.front());
  if (const auto id = one("eos_token_id", first)) {
    ids.eos = {*id};
  }
}

}  // namespace tapestry::hf
