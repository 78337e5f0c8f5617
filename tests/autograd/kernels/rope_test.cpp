#include "autograd/kernels/attention/rope.h"

#include "fused_testing.h"

namespace tapestry::testing {
namespace {

struct RopeCase {
  int64_t batch, heads, seq, dim, rotary;
};

struct Tables {
  Array cos, sin;
};

Tables tables(DType dtype, const RopeCase& c) {
  const int64_t pairs = c.rotary / 2;
  Tables t{Array(statistics_dtype(dtype), c.seq * pairs),
           Array(statistics_dtype(dtype), c.seq * pairs)};
  for (int64_t i = 0; i < c.seq * pairs; ++i) {
    const int64_t position = i / pairs;
    const double angle = position * std::pow(10000.0, -2.0 * (i % pairs) / c.rotary);
    t.cos.set(i, std::cos(angle));
    t.sin.set(i, std::sin(angle));
  }
  return t;
}

TEST(Rope, MatchesLoops) {
  for_each_dtype([](DType dtype) {
    for (const RopeCase& c :
         {RopeCase{2, 3, 5, 8, 8}, RopeCase{1, 2, 70, 10, 6}, RopeCase{1, 1, 1, 2, 2},
          RopeCase{1, 1, 3, 4, 0}, RopeCase{1, 1, 2, 1300, 1200}, RopeCase{0, 1, 2, 4, 4}}) {
      const Tables t = tables(dtype, c);
      const Array x = random_array(dtype, c.batch * c.heads * c.seq * c.dim, 1);
      // x is [B,H,S,D], y [B,S,H,D].
      const kernels::RopeStrides xs{c.heads * c.seq * c.dim, c.seq * c.dim, c.dim};
      const kernels::RopeStrides ys{c.heads * c.seq * c.dim, c.dim, c.heads * c.dim};
      for (const bool interleaved : {false, true}) {
        for (const bool inverse : {false, true}) {
          SCOPED_TRACE(::testing::Message()
                       << c.dim << " interleaved " << interleaved << " inverse " << inverse);
          Array y(dtype, x.size());
          const kernels::RopeCall call{.dtype = dtype,
                                       .batch = c.batch,
                                       .heads = c.heads,
                                       .seq = c.seq,
                                       .head_dim = c.dim,
                                       .rotary_dim = c.rotary,
                                       .interleaved = interleaved,
                                       .inverse = inverse,
                                       .x = x.data(),
                                       .x_strides = xs,
                                       .cos = t.cos.data(),
                                       .sin = t.sin.data(),
                                       .y = y.data(),
                                       .y_strides = ys};
          kernels::rope(call);
          Doubles expected(x.size());
          for (int64_t row = 0; row < c.batch * c.heads * c.seq; ++row) {
            const int64_t s = row % c.seq;
            const int64_t h = row / c.seq % c.heads;
            const int64_t b = row / c.seq / c.heads;
            const int64_t to = b * ys.batch + h * ys.head + s * ys.row;
            for (int64_t d = 0; d < c.dim; ++d) {
              expected[to + d] = x[row * c.dim + d];
            }
            const int64_t pairs = c.rotary / 2;
            for (int64_t m = 0; m < pairs; ++m) {
              const int64_t first = interleaved ? 2 * m : m;
              const int64_t second = interleaved ? 2 * m + 1 : m + pairs;
              const double cosine = t.cos[s * pairs + m];
              const double sine = (inverse ? -1 : 1) * t.sin[s * pairs + m];
              const double u = x[row * c.dim + first];
              const double w = x[row * c.dim + second];
              expected[to + first] = u * cosine - w * sine;
              expected[to + second] = w * cosine + u * sine;
            }
          }
          expect_close(y, expected, "y");
          if (c.rotary == 0) {
            continue;
          }
          // Turning back gives x; in place.
          kernels::RopeCall turned = call;
          turned.inverse = !inverse;
          turned.x = y.data();
          turned.x_strides = ys;
          kernels::rope(turned);
          Array back(dtype, x.size());
          kernels::RopeCall copied = turned;
          copied.rotary_dim = 0;
          copied.y = back.data();
          copied.y_strides = xs;
          kernels::rope(copied);
          expect_close(back, x.values(), "there and back", 3 * tolerance(dtype));
        }
      }
    }
  });
}

TEST(Rope, SameAtEveryLevelWithFusedMultiplyAdds) {
  for (const DType dtype : {kFloat32, kBFloat16}) {
    for (int64_t dim = 2; dim <= 160; dim += dim < 70 ? 2 : 30) {
      const RopeCase c = {2, 3, 9, dim, dim};
      const Tables t = tables(dtype, c);
      const Array x = random_array(dtype, c.batch * c.heads * c.seq * dim, 1);
      const kernels::RopeStrides strides{c.heads * c.seq * dim, c.seq * dim, dim};
      for (const bool interleaved : {false, true}) {
        SCOPED_TRACE(::testing::Message() << dim << " interleaved " << interleaved);
        std::vector<Array> found;
        for (const CpuLevel level : {CpuLevel::kAvx2, CpuLevel::kAvx512}) {
          if (level > detected_cpu_level() || !is_compiled(level)) {
            continue;
          }
          const CpuLevelGuard guard(level);
          Array& y = found.emplace_back(dtype, x.size());
          kernels::rope({.dtype = dtype,
                         .batch = c.batch,
                         .heads = c.heads,
                         .seq = c.seq,
                         .head_dim = dim,
                         .rotary_dim = dim,
                         .interleaved = interleaved,
                         .x = x.data(),
                         .x_strides = strides,
                         .cos = t.cos.data(),
                         .sin = t.sin.data(),
                         .y = y.data(),
                         .y_strides = strides});
          EXPECT_TRUE(y.same_bits(found[0]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tapestry::testing
