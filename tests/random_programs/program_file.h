// Random programs as generate.py writes them; README.md has the language.
#pragma once

#include <cstdint>
#include <istream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry::random_programs {

/// "f32" as the programs name it.
DType dtype_from(const std::string& name);
std::string short_name(DType dtype);

/// key=value pairs of a statement. std::out_of_range, naming the key, if one is missing.
class Attributes {
 public:
  void set(const std::string& key, const std::string& value) { values_[key] = value; }
  bool has(const std::string& key) const { return values_.contains(key); }
  const std::string& text(const std::string& key) const;
  int64_t integer(const std::string& key) const { return std::stoll(text(key)); }
  int64_t integer(const std::string& key, int64_t otherwise) const {
    return has(key) ? integer(key) : otherwise;
  }
  std::optional<int64_t> find_integer(const std::string& key) const;
  double real(const std::string& key) const { return std::stod(text(key)); }
  double real(const std::string& key, double otherwise) const {
    return has(key) ? real(key) : otherwise;
  }
  bool flag(const std::string& key) const { return integer(key, 0) != 0; }
  Shape shape(const std::string& key) const;

 private:
  std::map<std::string, std::string> values_;
};

struct Leaf {
  std::string name;
  DType dtype = kFloat32;
  Shape shape;
  std::optional<Strides> strides;  ///< of memory with gaps; none: dense
  int64_t offset = 0;
  bool grad = false;
  std::vector<double> values;
};

/// A tensor, or the gradient of one, as PyTorch has it after a statement.
struct Expectation {
  std::string key;  ///< "t1" or "t1.grad"
  bool defined = true;
  std::string dtype;
  Shape shape;
  std::string flags;  ///< of "rl": requires_grad, is_leaf; "?": not to be compared
  double bound = 0;   ///< of the distance of an element
  std::vector<double> values;
};

struct Statement {
  std::string text;
  std::string op;
  std::vector<std::string> results;
  std::vector<std::string> inputs;
  Attributes attributes;
  std::vector<Expectation> expectations;  ///< of what the statement makes or changes
  std::string refusal;                    ///< what PyTorch's refusal is about; empty: none
};

struct Program {
  int64_t seed = 0;
  std::vector<Leaf> leaves;
  std::vector<Statement> statements;
};

/// std::runtime_error, naming the line, if the text is not in the language.
std::vector<Program> read_programs(std::istream& in);

}  // namespace tapestry::random_programs
