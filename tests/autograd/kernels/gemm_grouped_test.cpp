#include "autograd/kernels/gemm/gemm_grouped.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "autograd/kernels/gemm/gemm_choice.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "tests/autograd/kernels/fused_testing.h"

namespace tapestry::kernels {
namespace {

using testing::Array;

using GroupEnds = std::vector<int64_t>;

struct GroupedCase {
  GroupAxis axis = GroupAxis::kRows;
  GroupEnds ends;
  int64_t other = 0;  // the size of the axis that is not divided, rows or sum
  int64_t n = 0;
  bool trans_a = false;
  bool trans_b = false;
  double alpha = 1;
  double beta = 0;
  int64_t pad = 0;  // of leading dimensions and strides
};

GemmShape shape_of(const GroupedCase& given, DType dtype, DType c_dtype) {
  const bool rows = given.axis == GroupAxis::kRows;
  GemmShape s{};
  s.dtype = dtype;
  s.c_dtype = c_dtype;
  s.trans_a = given.trans_a;
  s.trans_b = given.trans_b;
  s.m = rows ? given.ends.back() : given.other;
  s.k = rows ? given.other : given.ends.back();
  s.n = given.n;
  s.alpha = given.alpha;
  s.beta = given.beta;
  s.lda = (s.trans_a ? s.m : s.k) + given.pad;
  s.ldb = (s.trans_b ? s.k : s.n) + given.pad;
  s.ldc = s.n + given.pad;
  s.stride_b = rows ? (s.trans_b ? s.n : s.k) * s.ldb + given.pad : 0;
  s.stride_c = rows ? 0 : s.m * s.ldc + given.pad;
  return s;
}

int64_t factor_size(bool trans, int64_t rows, int64_t columns, int64_t ld) {
  return (trans ? columns : rows) * ld;
}

struct GroupedData {
  GroupedData(const GroupedCase& given, DType dtype, DType c_dtype)
      : shape(shape_of(given, dtype, c_dtype)),
        a(testing::random_array(dtype, factor_size(shape.trans_a, shape.m, shape.k, shape.lda), 1)),
        b(testing::random_array(dtype,
                                std::max(groups(given) * shape.stride_b,
                                         factor_size(shape.trans_b, shape.k, shape.n, shape.ldb)),
                                2)),
        c(testing::random_array(
            c_dtype, std::max(groups(given) * shape.stride_c, shape.m * shape.ldc), 3)) {}

  static int64_t groups(const GroupedCase& given) {
    return static_cast<int64_t>(given.ends.size());
  }
  void run(const GroupedCase& given) {
    grouped_gemm(shape, given.axis, given.ends, a.data(), b.data(), c.data());
  }

  GemmShape shape;
  Array a;
  Array b;
  Array c;
};

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case kFloat64:
      return 0x1p-53;
    case kFloat32:
      return 0x1p-24;
    case kFloat16:
      return 0x1p-11;
    default:
      return 0x1p-8;
  }
}

/// Calls f(group, row, column, first and last item of its sum, element of C).
template <class F>
void for_elements(const GroupedCase& given, const GemmShape& s, const F& f) {
  int64_t begin = 0;
  for (size_t e = 0; e < given.ends.size(); ++e) {
    const auto group = static_cast<int64_t>(e);
    const bool rows = given.axis == GroupAxis::kRows;
    const int64_t end = given.ends[e];
    for (int64_t i = rows ? begin : 0; i < (rows ? end : s.m); ++i) {
      for (int64_t j = 0; j < s.n; ++j) {
        f(group, i, j, rows ? 0 : begin, rows ? s.k : end, group * s.stride_c + i * s.ldc + j);
      }
    }
    begin = end;
  }
}

