#include "autograd/ops/transformer/row_groups.h"

#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

void check_group_ends(std::string_view op, const GroupEnds& ends, int64_t groups, int64_t rows) {
  check<ValueError>(static_cast<int64_t>(ends.size()) == groups, op, ": ", ends.size(),
                    " ends for the ", groups, " groups of weight");
  int64_t begin = 0;
  for (size_t e = 0; e < ends.size(); ++e) {
    check<ValueError>(ends[e] >= begin, op, ": ends must ascend from 0 on; group ", e, " ends at ",
                      ends[e], " and begins at ", begin);
    begin = ends[e];
  }
  check<ValueError>(begin == rows, op, ": the last group must end at the ", rows,
                    " rows of x, it ends at ", begin);
}

Tensor sum_groups(const Tensor& x, const GroupEnds& ends) {
  TensorList sums;
  sums.reserve(ends.size());
  int64_t begin = 0;
  for (const int64_t end : ends) {
    sums.push_back(sum(slice(x, 0, begin, end), {0}));
    begin = end;
  }
  return sums.empty() ? zeros({0, x.shape()[1]}, x.dtype()) : stack(sums, 0);
}

void fill_groups(const Tensor& values, const GroupEnds& ends, const Tensor& y) {
  int64_t begin = 0;
  for (size_t e = 0; e < ends.size(); ++e) {
    const auto group = static_cast<int64_t>(e);
    const Tensor rows = slice(y, 0, begin, ends[e]);
    copy_values(broadcast_view(slice(values, 0, group, group + 1), rows.shape()), rows);
    begin = ends[e];
  }
}

}  // namespace tapestry
