#include "parallel_core/config/read/scalar_advice.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::config {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

bool remove_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) {
    return false;
  }
  text.remove_suffix(suffix.size());
  return true;
}

template <class Number>
std::optional<double> parsed(std::string_view text, Number number, auto... base) {
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, base...);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return static_cast<double>(number);
}

// A decimal number, or one with a prefix of its base.
std::optional<double> atom(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, int>, 3> kBases = {
      {{"0x", 16}, {"0o", 8}, {"0b", 2}}};
  for (const auto& [prefix, base] : kBases) {
    if (text.starts_with(prefix)) {
      return parsed(text.substr(prefix.size()), int64_t{}, base);
    }
  }
  if (!text.empty() && text.front() == '+') {
    text.remove_prefix(1);
  }
  const std::optional<double> number = parsed(text, double{});
  return number && std::isfinite(*number) ? number : std::nullopt;
}

std::optional<double> with_suffix(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 7> kSuffixes = {
      {{"%", 0.01}, {"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"B", 1e9}, {"f", 1}}};
  if (const std::optional<double> number = atom(text)) {
    return number;
  }
  for (const auto& [suffix, factor] : kSuffixes) {
    std::string_view rest = text;
    if (!text.starts_with("0x") && remove_suffix(rest, suffix)) {
      const std::optional<double> number = atom(rest);
      return number ? std::optional(*number * factor) : std::nullopt;
    }
  }
  return std::nullopt;
}

// Products and quotients of numbers and of powers, from the left.
std::optional<double> product(std::string_view text) {
  const size_t sign = text.find_last_of("*/");
  if (sign == std::string_view::npos) {
    const size_t power = text.find('^');
    if (power == std::string_view::npos) {
      return with_suffix(text);
    }
    const auto base = with_suffix(text.substr(0, power));
    const auto exponent = with_suffix(text.substr(power + 1));
    return base && exponent ? std::optional(std::pow(*base, *exponent)) : std::nullopt;
  }
  const auto left = product(text.substr(0, sign));
  const auto right = product(text.substr(sign + 1));
  if (!left || !right || (text[sign] == '/' && *right == 0)) {
    return std::nullopt;
  }
  return text[sign] == '*' ? *left * *right : *left / *right;
}

// Commas: of thousands where each is followed by three digits, one alone else stands for a point.
void treat_commas(std::string& text) {
  const auto thousands = [&](size_t at) {
    return at > 0 && is_digit(text[at - 1]) && at + 3 < text.size() && is_digit(text[at + 1]) &&
           is_digit(text[at + 2]) && is_digit(text[at + 3]) &&
           (at + 4 == text.size() || !is_digit(text[at + 4]));
  };
  bool all = true;
  for (size_t at = text.find(','); at != std::string::npos; at = text.find(',', at + 1)) {
    all = all && thousands(at) && text.front() != '0';
  }
  if (all) {
    std::erase(text, ',');
  } else if (std::count(text.begin(), text.end(), ',') == 1) {
    replace_all(text, ",", ".");
  }
}

std::string shown_number(double number, bool integer) {
  return integer ? std::to_string(static_cast<int64_t>(number)) : number_text(number);
}

bool is_integer_type(Type type) {
  return type == Type::kInt || type == Type::kIntList || type == Type::kLayerTable;
}
bool is_number_type(Type type) {
  return is_integer_type(type) || type == Type::kFloat || type == Type::kFloatList ||
         type == Type::kFloatTable;
}
bool is_list_type(Type type) {
  return type == Type::kIntList || type == Type::kFloatList || type == Type::kLayerTable ||
         type == Type::kFloatTable;
}

std::string written(const Key& key, const std::string& value) {
  return concat("`", last_name(key), ": ", value, "`");
}

std::string advice_on_number(const Key& key, const RawNode& node) {
  const bool integer = is_integer_type(key.field.type);
  if (is_list_type(key.field.type) && node.scalar.find_first_of(", ") != std::string::npos) {
    std::string items;
    for (const char c : node.scalar) {
      if (c != '(' && c != ')' && c != '[' && c != ']') {
        items += c;
      }
    }
    return concat("; write ", written(key, concat("[", items, "]")));
  }
  const std::optional<double> number = number_meant(node.scalar);
  if (!number || (integer && (*number != std::floor(*number) || std::abs(*number) > 9e15))) {
    return {};
  }
  const std::string text = shown_number(*number, integer);
  return concat("; write ", is_list_type(key.field.type) ? text : written(key, text), ": ",
                integer ? "integers" : "numbers", " are decimal");
}

std::string advice_on_boolean(const Key& key, const RawNode& node) {
  std::string word = node.scalar;
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::string_view kTrue[] = {"1", "t", "y", "enable", "enabled"};
  constexpr std::string_view kFalse[] = {"0", "f", "n", "none", "disable", "disabled"};
  const auto among = [&](const auto& words) {
    return std::find(std::begin(words), std::end(words), word) != std::end(words);
  };
  if (among(kTrue) || edit_distance(word, "true") <= 1) {
    return concat("; write ", written(key, "True"));
  }
  if (among(kFalse) || edit_distance(word, "false") <= 2) {
    return concat("; write ", written(key, "False"));
  }
  return {};
}

std::string advice_on_dtype(const Key& key, const RawNode& node) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kShort = {
      {{"bf16", "bfloat16"}, {"fp16", "float16"}, {"fp32", "float32"}}};
  std::string_view name = node.scalar;
  name.remove_prefix(name.rfind('.') == std::string_view::npos ? 0 : name.rfind('.') + 1);
  for (const auto& [other, ours] : kShort) {
    if (name == other || name == ours) {
      return concat("; write ", written(key, std::string(ours)));
    }
  }
  if (name == "half" || name == "float") {
    return concat("; write ", written(key, name == "half" ? "float16" : "float32"));
  }
  return {};
}

// What could have been meant by a scalar, whatever the key's type.
std::string advice_on_scalar(const Key& key, const RawNode& node) {
  const Type type = key.field.type;
  const bool wants_text = type == Type::kString || type == Type::kStringList;
  if (is_none(key, node)) {
    const std::string quoted = wants_text ? " (or \"None\", if that text is meant)" : "";
    return key.field.nullable || key.null == Null::kDefault
               ? concat("; Python's None is written null here", quoted)
               : concat("; null is no value of this key either", quoted, usual_value(key));
  }
  if (node.quoted && !wants_text && type != Type::kDType &&
      scalar_kind(node.scalar) != ScalarKind::kString) {
    return concat("; remove the quotes: ", written(key, node.scalar));
  }
  if (node.folded) {
    return concat("; the lines below it are read as part of it: begin them under the `",
                  last_name(key).substr(0, 1), "` of `", last_name(key),
                  "`, each with a key and a colon");
  }
  if (!key.check.choices.empty() && scalar_kind(node.scalar) != ScalarKind::kString) {
    return concat(
        "; write ",
        written(key, std::string(nearest(node.scalar, split_text(key.check.choices, '|')))));
  }
  if (!wants_text && (node.scalar.ends_with(',') || node.scalar.ends_with(';'))) {
    return concat("; remove the `", node.scalar.substr(node.scalar.size() - 1), "` at the end");
  }
  if (is_number_type(type)) {
    return advice_on_number(key, node);
  }
  if (type == Type::kBool) {
    return advice_on_boolean(key, node);
  }
  return type == Type::kDType ? advice_on_dtype(key, node) : std::string();
}

}  // namespace

std::optional<double> number_meant(std::string_view text) {
  std::string plain(text);
  for (const std::string_view minus : {"\u2212", "\u2013", "\u2014"}) {
    replace_all(plain, minus, "-");
  }
  replace_all(plain, "**", "^");
  std::erase(plain, ' ');
  std::erase(plain, '_');
  while (plain.ends_with(',') || plain.ends_with(';')) {
    plain.pop_back();
  }
  treat_commas(plain);
  return product(plain);
}

bool is_none(const Key& key, const RawNode& node) {
  if (node.kind != RawNode::Kind::kScalar || node.quoted || node.scalar != "None") {
    return false;
  }
  const auto choices = split_text(key.check.choices, '|');
  return std::find(choices.begin(), choices.end(), node.scalar) == choices.end();
}

std::string value_advice(const Key& key, const RawNode& node) {
  const std::string meant =
      node.kind == RawNode::Kind::kScalar ? advice_on_scalar(key, node) : std::string();
  return meant.empty() ? usual_value(key) : meant;
}

}  // namespace tapestry::config
