#include "interop/architectures/hf_fields.h"

#include <set>

namespace tapestry::hf {

namespace {

constexpr int kMaxDepth = 32;

// What a run may choose otherwise than the file.
bool is_free(const std::string& key) {
  for (const char* free :
       {"group_query_attention", "seq_length", "attention_dropout", "hidden_dropout",
        "init_method_std", "moe_router_bias_update_rate", "moe_router_load_balancing_type",
        "moe_aux_loss_coeff", "aux_loss_types", "aux_loss_factors", "expert_group_size",
        "moe_z_loss_coeff", "moe_input_jitter_eps", "moe_expert_capacity_factor",
        "moe_token_drop_policy"}) {
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

Found<int64_t> Fields::size(const std::string& name, int64_t value) {
  Found<int64_t> found = take<int64_t>(name, value, &Json::is_number_integer, "an integer above 0");
  if (found.written && (found.value < 1 || found.value > kMaxSize)) {
    finding(name, concat("expected an integer from 1 to ", kMaxSize, ", got ", found.text));
    return {1, found.text, true};
  }
  return found;
}

void Fields::set_value(const std::string& key,
                       config::Value value,
                       const std::string& name,
                       const std::string& shown,
                       bool written) {
  out_.settings.push_back({key, std::move(value), name, shown, written, !is_free(key)});
}

}  // namespace tapestry::hf
