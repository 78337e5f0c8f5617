#include "tests/random_programs/program_file.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace tapestry::random_programs {

namespace {

constexpr std::array<std::pair<const char*, DType>, 6> kDTypes{{{"f64", kFloat64},
                                                                {"f32", kFloat32},
                                                                {"bf16", kBFloat16},
                                                                {"i64", kInt64},
                                                                {"i32", kInt32},
                                                                {"bool", kBool}}};

using Words = std::vector<std::string>;

Words split_words(const std::string& line) {
  std::istringstream in(line);
  Words words;
  for (std::string word; in >> word;) {
    words.push_back(word);
  }
  return words;
}

Shape parse_shape(const std::string& text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') {
    throw std::invalid_argument("not a list: " + text);
  }
  std::istringstream in(text.substr(1, text.size() - 2));
  Shape shape;
  for (std::string item; std::getline(in, item, ',');) {
    shape.push_back(std::stoll(item));
  }
  return shape;
}

std::vector<double> parse_values(const Words& words, size_t from) {
  std::vector<double> values;
  for (size_t i = from; i < words.size(); ++i) {
    values.push_back(std::stod(words[i]));
  }
  return values;
}

// leaf NAME DTYPE SHAPE [strides LIST offset N] [grad] values NUMBER...
Leaf parse_leaf(const Words& words) {
  Leaf leaf;
  leaf.name = words.at(1);
  leaf.dtype = dtype_from(words.at(2));
  leaf.shape = parse_shape(words.at(3));
  size_t i = 4;
  if (words.at(i) == "strides") {
    leaf.strides = parse_shape(words.at(i + 1));
    leaf.offset = std::stoll(words.at(i + 3));
    i += 4;
  }
  if (words.at(i) == "grad") {
    leaf.grad = true;
    ++i;
  }
  leaf.values = parse_values(words, i + 1);
  if (words[i] != "values" || static_cast<int64_t>(leaf.values.size()) != leaf.shape.numel()) {
    throw std::invalid_argument("not the values of a leaf");
  }
  return leaf;
}

// [RESULT... =] OP [INPUT | KEY=VALUE]...
Statement parse_statement(const std::string& line, const Words& words) {
  Statement statement;
  statement.text = line;
  auto word = words.begin();
  if (const auto equals = std::find(words.begin(), words.end(), "="); equals != words.end()) {
    statement.results.assign(words.begin(), equals);
    word = equals + 1;
  }
  if (word == words.end()) {
    throw std::invalid_argument("no op");
  }
  statement.op = *word++;
  for (; word != words.end(); ++word) {
    if (const size_t equals = word->find('='); equals != std::string::npos) {
      statement.attributes.set(word->substr(0, equals), word->substr(equals + 1));
    } else {
      statement.inputs.push_back(*word);
    }
  }
  return statement;
}

// KEY none | KEY DTYPE SHAPE FLAGS BOUND NUMBER...
Expectation parse_expectation(const Words& words) {
  Expectation expected;
  expected.key = words.at(0);
  expected.defined = words.at(1) != "none";
  if (expected.defined) {
    expected.dtype = words.at(1);
    expected.shape = parse_shape(words.at(2));
    expected.flags = words.at(3);
    expected.bound = std::stod(words.at(4));
    expected.values = parse_values(words, 5);
    if (static_cast<int64_t>(expected.values.size()) != expected.shape.numel()) {
      throw std::invalid_argument("not as many values as elements");
    }
  }
  return expected;
}

void parse_line(const std::string& line, std::vector<Program>& programs) {
  const Words words = split_words(line);
  if (words.empty()) {
    return;
  }
  if (words[0] == "program") {
    programs.emplace_back().seed = std::stoll(words.at(1));
    return;
  }
  if (programs.empty()) {
    throw std::invalid_argument("no program has begun");
  }
  Program& program = programs.back();
  if (line.starts_with("  ")) {
    if (program.statements.empty()) {
      throw std::invalid_argument("no statement to expect something of");
    }
    Statement& statement = program.statements.back();
    if (words[0] == "refused") {
      statement.refusal = words.at(1);
    } else {
      statement.expectations.push_back(parse_expectation(words));
    }
  } else if (words[0] == "leaf") {
    program.leaves.push_back(parse_leaf(words));
  } else {
    program.statements.push_back(parse_statement(line, words));
  }
}

}  // namespace

DType dtype_from(const std::string& name) {
  for (const auto& [known, dtype] : kDTypes) {
    if (name == known) {
      return dtype;
    }
  }
  throw std::invalid_argument("unknown dtype " + name);
}

std::string short_name(DType dtype) {
  for (const auto& [name, known] : kDTypes) {
    if (dtype == known) {
      return name;
    }
  }
  return "other";
}

const std::string& Attributes::text(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    throw std::out_of_range("no attribute " + key);
  }
  return found->second;
}

std::optional<int64_t> Attributes::find_integer(const std::string& key) const {
  return has(key) ? std::optional(integer(key)) : std::nullopt;
}

Shape Attributes::shape(const std::string& key) const { return parse_shape(text(key)); }

std::vector<Program> read_programs(std::istream& in) {
  std::vector<Program> programs;
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    try {
      parse_line(line, programs);
    } catch (const std::logic_error& error) {
      throw std::runtime_error("line " + std::to_string(number) + ": " + error.what() + ": " +
                               line);
    }
  }
  return programs;
}

}  // namespace tapestry::random_programs
