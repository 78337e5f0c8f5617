#include "diagnosis/accuracy/tensor_pairs.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::accuracy {
namespace {

using dump::DumpRow;
using dump::LogicalTensor;

constexpr std::string_view kModuleType = "Module";
constexpr std::string_view kValueType = "Value";
constexpr std::string_view kParameterType = "Parameter";
constexpr std::string_view kScalarType = "Scalar";

/// The value that a tensor of a module or op is by the user's map. A name alone stands for what the
/// module gives, its first output, and in backward for the gradient of that, which arrives as the
/// first input of the op; its other tensors are named as reports do, "NAME input 0".
std::optional<std::string> mapped_value(const DumpRow& row, const NameMap& map) {
  const bool is_result = row.slot == 0 && row.input == (row.pass == "backward");
  return is_result ? map.find(row.op_name)
                   : map.find(concat(row.op_name, row.input ? " input " : " output ", row.slot));
}

/// What a tensor is called, and which of the runs under that name.
using ExactKey = std::tuple<std::string, std::string, std::string, bool, int64_t, int64_t>;
using ValueKey = std::pair<std::string, int64_t>;

/// The tensors of one dump by each way of naming them.
class NamedTensors {
 public:
  NamedTensors(const std::vector<LogicalTensor>& tensors, const NameMap& map, bool has_gate) {
    std::set<std::string> with_second_output;
    for (const LogicalTensor& tensor : tensors) {
      const DumpRow& row = tensor.row();
      if (row.op_type == kModuleType && !row.input && row.slot == 1) {
        with_second_output.insert(row.op_name);
      }
    }
    std::map<ExactKey, int64_t> runs;
    for (const LogicalTensor& tensor : tensors) {
      const DumpRow& row = tensor.row();
      const std::string name = map.apply(row.op_name);
      ExactKey key = {row.op_type, name, row.pass, row.input, row.slot, 0};
      std::get<5>(key) = runs[key]++;
      exact_.emplace(key, &tensor);
      keys_.push_back(std::move(key));
      std::vector<NamedValue>& values = values_.emplace_back();
      if (row.op_type == kValueType || row.op_type == kParameterType) {
        if (row.op_type == kValueType || name != row.op_name) {
          values.push_back({name});
        }
      } else if (const auto mapped = mapped_value(row, map)) {
        values.push_back({*mapped});
      } else if (row.op_type == kModuleType && name == row.op_name) {
        values = named_values(
            {name, row.input, row.slot, has_gate, with_second_output.contains(row.op_name)});
      }
      if (row.op_type == kParameterType) {
        const auto [prefix, parameter] = split_prefix(name);
        parameters_.emplace(name, &tensor);
        parameter_names_.insert(parameter);
      }
    }
    // What a dump itself calls a value comes before what a table says of its modules.
    for (const bool own : {true, false}) {
      std::map<std::string, int64_t> counts;
      std::set<std::string> named;
      for (size_t i = 0; i < tensors.size(); ++i) {
        for (const NamedValue& value : values_[i]) {
          const bool is_own = value.cut == Cut::kNone && value.name == std::get<1>(keys_[i]);
          if (is_own == own) {
            const int64_t run = counts[value.name + " " + std::get<1>(keys_[i])]++;
            by_value_.try_emplace({value.name, run},
                                  TensorSide{&tensors[i], value.cut, value.part, std::nullopt});
          }
        }
      }
    }
  }

  static std::pair<std::string, std::string> split_prefix(const std::string& name) {
    const size_t slash = name.rfind('/');
    return slash == std::string::npos
               ? std::make_pair(std::string(), name)
               : std::make_pair(name.substr(0, slash + 1), name.substr(slash + 1));
  }

  const ExactKey& key(size_t i) const { return keys_[i]; }
  const LogicalTensor* find(const ExactKey& key) const {
    const auto found = exact_.find(key);
    return found == exact_.end() ? nullptr : found->second;
  }
  const std::map<ValueKey, TensorSide>& by_value() const { return by_value_; }
  const std::map<std::string, const LogicalTensor*>& parameters() const { return parameters_; }
  NameScheme scheme() const { return name_scheme(parameter_names_); }

