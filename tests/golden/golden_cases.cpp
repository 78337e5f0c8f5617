#include "tests/golden/golden_cases.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry::golden {

namespace {

using Json = nlohmann::json;

// Runs a conversion of nlohmann-json and says which attribute did not fit.
template <class T>
T converted(const Json& value, const std::string& key) {
  try {
    return value.get<T>();
  } catch (const Json::exception& e) {
    throw ValueError(concat("attribute ", key, ": ", value.dump(), ": ", e.what()));
  }
}

Case read_case(const Json& json) {
  Case out;
  out.name = json.at("case").get<std::string>();
  out.dtype = parse_dtype(json.at("dtype").get<std::string>());
  out.inputs = json.at("inputs").get<std::vector<std::string>>();
  out.differentiate = json.at("differentiate").get<std::vector<std::string>>();
  out.attributes = json.value("attrs", Json::object());
  out.layout = json.value("layout", Json::object());
  out.second_order = json.value("second_order", false);
  out.edge = json.value("edge", false);
  out.torch_float32_error = json.value("torch_float32_error", Json::object());
  return out;
}

}  // namespace

// ------------------------------------------------------------------------------------- attributes

Attributes::Attributes(Json values) : values_(std::move(values)) {}

const Json& Attributes::at(const std::string& key) const {
  read_.insert(key);
  check<ValueError>(values_.contains(key), "attribute ", key, " is missing");
  return values_.at(key);
}

bool Attributes::is_null(const std::string& key) const {
  if (!values_.contains(key)) {
    return true;
  }
  return at(key).is_null();
}

double Attributes::number(const std::string& key) const {
  const Json& value = at(key);
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    for (const auto& [name, special] : {std::pair<std::string_view, double>("inf", INFINITY),
                                        {"-inf", -INFINITY},
                                        {"nan", NAN}}) {
      if (text == name) {
        return special;
      }
    }
  }
  return converted<double>(value, key);
}

double Attributes::number(const std::string& key, double otherwise) const {
  return has(key) ? number(key) : otherwise;
}

int64_t Attributes::integer(const std::string& key) const {
  const Json& value = at(key);
  check<ValueError>(value.is_number_integer(), "attribute ", key, ": ", value.dump(),
                    " is not an integer");
  return value.get<int64_t>();
}

bool Attributes::flag(const std::string& key) const { return converted<bool>(at(key), key); }

bool Attributes::flag(const std::string& key, bool otherwise) const {
  return has(key) ? flag(key) : otherwise;
}

std::string Attributes::text(const std::string& key) const {
  return converted<std::string>(at(key), key);
}

Shape Attributes::integers(const std::string& key) const {
  if (is_null(key)) {
    return {};
  }
  const Json& value = at(key);
  if (value.is_number_integer()) {
    return {value.get<int64_t>()};
  }
  return Shape(std::span<const int64_t>(converted<std::vector<int64_t>>(value, key)));
}

std::vector<std::vector<int64_t>> Attributes::lists(const std::string& key) const {
  return converted<std::vector<std::vector<int64_t>>>(at(key), key);
}

void Attributes::expect(const std::string& key, std::string_view text_) const {
  if (has(key)) {
    check<ValueError>(text(key) == text_, "attribute ", key, ": '", text(key), "' is not '", text_,
                      "'");
  }
}

std::vector<std::string> Attributes::unread() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : values_.items()) {
    if (key != "note" && !read_.contains(key)) {
      out.push_back(key);
    }
  }
  return out;
}

// ------------------------------------------------------------------------------------------ files

