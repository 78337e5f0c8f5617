#include "nn/random_rows.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/generator.h"
#include "nn/parameter_runs.h"

namespace tapestry::nn {

namespace {

using kernels::RandomRows;

// How the elements of a slice lie in the whole logical tensor: `width` of them together.
class RowsInWhole {
 public:
  explicit RowsInWhole(const LogicalTensor& logical)
      : whole_(logical.shape),
        slice_(logical.local_shape()),
        offset_(logical.offset.empty() ? Shape::filled(whole_.size(), 0) : logical.offset) {
    // Up to the last axis that is cut: axes behind it are in the slice as a whole.
    int64_t axis = whole_.size();
    while (axis > 0 && slice_[axis - 1] == whole_[axis - 1]) {
      --axis;
    }
    for (int64_t i = std::max<int64_t>(axis - 1, 0); i < whole_.size(); ++i) {
      width_ *= slice_[i];
    }
  }

  int64_t width() const { return width_; }
  /// Position in the whole of the slice's element `number`.
  int64_t position(int64_t number) const {
    int64_t position = 0;
    int64_t scale = 1;
    for (int64_t axis = whole_.size() - 1; axis >= 0; --axis) {
      position += (offset_[axis] + number % slice_[axis]) * scale;
      scale *= whole_[axis];
      number /= slice_[axis];
    }
    return position;
  }

 private:
  const Shape& whole_;
  const Shape& slice_;
  Shape offset_;
  int64_t width_ = 1;
};

// Some elements of one row.
struct Piece {
  int64_t begin;
  int64_t size;
  RandomRows rows;
};

// True if the piece goes on where `last` ends, which then has it as well.
bool goes_on(Piece& last, const Piece& piece) {
  const int64_t column = piece.rows.within;
  const bool fits = last.begin + last.size == piece.begin &&
                    last.rows.stream == piece.rows.stream && last.rows.width == piece.rows.width;
  const int64_t position = piece.begin - last.begin + last.rows.within;
  const int64_t row = position / last.rows.width;
  if (!fits || position % last.rows.width != column) {
    return false;
  }
  const int64_t distance = piece.rows.first - last.rows.first;
  if (row == 1 && last.rows.stride == 0) {
    last.rows.stride = distance;  // the second row says how far apart they are
  }
  if (distance != row * last.rows.stride) {
    return false;
  }
  last.size += piece.size;
  return true;
}

void add_pieces(const LogicalTensor& logical,
                int64_t first,
                int64_t count,
                std::vector<Piece>& pieces) {
  const uint64_t stream = stream_of(logical.name);
  const RowsInWhole whole(logical);
  const auto add = [&](int64_t number, int64_t element, int64_t size) {
    for (int64_t done = 0; done < size;) {
      const int64_t within = (number + done) % whole.width();
      const int64_t left = std::min(whole.width() - within, size - done);
      const int64_t begin = element + done - first;
      const Piece piece = {begin, left,
                           RandomRows{.begin = begin,
                                      .stream = stream,
                                      .first = whole.position(number + done - within),
                                      .within = within,
                                      .width = whole.width()}};
      if (pieces.empty() || !goes_on(pieces.back(), piece)) {
        pieces.push_back(piece);
      }
      done += left;
    }
  };
  const ElementRange range = range_in_part(logical, first, count);
  if (range.size() > 0) {
    for_each_parameter_run(logical, range, add);
  }
}

}  // namespace

std::vector<RandomRows> random_rows(std::string_view parameter_name,
                                    std::span<const LogicalTensor> logical,
                                    int64_t first,
                                    int64_t count) {
  if (logical.empty()) {
    return {{.stream = stream_of(parameter_name), .first = first}};
  }
  std::vector<Piece> pieces;
  for (const LogicalTensor& tensor : logical) {
    add_pieces(tensor, first, count, pieces);
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  const uint64_t own = combine(stream_of(parameter_name), stream_of("padding"));
  std::vector<RandomRows> rows;
  int64_t end = 0;
  const auto fill_up_to = [&](int64_t begin) {
    if (end < begin) {
      rows.push_back({.begin = end, .stream = own, .first = first + end});
    }
  };
  for (const Piece& piece : pieces) {
    fill_up_to(piece.begin);
    rows.push_back(piece.rows);
    end = piece.begin + piece.size;
  }
  fill_up_to(count);
  return rows;
}

std::vector<RandomRows> in_stream(std::vector<RandomRows> rows, uint64_t stream) {
  for (RandomRows& entry : rows) {
    entry.stream = combine(entry.stream, stream);
  }
  return rows;
}

}  // namespace tapestry::nn