 private:
  std::vector<ExactKey> keys_;
  std::vector<std::vector<NamedValue>> values_;
  std::map<ExactKey, const LogicalTensor*> exact_;
  std::map<ValueKey, TensorSide> by_value_;
  std::map<std::string, const LogicalTensor*> parameters_;
  std::set<std::string> parameter_names_;
};

bool is_named_by_layout(const DumpRow& row) {
  return row.op_type != kValueType && row.op_type != kParameterType && row.op_type != kScalarType;
}

std::string_view without_gradients(std::string_view name) {
  constexpr std::string_view kGradients = "Gradients/";
  return name.starts_with(kGradients) ? name.substr(kGradients.size()) : name;
}

/// What the names of ops and modules of a dump stand for: "mul-op0" is the first product in its
/// module, so it is another one where other ops run there; and a module whose arguments are others
/// (a norm that adds the residual before, and one that does not) is another one under the same
/// name.
class ProgramShape {
 public:
  explicit ProgramShape(const std::vector<LogicalTensor>& tensors) {
    std::set<std::string_view> seen;
    for (const LogicalTensor& tensor : tensors) {
      const DumpRow& row = tensor.row();
      if (!row.samples.empty()) {
        for (const dump::StoredTensor& part : tensor.parts()) {
          splits_.insert(part.row.samples);
        }
      }
      if (!is_named_by_layout(row)) {
        continue;
      }
      const std::string_view name = without_gradients(row.op_name);
      if (row.op_type == kModuleType) {
        slots_[name].emplace(row.op_name != name, row.input, row.slot);
      } else if (!row.source.empty() && row.pass == "forward" && seen.insert(name).second) {
        ops_[row.module].emplace_back(name);
        types_.insert(row.op_type);
        type_of_[name] = row.op_type;
      }
    }
  }

  /// Whether steps are cut into the same micro-batches.
  bool has_split_of(const ProgramShape& other) const { return splits_ == other.splits_; }

  /// Whether a tensor that both sides have under one name is the same one. With `chosen_ops`, as a
  /// dump has not written all ops, types that only one side has say nothing.
  bool is_same(const DumpRow& row, const ProgramShape& other, bool chosen_ops) const {
    if (!is_named_by_layout(row)) {
      return true;
    }
    const std::string_view name = without_gradients(row.op_name);
    if (row.op_type == kModuleType && !has_slots_of(other, name)) {
      return false;
    }
    return (row.op_type != kModuleType && row.source.empty()) ||
           ops_of(row.module, other, chosen_ops) == other.ops_of(row.module, *this, chosen_ops);
  }

 private:
  using Slots = std::set<std::tuple<bool, bool, int64_t>>;  // in backward, input, slot

  std::vector<std::string_view> ops_of(const std::string& module,
                                       const ProgramShape& other,
                                       bool chosen_ops) const {
    std::vector<std::string_view> out;
    if (const auto found = ops_.find(module); found != ops_.end()) {
      for (const std::string_view name : found->second) {
        if (!chosen_ops || other.types_.contains(type_of_.at(name))) {
          out.push_back(name);
        }
      }
    }
    return out;
  }

  /// A side that wrote inputs alone, or outputs, says nothing of the others.
  bool has_slots_of(const ProgramShape& other, std::string_view name) const {
    const auto ours = slots_.find(name);
    const auto theirs = other.slots_.find(name);
    if (ours == slots_.end() || theirs == other.slots_.end()) {
      return true;
    }
    const auto common = [](const Slots& of, const Slots& with) {
      Slots out;
      for (const auto& slot : of) {
        const auto kind = [&](const auto& each) {
          return std::get<0>(each) == std::get<0>(slot) && std::get<1>(each) == std::get<1>(slot);
        };
        if (!std::get<0>(slot) && std::any_of(with.begin(), with.end(), kind)) {
          out.insert(slot);
        }
      }
      return out;
    };
    return common(ours->second, theirs->second) == common(theirs->second, ours->second);
  }

  std::set<std::vector<int64_t>> splits_;
  std::map<std::string, std::vector<std::string_view>, std::less<>> ops_;  // by module, in order
  std::set<std::string> types_;
  std::map<std::string_view, std::string> type_of_;
  std::map<std::string_view, Slots> slots_;
};

bool has_gate(const std::vector<LogicalTensor>& tensors, const NameMap& map) {
  for (const LogicalTensor& tensor : tensors) {
    const std::string name = map.apply(tensor.row().op_name);
    if (name.ends_with(".mlp.gate") || name.ends_with(".mlp.gate_proj")) {
      return true;
    }
  }
  return false;
}

/// The parameter of the other program that holds the logical one, and where.
std::optional<TensorSide> parameter_at(const std::string& name,
                                       const Shape& shape,
                                       NameScheme scheme,
                                       const NamedTensors& other) {
  const auto [prefix, logical] = NamedTensors::split_prefix(name);
  FilePlace place = file_place(FileNames(scheme), logical, shape);
  const auto found = other.parameters().find(prefix + place.name);
  if (found == other.parameters().end() || !(found->second->row().global_shape == place.shape)) {
    return std::nullopt;
  }
  return TensorSide{found->second, Cut::kNone, 0, std::move(place)};
}

/// Collects pairs, each tensor of ours at most once per way of naming it.
class PairCollector {
 public:
  PairCollector(const std::vector<LogicalTensor>& ours, const std::vector<LogicalTensor>& expected)
      : ours_(ours), expected_(expected) {}