/// Each element against its sum in float64: sums of n terms in the compute type are off by at most
/// n + 2 roundings of the sum of magnitudes, and the result is rounded once more.
void check_case(const GroupedCase& given, DType dtype, DType c_dtype) {
  GroupedData data(given, dtype, c_dtype);
  const GemmShape& s = data.shape;
  const Array before = data.c;
  if (s.beta == 0) {
    for_elements(given, s, [&](int64_t, int64_t, int64_t, int64_t, int64_t, int64_t at) {
      data.c.set(at, std::numeric_limits<double>::quiet_NaN());  // must not survive
    });
  }
  data.run(given);
  std::vector<bool> written(static_cast<size_t>(data.c.size()), false);
  const double compute = unit_roundoff(dtype == kFloat64 ? kFloat64 : kFloat32);
  for_elements(
      given, s, [&](int64_t group, int64_t i, int64_t j, int64_t first, int64_t last, int64_t at) {
        double sum = 0;
        double magnitude = 0;
        for (int64_t p = first; p < last; ++p) {
          const double left = data.a[s.trans_a ? p * s.lda + i : i * s.lda + p];
          const double right =
              data.b[group * s.stride_b + (s.trans_b ? j * s.ldb + p : p * s.ldb + j)];
          sum += left * right;
          magnitude += std::abs(left * right);
        }
        const double old = s.beta == 0 ? 0 : s.beta * before[at];
        const double exact = s.alpha * sum + old;
        const double off = static_cast<double>(last - first + 3) * compute *
                           (std::abs(s.alpha) * magnitude + std::abs(old));
        const double bound = 1.01 * (off + unit_roundoff(c_dtype) * std::abs(exact)) +
                             (c_dtype == kFloat16 ? 0x1p-25 : 0);
        ASSERT_LE(std::abs(data.c[at] - exact), bound)
            << name_of(dtype) << " -> " << name_of(c_dtype) << ", group " << group << ", element "
            << i << ", " << j << ": " << data.c[at] << ", expected " << exact;
        written[static_cast<size_t>(at)] = true;
      });
  for (int64_t at = 0; at < data.c.size(); ++at) {
    if (!written[static_cast<size_t>(at)]) {
      ASSERT_EQ(data.c[at], before[at]) << "between the rows, at " << at;
    }
  }
}

struct DTypePair {
  DType dtype;
  DType c_dtype;
};
constexpr DTypePair kPairs[] = {{kFloat32, kFloat32},  {kFloat64, kFloat64}, {kBFloat16, kBFloat16},
                                {kBFloat16, kFloat32}, {kFloat16, kFloat16}, {kFloat16, kFloat32}};

TEST(GroupedGemm, AllOrientationsAndGroupSizes) {
  at_every_cpu_level([] {
    for (const GroupAxis axis : {GroupAxis::kRows, GroupAxis::kSum}) {
      for (const GroupEnds& ends :
           {GroupEnds{33, 33, 34, 43, 50, 50}, GroupEnds{17}, GroupEnds{0, 1}, GroupEnds{0, 0}}) {
        for (int flags = 0; flags < 8; ++flags) {
          GroupedCase given{axis, ends, 37, 53};
          given.trans_a = (flags & 1) != 0;
          given.trans_b = (flags & 2) != 0;
          given.pad = (flags & 4) != 0 ? 3 : 0;
          for (const auto& [dtype, c_dtype] : kPairs) {
            for (const double beta : {0.0, 1.0, -0.5}) {
              given.beta = beta;
              given.alpha = beta < 0 ? 2 : 1;
              check_case(given, dtype, c_dtype);
            }
          }
        }
      }
    }
  });
}

TEST(GroupedGemm, SingleRowsColumnsAndItems) {
  at_every_cpu_level([] {
    for (const GroupAxis axis : {GroupAxis::kRows, GroupAxis::kSum}) {
      for (const int64_t other : {0, 1, 9}) {
        for (const int64_t n : {0, 1, 16, 64}) {
          for (const auto& [dtype, c_dtype] : kPairs) {
            GroupedCase given{axis, {1, 2, 2, 9}, other, n};
            given.trans_a = axis == GroupAxis::kSum;
            given.trans_b = axis == GroupAxis::kRows;
            check_case(given, dtype, c_dtype);
            given.beta = 1;
            check_case(given, dtype, c_dtype);
          }
        }
      }
    }
  });
}

