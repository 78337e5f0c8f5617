#include "autograd/tensor/print.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>
#include <sstream>
#include <vector>

#include "autograd/kernels/machine/dispatch.h"

namespace tapestry {

namespace {

constexpr int64_t kSummaryThreshold = 1000;
constexpr int64_t kEdgeItems = 3;
constexpr int64_t kLineWidth = 80;

// What is shown: positions along an axis, -1 for the gap.
std::vector<int64_t> shown(int64_t size, bool summarise) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < size; ++i) {
    if (summarise && size > 2 * kEdgeItems && i == kEdgeItems) {
      out.push_back(-1);
      i = size - kEdgeItems;
    }
    out.push_back(i);
  }
  return out;
}

class Printer {
 public:
  Printer(std::ostream& out, const Tensor& tensor)
      : out_(out), tensor_(tensor), summarise_(tensor.numel() > kSummaryThreshold) {
    collect(0, tensor.offset());
    format();
  }

  void print() {
    out_ << "tensor(";
    if (tensor_.numel() == 0) {
      out_ << "[]";
    } else {
      print_axis(0, tensor_.offset(), 8);
    }
    if (summarise_ || (tensor_.numel() == 0 && tensor_.shape() != Shape{0})) {
      out_ << ", shape=" << tensor_.shape();
    }
    if (tensor_.dtype() != kFloat32) {
      out_ << ", dtype=" << name_of(tensor_.dtype());
    }
    if (tensor_.requires_grad()) {
      out_ << ", requires_grad=True";
    }
    out_ << ")";
  }

 private:
  double real(int64_t offset) const {
    return dispatch_all(tensor_.dtype(), [&]<class T>() -> double {
      const T value = (static_cast<const T*>(tensor_.raw()) - tensor_.offset())[offset];
      if constexpr (sizeof(T) == 2) {
        return static_cast<float>(value);
      } else {
        return static_cast<double>(value);
      }
    });
  }

  // The numbers that are shown decide about the notation.
  void collect(int64_t axis, int64_t offset) {
    if (axis == tensor_.dim()) {
      values_.push_back(real(offset));
      offsets_.push_back(offset);
      return;
    }
    for (const int64_t i : shown(tensor_.shape()[axis], summarise_)) {
      if (i >= 0) {
        collect(axis + 1, offset + i * tensor_.strides()[axis]);
      }
    }
  }

  void format() {
    double largest = 0;
    double smallest = INFINITY;
    for (const double value : values_) {
      if (std::isfinite(value)) {
        whole_ = whole_ && value == std::trunc(value);
        if (value != 0) {
          largest = std::max(largest, std::abs(value));
          smallest = std::min(smallest, std::abs(value));
        }
      }
    }
    scientific_ = largest > 1e8 || (!whole_ && (smallest < 1e-4 || largest / smallest > 1000));
    for (const int64_t offset : offsets_) {
      width_ = std::max(width_, text(offset).size());
    }
  }

  std::string text(int64_t offset) const {
    const DType dtype = tensor_.dtype();
    const auto value_as = [&]<class T>(T /*type*/) {
      return (static_cast<const T*>(tensor_.raw()) - tensor_.offset())[offset];
    };
    if (dtype == kBool) {
      return value_as(bool{}) ? "True" : "False";
    }
    if (dtype == kInt8) {
      return std::to_string(value_as(int8_t{}));
    }
    if (dtype == kUInt8) {
      return std::to_string(value_as(uint8_t{}));
    }
    if (dtype == kInt32) {
      return std::to_string(value_as(int32_t{}));
    }
    if (dtype == kInt64) {
      return std::to_string(value_as(int64_t{}));
    }
    const double value = real(offset);
    if (std::isnan(value)) {
      return "nan";
    }
    if (std::isinf(value)) {
      return value > 0 ? "inf" : "-inf";
    }
    std::ostringstream out;
    if (scientific_) {
      out << std::scientific << std::setprecision(4) << value;
    } else if (whole_) {
      out << std::fixed << std::setprecision(0) << value << '.';
    } else {
      out << std::fixed << std::setprecision(4) << value;
    }
    return out.str();
  }

  void print_value(int64_t offset) {
    out_ << std::setw(tensor_.dim() > 0 ? static_cast<int>(width_) : 0) << text(offset);
  }

  void print_axis(int64_t axis, int64_t offset, int64_t indent) {
    if (axis == tensor_.dim()) {
      print_value(offset);
      return;
    }
    const bool last = axis == tensor_.dim() - 1;
    const int64_t per_line =
        std::max<int64_t>(1, (kLineWidth - indent) / (static_cast<int64_t>(width_) + 2));
    out_ << '[';
    int64_t count = 0;
    for (const int64_t i : shown(tensor_.shape()[axis], summarise_)) {
      if (count > 0) {
        out_ << ',';
        const int64_t breaks = last ? (count % per_line == 0 ? 1 : 0) : tensor_.dim() - 1 - axis;
        if (breaks > 0) {
          out_ << std::string(static_cast<size_t>(breaks), '\n')
               << std::string(static_cast<size_t>(indent), ' ');
        } else {
          out_ << ' ';
        }
      }
      if (i < 0) {
        out_ << "...";
      } else {
        print_axis(axis + 1, offset + i * tensor_.strides()[axis], indent + 1);
      }
      ++count;
    }
    out_ << ']';
  }

  std::ostream& out_;
  const Tensor& tensor_;
  bool summarise_;
  std::vector<double> values_;
  std::vector<int64_t> offsets_;
  bool whole_ = true;
  bool scientific_ = false;
  size_t width_ = 0;
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  if (!tensor.defined()) {
    return out << "undefined";
  }
  // In a stream of its own, so that the caller's flags neither matter nor change.
  std::ostringstream text;
  Printer(text, tensor).print();
  return out << text.str();
}

}  // namespace tapestry
