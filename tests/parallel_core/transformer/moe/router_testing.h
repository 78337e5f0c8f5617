// What the tests of routers share: stored cases, and routers made by hand.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/transformer/moe/router.h"

namespace tapestry::testing {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// tests/data/moe_routing/cases.json, which make_cases.py beside it writes.
const nlohmann::json& routing_cases();

/// The numbers of a list, or of a list of lists one after the other; "nan" is NaN.
inline std::vector<double> numbers_of(const nlohmann::json& json) {
  std::vector<double> out;
  for (const nlohmann::json& entry : json) {
    if (entry.is_array()) {
      const std::vector<double> inner = numbers_of(entry);
      out.insert(out.end(), inner.begin(), inner.end());
    } else {
      out.push_back(entry.is_string() ? std::numeric_limits<double>::quiet_NaN()
                                      : entry.get<double>());
    }
  }
  return out;
}

template <class T>
std::vector<T> converted(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}
template <class T>
std::vector<T> list_of(const nlohmann::json& json) {
  return converted<T>(numbers_of(json));
}

/// A model of E channels, so that a router whose weight is the identity has its input as logits.
TransformerConfig config_of(const nlohmann::json& settings);

/// A router that reads logits, with the case's bias and counts of the step before. `config` is
/// config_of(settings), perhaps with more.
std::unique_ptr<TopKRouter> router_of_case(const nlohmann::json& settings,
                                           const TransformerConfig& config,
                                           bool sequence_first = false);
inline std::unique_ptr<TopKRouter> router_of_case(const nlohmann::json& settings) {
  return router_of_case(settings, config_of(settings));
}

/// All tokens of `rows` sequences on one rank.
inline GroupTokens all_tokens(int64_t rows, int64_t seq_length) {
  GroupTokens out = {.total = rows * seq_length, .rows = rows, .seq_length = seq_length};
  out.numbers.resize(static_cast<size_t>(out.total));
  std::iota(out.numbers.begin(), out.numbers.end(), 0);
  return out;
}

inline Tensor buffer_of(const nn::Module& module, const std::string& name) {
  for (const nn::Module::NamedBuffer& entry : module.named_buffers()) {
    if (entry.name == name) {
      return entry.buffer;
    }
  }
  return {};
}

inline void set_values(const Tensor& target, const std::vector<double>& values) {
  copy_values(tensor(values, target.shape()), target);
}

/// The weight of gate i of the loss that cases differentiate.
inline double probe_of(int64_t gate) { return static_cast<double>((7 * gate) % 11 - 5) / 4; }

}  // namespace tapestry::testing
