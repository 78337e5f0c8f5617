#include "parallel_core/config/read/parse_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "autograd/tensor/error.h"
#include "parallel_core/config/read/scalar_advice.h"
#include "parallel_core/config/yaml/expand_path.h"

namespace tapestry::config {
namespace {

std::string describe(const RawNode& node) {
  switch (node.kind) {
    case RawNode::Kind::kNull:
      return "null";
    case RawNode::Kind::kList:
      return "a list";
    case RawNode::Kind::kMap:
      return "a mapping";
    case RawNode::Kind::kScalar:
      break;
  }
  std::string shown = node.scalar.size() > 60 ? node.scalar.substr(0, 60) + "..." : node.scalar;
  if (node.quoted) {
    return "the string \"" + shown + "\"";
  }
  switch (scalar_kind(node.scalar)) {
    case ScalarKind::kBool:
      return "the boolean " + shown;
    case ScalarKind::kInt:
    case ScalarKind::kFloat:
      return "the number " + shown;
    default:
      return "the string '" + shown + "'";
  }
}

// Quotation marks that an editor put in place of YAML's.
bool has_typographic_quotes(const RawNode& node) {
  const std::string_view text = node.scalar;
  for (const std::string_view mark : {"\u201c", "\u201d", "\u201e", "\u2018", "\u2019", "\u00ab"}) {
    if (!node.quoted && text.starts_with(mark)) {
      return true;
    }
  }
  return false;
}

// The node on one line, as it could have been written.
std::string flow_text(const RawNode& node) {
  std::string text;
  switch (node.kind) {
    case RawNode::Kind::kNull:
      return "null";
    case RawNode::Kind::kScalar:
      return node.scalar;
    case RawNode::Kind::kList:
      for (const RawNode& item : node.items) {
        text += (text.empty() ? "" : ", ") + flow_text(item);
      }
      return "[" + text + "]";
    case RawNode::Kind::kMap:
      for (const auto& [name, value] : node.entries) {
        text += concat(text.empty() ? "" : ", ", name.scalar, ": ", flow_text(value));
      }
      return "{" + text + "}";
  }
  return text;
}

// Reads nodes; the first thing that does not fit is kept in error.
class Reader {
 public:
  Reader(const Key& key, std::string& error) : key_(key), error_(error) {}

  Value fail(std::string_view expected, const RawNode& node) {
    if (error_.empty()) {
      error_ = concat("expected ", expected, ", got ", describe(node), value_advice(key_, node));
    }
    return {};
  }

  // Octal to some readers of YAML, decimal to others.
  static bool has_leading_zero(std::string_view digits) {
    digits.remove_prefix(digits.starts_with('+') || digits.starts_with('-') ? 1 : 0);
    return digits.size() > 1 && digits.front() == '0';
  }

  ScalarKind kind(const RawNode& node) const {
    return node.kind != RawNode::Kind::kScalar || node.quoted ? ScalarKind::kString
                                                              : scalar_kind(node.scalar);
  }

  Value boolean(const RawNode& node) {
    if (kind(node) != ScalarKind::kBool) {
      return fail("a boolean (True or False)", node);
    }
    const char first = node.scalar[0];
    const char second = node.scalar[1];
    return {first == 't' || first == 'T' || first == 'y' || first == 'Y' ||
            ((first == 'o' || first == 'O') && (second == 'n' || second == 'N'))};
  }

  Value integer(const RawNode& node) {
    if (kind(node) != ScalarKind::kInt) {
      return fail("an integer", node);
    }
    if (has_leading_zero(node.scalar)) {
      return fail("an integer without leading zeros", node);
    }
    const char* begin = node.scalar.data() + (node.scalar[0] == '+' ? 1 : 0);
    int64_t number = 0;
    if (std::from_chars(begin, node.scalar.data() + node.scalar.size(), number).ec != std::errc()) {
      return fail("an integer of at most 64 bits", node);
    }
    return {number};
  }

  Value floating(const RawNode& node) {
    const ScalarKind type = kind(node);
    if (type != ScalarKind::kInt && type != ScalarKind::kFloat) {
      return fail("a number", node);
    }
    const char* begin = node.scalar.data() + (node.scalar[0] == '+' ? 1 : 0);
    const char* end = node.scalar.data() + node.scalar.size();
    double number = 0;
    const auto result = std::from_chars(begin, end, number);
    if (result.ec != std::errc() || result.ptr != end || !std::isfinite(number)) {
      return fail("a finite number that a double can hold", node);
    }
    return {number};
  }

