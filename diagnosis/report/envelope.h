// A long series of numbers in little memory.
#pragma once

#include <cstdint>
#include <vector>

#include "diagnosis/report/plot/curves.h"

namespace tapestry::report {

/// Keeps of each of at most `kCells` stretches of a series the lowest and the highest value,
/// however long it becomes, and exactly the first, last and highest one. Values that are not finite
/// are counted alone.
class Envelope {
 public:
  static constexpr size_t kCells = 128;

  /// x ascends.
  void add(double x, double y);
  /// Forgets values from x on. Of the stretch that x lies in, what is kept of later values goes.
  void cut(double x);

  bool empty() const { return cells_.empty(); }
  int64_t not_finite() const { return not_finite_; }
  plot::Point first() const { return first_; }
  plot::Point last() const { return last_; }
  plot::Point highest() const;
  /// Ascending x.
  plot::Points points() const;

 private:
  struct Cell {
    plot::Point low;
    plot::Point high;
    int64_t count = 0;
  };
  void merge_pairs();

  std::vector<Cell> cells_;
  int64_t values_a_cell_ = 1;
  int64_t not_finite_ = 0;
  plot::Point first_;
  plot::Point last_;
};

}  // namespace tapestry::report
