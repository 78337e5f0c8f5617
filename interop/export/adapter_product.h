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
  /// Which one of how many stacked experts: the file has A [count rank, in], one expert's below
  /// another's, and B [out, rank count], whose column j count + number is this one's j.
  struct Expert {
    int64_t number = 0;
    int64_t count = 1;
  };

  /// `stem` is the module's name in the adapter's file, prefix included; `transposed`: the base's
  /// file holds [in, out]. `out` and `in` are the matrix's sizes. ValueError, naming file and
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
                 Expert expert);

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
  int64_t columns_;  // of the file's matrix
  bool dora_;
  bool transposed_;
  std::vector<double> left_;       // [rows of the file, rank], with the scale
  std::vector<double> right_;      // [rank, columns of the file]
  std::vector<double> magnitude_;  // [out]
  std::vector<double> squares_;    // [out], summed by measure()
};

}  // namespace tapestry