  Value numbers_as_text(const RawNode& text) {
    const RawNode node = unquoted(text);
    if (node.kind != RawNode::Kind::kList) {
      const ScalarKind type = kind(node);
      const bool is_number = type == ScalarKind::kInt || type == ScalarKind::kFloat;
      return is_number ? Value{node.scalar} : string(node);
    }
    std::string joined;
    for (const RawNode& entry : node.items) {
      const ScalarKind type = kind(entry);
      if (type != ScalarKind::kInt && type != ScalarKind::kFloat) {
        return fail("numbers", entry);
      }
      joined += (joined.empty() ? "" : ",") + entry.scalar;
    }
    return {joined};
  }

  Value string(const RawNode& node) {
    if (node.kind != RawNode::Kind::kScalar) {
      return fail("a string", node);
    }
    if (kind(node) != ScalarKind::kString) {
      return fail(key_.check.choices.empty()
                      ? "a string (write \"" + node.scalar + "\" if that text is meant)"
                      : check_text(key_),
                  node);
    }
    if (is_none(key_, node)) {
      return fail("a string", node);
    }
    if (has_typographic_quotes(node)) {
      return fail("a string in straight quotes (\") or without any", node);
    }
    for (const std::string_view alias : split_text(key_.value_aliases, '|')) {
      const size_t equals = alias.find('=');
      if (alias.substr(0, equals) == node.scalar) {
        return {std::string(alias.substr(equals + 1))};
      }
    }
    return {scalar_text(node)};
  }

  // What a scalar says; of a path, with the environment's values in it.
  std::string scalar_text(const RawNode& node) {
    return key_.path && error_.empty() ? expand_path(node.scalar, error_) : node.scalar;
  }

  Value dtype(const RawNode& node) {
    if (node.kind == RawNode::Kind::kScalar &&
        (node.scalar == "float16" || node.scalar == "bfloat16" || node.scalar == "float32")) {
      return {node.scalar};
    }
    return fail("one of float16, bfloat16, float32", node);
  }

  // A list may also be written as a text: "[1, 2]".
  RawNode unquoted(const RawNode& node) {
    if (node.kind == RawNode::Kind::kScalar && !node.scalar.empty() &&
        (node.scalar[0] == '[' || (node.scalar[0] == '{' && key_.field.type == Type::kRecompute))) {
      std::vector<std::string> errors;
      RawNode list = parse_yaml(node.scalar, node.place, /*fixed_place=*/true, errors);
      if (errors.empty()) {
        return list;
      }
    }
    return node;
  }

  template <class Item>
  Value list(const RawNode& text, std::string_view expected, Item item) {
    const RawNode node = unquoted(text);
    Value::List items;
    if (node.kind == RawNode::Kind::kScalar) {
      items.push_back(item(node));
    } else if (node.kind == RawNode::Kind::kList) {
      for (const RawNode& entry : node.items) {
        items.push_back(item(entry));
      }
    } else {
      return fail(expected, node);
    }
    return {std::move(items)};
  }

  Value layer_table(const RawNode& node) {
    const std::string expected = type_text(key_);
    return list(node, expected, [&](const RawNode& entry) {
      if (entry.kind != RawNode::Kind::kList) {
        return integer(entry);
      }
      return list(entry, expected, [this](const RawNode& number) { return integer(number); });
    });
  }

  Value float_table(const RawNode& text) {
    const RawNode node = unquoted(text);
    const bool rows = !node.items.empty() && node.items.front().kind == RawNode::Kind::kList;
    return list(node, type_text(key_), [&](const RawNode& entry) -> Value {
      if ((entry.kind == RawNode::Kind::kList) != rows) {
        return fail(rows ? "lists of numbers" : "numbers", entry);
      }
      if (!rows) {
        return floating(entry);
      }
      Value::List row;
      append_numbers(entry, row);
      return {std::move(row)};
    });
  }