  void add(const TensorSide& ours, const TensorSide& expected) {
    paired_.insert(ours.tensor);
    paired_.insert(expected.tensor);
    pairs_.emplace(index_of(ours), TensorPair{ours, expected});
  }
  bool is_paired(const LogicalTensor* tensor) const { return paired_.contains(tensor); }
  /// Not to be compared, and not missing on a side either.
  void leave_out(const LogicalTensor& ours, const LogicalTensor& expected, bool other_split) {
    paired_.insert(&ours);
    paired_.insert(&expected);
    (other_split ? other_split_ : other_ops_).push_back(ours.row().op_name);
  }

  TensorPairs result() const {
    TensorPairs out;
    out.other_ops = other_ops_;
    out.other_split = other_split_;
    for (const auto& [index, pair] : pairs_) {
      out.pairs.push_back(pair);
    }
    for (const LogicalTensor& tensor : ours_) {
      if (!is_paired(&tensor)) {
        out.only_ours.push_back(tensor.row().op_name);
      }
    }
    for (const LogicalTensor& tensor : expected_) {
      if (!is_paired(&tensor)) {
        out.only_expected.push_back(tensor.row().op_name);
      }
    }
    return out;
  }

 private:
  size_t index_of(const TensorSide& side) const {
    return static_cast<size_t>(side.tensor - ours_.data());
  }

  const std::vector<LogicalTensor>& ours_;
  const std::vector<LogicalTensor>& expected_;
  std::set<const LogicalTensor*> paired_;
  std::multimap<size_t, TensorPair> pairs_;
  std::vector<std::string> other_ops_;
  std::vector<std::string> other_split_;
};

}  // namespace

TensorPairs pair_tensors(const std::vector<LogicalTensor>& ours,
                         const std::vector<LogicalTensor>& expected,
                         const NameMap& map,
                         bool chosen_ops) {
  const NameMap no_map;
  const bool gated = has_gate(ours, no_map) || has_gate(expected, map);
  const NamedTensors our_names(ours, no_map, gated);
  const NamedTensors expected_names(expected, map, gated);
  PairCollector collector(ours, expected);

  const ProgramShape our_shape(ours);
  const ProgramShape expected_shape(expected);
  const bool same_split = our_shape.has_split_of(expected_shape);
  for (size_t i = 0; i < ours.size(); ++i) {
    const LogicalTensor* same = expected_names.find(our_names.key(i));
    if (same == nullptr) {
      continue;
    }
    const DumpRow& row = ours[i].row();
    const bool of_samples = !row.samples.empty() && !same->row().samples.empty();
    if (!same_split && is_named_by_layout(row) && !of_samples) {
      collector.leave_out(ours[i], *same, /*other_split=*/true);
    } else if (!our_shape.is_same(row, expected_shape, chosen_ops)) {
      collector.leave_out(ours[i], *same, /*other_split=*/false);
    } else {
      collector.add({&ours[i]}, {same});
    }
  }
  for (const auto& [name, our_side] : our_names.by_value()) {
    const auto found = expected_names.by_value().find(name);
    if (found != expected_names.by_value().end() && !collector.is_paired(our_side.tensor)) {
      collector.add(our_side, found->second);
    }
  }
  const NameScheme our_scheme = our_names.scheme();
  const NameScheme expected_scheme = expected_names.scheme();
  if (our_scheme != expected_scheme) {
    const bool ours_is_logical = our_scheme == NameScheme::kLogical;
    const NamedTensors& logical = ours_is_logical ? our_names : expected_names;
    const NamedTensors& other = ours_is_logical ? expected_names : our_names;
    const NameScheme scheme = ours_is_logical ? expected_scheme : our_scheme;
    const bool readable = ours_is_logical || expected_scheme == NameScheme::kLogical;
    for (const auto& [name, tensor] : logical.parameters()) {
      if (!readable || scheme == NameScheme::kModules || collector.is_paired(tensor)) {
        continue;
      }
      if (const auto side = parameter_at(name, tensor->row().global_shape, scheme, other)) {
        ours_is_logical ? collector.add({tensor}, *side) : collector.add(*side, {tensor});
      }
    }
  }
  return collector.result();
}

}  // namespace tapestry::accuracy