std::vector<CaseFile> read_case_files(const std::string& directory) {
  namespace fs = std::filesystem;
  check<IoError>(fs::is_directory(directory), directory, ": is not a directory");
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".json") {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());

  std::vector<CaseFile> out;
  for (const fs::path& path : paths) {
    fs::path tensors = path;
    tensors.replace_extension(".safetensors");
    std::ifstream stream(path);
    const Json json = Json::parse(stream, nullptr, /*allow_exceptions=*/false);
    const bool has_cases = json.is_object() && json.contains("op") && json.contains("cases");
    if (!has_cases && !fs::exists(tensors)) {
      continue;  // a file beside the cases
    }
    check<IoError>(has_cases, path.string(), ": is not an object with \"op\" and \"cases\"");
    check<IoError>(fs::exists(tensors), path.string(), ": there is no ", tensors.string());
    CaseFile file;
    file.path = tensors.string();
    try {
      file.op = json.at("op").get<std::string>();
      for (const Json& entry : json.at("cases")) {
        file.cases.push_back(read_case(entry));
      }
    } catch (const std::exception& e) {
      throw IoError(concat(path.string(), ": case ", file.cases.size(), ": ", e.what()));
    }
    out.push_back(std::move(file));
  }
  return out;
}

Tensor read_tensor(const SafetensorsReader& reader, const std::string& key) {
  Tensor out = empty(reader.entry(key).shape, reader.dtype(key));
  reader.read(key, out.raw());
  return out;
}

// permuted, perm:       storage in the order of x permuted by perm
// strided, axis, step:  every step-th entry of an axis that is step times as long
// expanded, axis:       stride 0; all entries along the axis are equal
Tensor present(const Tensor& x, const Json& layout) {
  const NoGradGuard guard;
  if (layout.is_null()) {
    return x;
  }
  const auto kind = layout.at("kind").get<std::string>();
  if (kind == "permuted") {
    const auto perm = layout.at("perm").get<std::vector<int64_t>>();
    Shape inverse = Shape::filled(x.dim(), 0);
    for (size_t i = 0; i < perm.size(); ++i) {
      inverse[perm[i]] = static_cast<int64_t>(i);
    }
    return clone(permute(x, Shape(std::span<const int64_t>(perm)))).permute(inverse);
  }
  const auto axis = layout.at("axis").get<int64_t>();
  if (kind == "strided") {
    const auto step = layout.at("step").get<int64_t>();
    TensorList parts{x};
    for (int64_t i = 1; i < step; ++i) {
      parts.push_back(zeros_like(x));
    }
    return stack(parts, axis + 1).select(axis + 1, 0);
  }
  check<ValueError>(kind == "expanded", "layout kind '", kind, "' is not known");
  return clone(slice(x, axis, 0, 1)).expand(x.shape());
}

// ------------------------------------------------------------------------------------- comparison

double magnitude(const Tensor& x) {
  double largest = 0;
  for (const double value : x.to_vector<double>()) {
    largest = std::isfinite(value) ? std::max(largest, std::abs(value)) : largest;
  }
  return largest;
}

Distance compare(const Tensor& actual, const Tensor& expected, double scale, double bound) {
  if (!actual.defined()) {
    return {0, "there is no such result"};
  }
  if (actual.shape() != expected.shape() || actual.dtype() != expected.dtype()) {
    return {0, concat("is ", describe(actual), ", expected ", describe(expected))};
  }
  Distance out;
  const std::vector<double> a = actual.to_vector<double>();
  const std::vector<double> b = expected.to_vector<double>();
  const double unit = std::max(scale, 1e-30);
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(a[i]) && std::isfinite(b[i])) {
      const double distance = std::abs(a[i] - b[i]) / unit;
      const double limit = is_floating(actual.dtype()) ? bound : 0;
      if (distance > limit && out.problem.empty()) {
        out.problem = concat("element ", i, " of ", actual.shape(), " is ", a[i], ", expected ",
                             b[i], "; distance ", distance, " of the scale, allowed ", limit);
      }
      out.worst = std::max(out.worst, distance);
    } else if (!(std::isnan(a[i]) && std::isnan(b[i])) && a[i] != b[i] && out.problem.empty()) {
      out.problem =
          concat("element ", i, " of ", actual.shape(), " is ", a[i], ", expected ", b[i]);
    }
  }
  return out;
}

}  // namespace tapestry::golden