  // Those of lists within, too: [[a, b, c], 8].
  void append_numbers(const RawNode& node, Value::List& row) {
    for (const RawNode& entry : node.items) {
      if (entry.kind == RawNode::Kind::kList) {
        append_numbers(entry, row);
      } else {
        row.push_back(floating(entry));
      }
    }
  }

  // A boolean, numbers per stage, or rows of numbers; null: none of these.
  Value layer_counts(const RawNode& node) {
    const ScalarKind type = kind(node);
    if (node.kind == RawNode::Kind::kScalar) {
      return type == ScalarKind::kBool ? boolean(node) : Value{};
    }
    if (node.kind != RawNode::Kind::kList) {
      return {};
    }
    const bool rows = std::any_of(node.items.begin(), node.items.end(), [](const RawNode& item) {
      return item.kind == RawNode::Kind::kList;
    });
    const auto cell = [this](const RawNode& item) {
      return kind(item) == ScalarKind::kBool  ? boolean(item)
             : kind(item) == ScalarKind::kInt ? integer(item)
                                              : Value{};
    };
    Value::List out;
    for (const RawNode& item : node.items) {
      Value entry;
      if (item.kind == RawNode::Kind::kList) {
        Value::List row;
        for (const RawNode& number : item.items) {
          row.push_back(cell(number));
          if (row.back().is_null()) {
            return {};
          }
        }
        entry = row.empty() ? Value{} : Value{std::move(row)};
      } else {
        entry = cell(item);
      }
      if (entry.is_null() || (rows && entry.is<int64_t>())) {
        return {};
      }
      out.push_back(std::move(entry));
    }
    return {std::move(out)};
  }

  // Patterns, each for every layer, or a mapping from patterns to layers; null: neither.
  Value layer_patterns(const RawNode& node) {
    const auto is_pattern = [this](const RawNode& item) {
      return item.kind == RawNode::Kind::kScalar && kind(item) == ScalarKind::kString &&
             !item.scalar.empty();
    };
    if (node.kind == RawNode::Kind::kList && !node.items.empty()) {
      Value::List list;
      for (const RawNode& item : node.items) {
        if (!is_pattern(item)) {
          return {};
        }
        list.push_back({item.scalar});
      }
      return {std::move(list)};
    }
    if (node.kind != RawNode::Kind::kMap) {
      return {};
    }
    Value::Map map;
    for (const auto& [name, value] : node.entries) {
      Value counts = layer_counts(unquoted(value));
      if (counts.is_null()) {
        return {};
      }
      map.emplace_back(name.scalar, std::move(counts));
    }
    return {std::move(map)};
  }

  Value recompute(const RawNode& text) {
    const RawNode node = unquoted(text);
    Value value = layer_counts(node);
    if (value.is_null() && last_name(key_) != "recompute") {
      value = layer_patterns(node);
    }
    if (value.is_null() && error_.empty()) {
      error_ = concat("Illegal input list for select_recompute: ", flow_text(node));
    }
    return value;
  }

  // Prefixes and weights, also as pairs: [[0.3, a], [0.7, b]].
  Value string_list(const RawNode& text) {
    const RawNode node = unquoted(text);
    Value::List items;
    const auto add = [&](const RawNode& entry) {
      if (entry.kind != RawNode::Kind::kScalar || is_none(key_, entry) ||
          has_typographic_quotes(entry)) {
        fail("strings", entry);
        return;
      }
      items.push_back({scalar_text(entry)});
    };
    if (node.kind == RawNode::Kind::kScalar) {
      return {Value::List{string(node)}};
    }
    if (node.kind != RawNode::Kind::kList) {
      return fail(type_text(key_), node);
    }
    for (const RawNode& entry : node.items) {
      if (entry.kind == RawNode::Kind::kList) {
        if (entry.items.size() != 2) {
          return fail("pairs of a weight and a prefix", entry);
        }
        add(entry.items[0]);
        add(entry.items[1]);
      } else {
        add(entry);
      }
    }
    return {std::move(items)};
  }

  Value initializer(const RawNode& node) {
    const ScalarKind type = kind(node);
    return type == ScalarKind::kInt || type == ScalarKind::kFloat ? floating(node) : string(node);
  }

  Value switch_or_name(const RawNode& node) {
    const bool is_switch = node.kind == RawNode::Kind::kScalar && kind(node) == ScalarKind::kBool;
    return is_switch ? boolean(node) : string(node);
  }

