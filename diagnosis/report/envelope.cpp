#include "diagnosis/report/envelope.h"

#include <algorithm>
#include <cmath>

namespace tapestry::report {

void Envelope::add(double x, double y) {
  if (!std::isfinite(y)) {
    ++not_finite_;
    return;
  }
  const plot::Point point{x, y};
  if (cells_.empty()) {
    first_ = point;
  }
  last_ = point;
  if (!cells_.empty() && cells_.back().count < values_a_cell_) {
    Cell& cell = cells_.back();
    cell.low = y < cell.low.y ? point : cell.low;
    cell.high = y > cell.high.y ? point : cell.high;
    ++cell.count;
    return;
  }
  if (cells_.size() == kCells) {
    merge_pairs();
  }
  cells_.push_back({point, point, 1});
}

void Envelope::merge_pairs() {
  for (size_t i = 0; i < kCells / 2; ++i) {
    const Cell& a = cells_[2 * i];
    const Cell& b = cells_[2 * i + 1];
    cells_[i] = {a.low.y <= b.low.y ? a.low : b.low, a.high.y >= b.high.y ? a.high : b.high,
                 a.count + b.count};
  }
  cells_.resize(kCells / 2);
  values_a_cell_ *= 2;
}

void Envelope::cut(double x) {
  std::erase_if(cells_, [x](const Cell& cell) { return std::min(cell.low.x, cell.high.x) >= x; });
  if (cells_.empty()) {
    return;
  }
  Cell& back = cells_.back();
  back.low = back.low.x >= x ? back.high : back.low;
  back.high = back.high.x >= x ? back.low : back.high;
  last_ = last_.x < x ? last_ : back.low.x > back.high.x ? back.low : back.high;
}

plot::Point Envelope::highest() const {
  return std::max_element(cells_.begin(), cells_.end(),
                          [](const Cell& a, const Cell& b) { return a.high.y < b.high.y; })
      ->high;
}

plot::Points Envelope::points() const {
  plot::Points points;
  for (const Cell& cell : cells_) {
    const bool low_first = cell.low.x <= cell.high.x;
    points.push_back(low_first ? cell.low : cell.high);
    if (cell.low.x != cell.high.x) {
      points.push_back(low_first ? cell.high : cell.low);
    }
  }
  if (!points.empty() && points.front().x > first_.x) {
    points.insert(points.begin(), first_);
  }
  if (!points.empty() && points.back().x < last_.x) {
    points.push_back(last_);
  }
  return points;
}

}  // namespace tapestry::report
