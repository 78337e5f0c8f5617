#include "parallel_core/config/yaml/raw_json.h"

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config {

namespace {

RawNode scalar_node(std::string text, const Place& place, bool quoted = false) {
  return {
      .kind = RawNode::Kind::kScalar, .scalar = std::move(text), .quoted = quoted, .place = place};
}

RawNode node_of(const nlohmann::json& json,
                const Place& place,
                int depth,
                std::vector<std::string>& errors) {
  RawNode node{.place = place};
  if (depth > kMaxYamlDepth) {
    errors.push_back(
        concat(place.text(), ": nesting deeper than ", kMaxYamlDepth, " levels is refused"));
    return node;
  }
  switch (json.type()) {
    case nlohmann::json::value_t::object:
      node.kind = RawNode::Kind::kMap;
      for (const auto& [key, value] : json.items()) {
        node.entries.push_back({scalar_node(key, place), node_of(value, place, depth + 1, errors)});
      }
      return node;
    case nlohmann::json::value_t::array:
      node.kind = RawNode::Kind::kList;
      for (const nlohmann::json& item : json) {
        node.items.push_back(node_of(item, place, depth + 1, errors));
      }
      return node;
    case nlohmann::json::value_t::string:
      return scalar_node(json.get<std::string>(), place, /*quoted=*/true);
    case nlohmann::json::value_t::boolean:
      return scalar_node(json.get<bool>() ? "True" : "False", place);
    case nlohmann::json::value_t::number_float:
      return scalar_node(number_text(json.get<double>()), place);
    case nlohmann::json::value_t::number_integer:
    case nlohmann::json::value_t::number_unsigned:
      return scalar_node(json.dump(), place);
    default:
      return node;  // null; binary and discarded values are none of a dictionary
  }
}

}  // namespace

RawNode raw_node(const nlohmann::json& json, const Place& place, std::vector<std::string>& errors) {
  return node_of(json, place, 0, errors);
}

}  // namespace tapestry::config