  // Whatever stands there: a scalar as YAML reads it, a list or a mapping.
  Value any(const RawNode& node) {
    switch (node.kind) {
      case RawNode::Kind::kNull:
        return {};
      case RawNode::Kind::kList: {
        Value::List items;
        for (const RawNode& item : node.items) {
          items.push_back(any(item));
        }
        return {std::move(items)};
      }
      case RawNode::Kind::kMap: {
        Value::Map map;
        for (const auto& [name, value] : node.entries) {
          map.emplace_back(name.scalar, any(value));
        }
        return {std::move(map)};
      }
      case RawNode::Kind::kScalar:
        break;
    }
    switch (kind(node)) {
      case ScalarKind::kBool:
        return boolean(node);
      case ScalarKind::kInt:
        return integer(node);
      case ScalarKind::kFloat:
        return floating(node);
      default:
        return has_typographic_quotes(node) ? string(node) : Value{node.scalar};
    }
  }

  Value options(const RawNode& node) {
    return node.kind == RawNode::Kind::kMap ? any(node) : fail("a mapping", node);
  }

  Value lora_targets(const RawNode& node) {
    if (node.kind != RawNode::Kind::kList || node.items.empty()) {
      return fail("a list of mappings", node);
    }
    Value::List list;
    int patterns = 0;
    for (const RawNode& item : node.items) {
      if (item.kind != RawNode::Kind::kMap || item.entries.empty()) {
        return fail("a mapping", item);
      }
      Value::Map map;
      bool has_cell = false;
      for (const auto& [name, value] : item.entries) {
        if (name.scalar == "target_cells" && item.entries.size() == 1) {
          ++patterns;
          map.emplace_back(name.scalar, string_list(value));
          if (value.items.empty()) {
            return fail("a list of regular expressions in target_cells", value);
          }
        } else if (name.scalar == "cell") {
          has_cell = true;
          map.emplace_back(name.scalar, string(value));
        } else if (name.scalar == "rank") {
          map.emplace_back(name.scalar, integer(value));
        } else if (name.scalar == "alpha") {
          map.emplace_back(name.scalar, floating(value));
        } else {
          return fail("the entries target_cells (alone), cell, rank, alpha", name);
        }
      }
      if (!has_cell && map.front().first != "target_cells") {
        return fail("an entry `cell` beside rank and alpha", item);
      }
      list.push_back({std::move(map)});
    }
    if (patterns != 1) {
      return fail("exactly one entry {target_cells: [...]}", node);
    }
    return {std::move(list)};
  }

 private:
  const Key& key_;
  std::string& error_;
};

}  // namespace

Value parse_value(const Key& key, const RawNode& node, std::string& error) {
  Reader reader(key, error);
  if (node.kind == RawNode::Kind::kNull) {
    if (key.null == Null::kDefault) {
      return default_value(key);
    }
    return key.field.nullable ? Value{} : reader.fail(type_text(key), node);
  }
  const auto read = [&]() -> Value {
    switch (key.field.type) {
      case Type::kBool:
        return reader.boolean(node);
      case Type::kInt:
        return reader.integer(node);
      case Type::kFloat:
        return reader.floating(node);
      case Type::kString:
        return key.numbers_as_text ? reader.numbers_as_text(node) : reader.string(node);
      case Type::kDType:
        return reader.dtype(node);
      case Type::kIntList:
        return reader.list(node, type_text(key),
                           [&](const RawNode& n) { return reader.integer(n); });
      case Type::kFloatList:
        return reader.list(node, type_text(key),
                           [&](const RawNode& n) { return reader.floating(n); });
      case Type::kStringList:
        return reader.string_list(node);
      case Type::kLayerTable:
        return reader.layer_table(node);
      case Type::kFloatTable:
        return reader.float_table(node);
      case Type::kRecompute:
        return reader.recompute(node);
      case Type::kSwitchOrName:
        return reader.switch_or_name(node);
      case Type::kInitializer:
        return reader.initializer(node);
      case Type::kLoraTargets:
        return reader.lora_targets(node);
      case Type::kMapping:
        return {Value::Map{}};
      case Type::kOptions:
        return reader.options(node);
    }
    return {};
  };
  Value value = read();
  return error.empty() ? value : Value{};
}

}  // namespace tapestry::config
