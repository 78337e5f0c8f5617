// Golden cases of operations: files of inputs and expected results, and how near is near enough.
//
// A directory holds pairs NAME.json and NAME.safetensors. The JSON file is {"op", "cases": [...]};
// a case has `case` (prefix of its keys in the safetensors file), `dtype`, `inputs`,
// `differentiate`, `attrs` and maybe `layout`, `second_order`, `edge`, `note`,
// `torch_float32_error`. Keys:
//   P.input.X               logical values of input X, row-major
//   P.output[.NAME]         result
//   P.grad_output[.NAME]    upstream gradient
//   P.grad.X                sum of upstream gradient times d output / d X
//   P.probe.X               weights of the second order: s = sum over X of grad.X * probe.X
//   P.grad2.X, P.grad2.grad_output[.NAME]   derivatives of s
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/io/safetensors.h"
#include "autograd/tensor/tensor.h"

namespace tapestry::golden {

/// The keyword arguments of a case. Every one has to be asked for: a key that nobody read is an
/// argument that was ignored.
class Attributes {
 public:
  explicit Attributes(nlohmann::json values);

  bool has(const std::string& key) const { return values_.contains(key) && !is_null(key); }
  /// ValueError if the key is missing or has another type.
  double number(const std::string& key) const;  ///< also "inf", "-inf", "nan"
  double number(const std::string& key, double otherwise) const;
  int64_t integer(const std::string& key) const;
  bool flag(const std::string& key) const;
  bool flag(const std::string& key, bool otherwise) const;
  std::string text(const std::string& key) const;
  /// A list of integers; one integer counts as a list of one, null and a missing key as empty.
  Shape integers(const std::string& key) const;
  std::vector<std::vector<int64_t>> lists(const std::string& key) const;
  /// ValueError unless the key is missing or has exactly this text.
  void expect(const std::string& key, std::string_view text) const;
  /// True if it is a text. Does not count as reading it.
  bool is_text(const std::string& key) const {
    return values_.contains(key) && values_.at(key).is_string();
  }
  /// null, or missing.
  bool is_null(const std::string& key) const;

  /// Keys that were never read; "note" does not count.
  std::vector<std::string> unread() const;

 private:
  const nlohmann::json& at(const std::string& key) const;

  nlohmann::json values_;
  mutable std::set<std::string> read_;
};

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// One case as it stands in the files.
struct Case {
  std::string name;  ///< "case_007"
  DType dtype = kFloat32;
  std::vector<std::string> inputs;
  std::vector<std::string> differentiate;
  nlohmann::json attributes;
  nlohmann::json layout;
  bool second_order = false;
  bool edge = false;
  nlohmann::json torch_float32_error;  ///< by key
};

/// The cases of one operation.
struct CaseFile {
  std::string op;
  std::string path;  ///< of the safetensors file
  std::vector<Case> cases;
};

/// All pairs of the directory, sorted by name; other files are passed over. IoError if it is no
/// directory or one of a pair is missing or malformed.
std::vector<CaseFile> read_case_files(const std::string& directory);

/// A tensor of the file, contiguous. ValueError if it is not there.
Tensor read_tensor(const SafetensorsReader& reader, const std::string& key);

/// The same values on the storage that `layout` describes (null: contiguous): "permuted", "strided"
/// or "expanded", as golden_cases.cpp says. ValueError for another kind.
Tensor present(const Tensor& x, const nlohmann::json& layout);

/// Outcome of one comparison.
struct Distance {
  double worst = 0;     ///< max |difference| / scale over finite entries
  std::string problem;  ///< empty if the values agree
};

/// Compares values with a bound on max |difference| / scale. Shapes, dtypes, integers and the kind
/// of non-finite entries have to be equal.
Distance compare(const Tensor& actual, const Tensor& expected, double scale, double bound);

/// The largest |finite value|; 0 if there is none.
double magnitude(const Tensor& x);

}  // namespace tapestry::golden
