// W + s B A of one module, piece by piece.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "autograd/io/tensor_source.h"

namespace tapestry {

/// What an adapter adds to a matrix of a file, in float64.
class AdapterProduct {
 public:
  /// `stem` is the module's name in the adapter's file, prefix included; `transposed`: the base's
  /// file holds [in, out]. `out` and `in` are the matrix's sizes. Of so many stacked experts the
  /// adapter has A [experts rank, in], one expert's below another's, and B [out, rank experts],
  /// whose column j experts + e is e's j; it begins with the first one. ValueError, naming file and
  /// tensor, unless the adapter has A [rank, in] and B [out, rank], and with `dora` the magnitudes
  /// [out], all finite.
  AdapterProduct(const TensorSource& adapter,
                 const std::string& stem,
                 int64_t out,
                 int64_t in,
                 int64_t rank,
                 double scale,
                 bool dora,
                 bool transposed,
                 int64_t experts = 1);

  /// From here on the matrix of another expert. Not with `dora`.
  void choose(int64_t expert);

  /// Whether the lengths of rows have to be known before add_to: every row of the file was given to
  /// measure().
  bool needs_lengths() const { return dora_ && transposed_; }
  /// Adds the squares of W + s B A to the lengths, of rows [first, ...) of the file.
  void measure(std::span<double> rows, int64_t first);
  /// Rows [first, ...) of the file's matrix W, in place.
  void add_to(std::span<double> rows, int64_t first) const;

 private:
  void add_product(std::span<double> rows, int64_t first) const;

  int64_t rank_;
  int64_t in_;
  int64_t out_;
  int64_t experts_;
  int64_t columns_;  // of the file's matrix
  double scale_;
  bool dora_;
  bool transposed_;
  std::vector<double> a_;          // of all experts
  std::vector<double> b_;          // the same
  std::vector<double> left_;       // [rows of the file, rank], with the scale
  std::vector<double> right_;      // [rank, columns of the file]
  std::vector<double> magnitude_;  // [out]
  std::vector<double> squares_;    // [out], summed by measure()
};

}  // namespace tapestry
