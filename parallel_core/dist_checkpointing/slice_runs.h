// A rank's part of a logical tensor as runs of elements that lie together in a file. Elements of
// its slice are numbered as in nn/parameter_runs.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "interop/architectures/file_place.h"
#include "nn/parameter_runs.h"

namespace tapestry {

using nn::ElementRange;

/// `count` elements that lie one after the other in a file, from its tensor's element `element` on.
/// In the slice they are number, number + stride, and so on.
struct FileRun {
  int64_t number = 0;
  int64_t stride = 1;
  int64_t count = 0;
  int64_t element = 0;
};

/// Cuts a range of the slice into such runs.
class FileRuns {
 public:
  FileRuns(const nn::LogicalTensor& logical, const FilePlace& place);

  template <class Visit>
  void for_each(ElementRange range, Visit&& visit) const {
    if (range.size() <= 0) {
      return;
    }
    if (place_.strides) {
      visit_elements(range, visit);
      return;
    }
    if (!place_.transposed) {
      visit_rows(range, visit);
      return;
    }
    // Whole rows together, whose columns lie together in the file; what is left of the first and
    // of the last row element by element.
    const ElementRange whole = {(range.begin + columns_ - 1) / columns_, range.end / columns_};
    if (whole.size() <= 0) {
      visit_elements(range, visit);
      return;
    }
    visit_elements({range.begin, whole.begin * columns_}, visit);
    for (int64_t column = 0; column < columns_; ++column) {
      visit(FileRun{.number = whole.begin * columns_ + column,
                    .stride = columns_,
                    .count = whole.size(),
                    .element = element_of(whole.begin * columns_ + column)});
    }
    visit_elements({whole.end * columns_, range.end}, visit);
  }

 private:
  template <class Visit>
  void visit_rows(ElementRange range, Visit&& visit) const {
    for (int64_t number = range.begin; number < range.end;) {
      const int64_t count = std::min(together_from(number), range.end - number);
      visit(FileRun{.number = number, .count = count, .element = element_of(number)});
      number += count;
    }
  }
  template <class Visit>
  void visit_elements(ElementRange range, Visit&& visit) const {
    for (int64_t number = range.begin; number < range.end; ++number) {
      visit(FileRun{.number = number, .count = 1, .element = element_of(number)});
    }
  }
  // The file's element of a number.
  int64_t element_of(int64_t number) const;
  // How many elements from this one on lie together.
  int64_t together_from(int64_t number) const {
    if (row_ == 0) {
      return together_ - number % together_;
    }
    const int64_t left_of_block = place_.block - (offset_[0] + number / row_) % place_.block;
    return left_of_block * row_ - number % row_;
  }

  FilePlace place_;
  Shape slice_;
  Shape offset_;          // of the slice in the file's tensor, with the logical tensor's axes
  int64_t columns_ = 1;   // last axis of the slice
  int64_t together_ = 1;  // elements of the slice that lie together in the file
  int64_t row_ = 0;       // elements of a whole row, where rows lie together in blocks; else 0
};

}  // namespace tapestry