// Groups that are worth a team each, sums longer than the blocks of k, and copies of left factors
// that do not fit into one round.
TEST(GroupedGemm, LargeGroupsAmongSmallOnes) {
  at_every_cpu_level([] {
    for (const DTypePair& pair : {kPairs[0], kPairs[2], kPairs[5]}) {
      GroupedCase rows{GroupAxis::kRows, {3, 1100, 1100, 1170}, 20, 50};
      rows.trans_b = true;
      check_case(rows, pair.dtype, pair.c_dtype);
      GroupedCase sums{GroupAxis::kSum, {3, 1100, 1100, 1170}, 20, 50};
      sums.trans_a = true;
      sums.beta = 1;
      check_case(sums, pair.dtype, pair.c_dtype);
      GroupedCase deep{GroupAxis::kRows, {5, 5, 14}, 2300, 50};
      check_case(deep, pair.dtype, pair.c_dtype);
      GroupedCase wide{GroupAxis::kSum, {1, 3, 6}, 600'000, 1};
      wide.trans_a = true;
      check_case(wide, pair.dtype, pair.c_dtype);
    }
  });
}

TEST(GroupedGemm, TilesGiveTheBitsOfEachProductAlone) {
  at_every_cpu_level([] {
    for (const auto& [dtype, c_dtype] : kPairs) {
      if (!prefers_tiles(dtype)) {
        continue;
      }
      for (const GroupAxis axis : {GroupAxis::kRows, GroupAxis::kSum}) {
        GroupedCase given{axis, {200, 200, 207, 300}, 130, 100};
        given.trans_a = axis == GroupAxis::kSum;
        given.trans_b = axis == GroupAxis::kRows;
        given.beta = 1;
        GroupedData data(given, dtype, c_dtype);
        Array expected = data.c;
        data.run(given);
        int64_t begin = 0;
        for (size_t e = 0; e < given.ends.size(); ++e) {
          const int64_t count = given.ends[e] - begin;
          if (count > 0) {
            GemmShape own = data.shape;
            (axis == GroupAxis::kRows ? own.m : own.k) = count;
            const auto group = static_cast<int64_t>(e);
            const bool rows = axis == GroupAxis::kRows;
            const auto at = [](Array& x, int64_t element) {
              return x.as<char>() + element * size_of(x.dtype());
            };
            tiled_gemm(own, at(data.a, begin * own.lda),
                       at(data.b, rows ? group * own.stride_b : begin * own.ldb),
                       at(expected, rows ? begin * own.ldc : group * own.stride_c));
          }
          begin = given.ends[e];
        }
        EXPECT_TRUE(data.c.same_bits(expected)) << name_of(dtype) << " -> " << name_of(c_dtype);
      }
    }
  });
}

TEST(GroupedGemm, SameBitsAgainAndWhereTilesForAnyTeam) {
  at_every_cpu_level([] {
    for (const auto& [dtype, c_dtype] : kPairs) {
      for (const GroupAxis axis : {GroupAxis::kRows, GroupAxis::kSum}) {
        GroupedCase given{axis, {20, 320, 320, 390, 400}, 96, 100};
        given.trans_a = axis == GroupAxis::kSum;
        given.trans_b = axis == GroupAxis::kRows;
        const auto body = [&, &dtype = dtype, &c_dtype = c_dtype] {
          GroupedData data(given, dtype, c_dtype);
          data.run(given);
          return std::vector<Array>{data.c};
        };
        const std::vector<Array> once = body();
        EXPECT_TRUE(body()[0].same_bits(once[0]));
        if (prefers_tiles(dtype)) {
          testing::expect_same_for_any_team(body);
        }
      }
    }
  });
}

TEST(GroupedGemm, RunsInsideALoop) {
  GroupedCase given{GroupAxis::kRows, {20, 120, 130}, 64, 50};
  GroupedData alone(given, kFloat32, kFloat32);
  alone.run(given);
  std::vector<GroupedData> nested(4, GroupedData(given, kFloat32, kFloat32));
  parallel_for(4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      nested[static_cast<size_t>(i)].run(given);
    }
  });
  for (const GroupedData& data : nested) {
    for (int64_t i = 0; i < data.c.size(); ++i) {
      ASSERT_NEAR(data.c[i], alone.c[i], 1e-4);
    }
  }
}

}  // namespace
}  // namespace tapestry::kernels
