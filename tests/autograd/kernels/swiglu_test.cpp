#include "autograd/kernels/swiglu.h"

#include "fused_testing.h"

namespace tapestry::testing {
namespace {

TEST(Swiglu, MatchesLoops) {
  for_each_dtype([](DType dtype) {
    for (const auto& [rows, n] :
         {std::pair{0, 3}, std::pair{1, 1}, std::pair{3, 7}, std::pair{5, 1025}}) {
      // Gate and up are the halves of one matrix, and so are their gradients.
      const int64_t ld = 2 * n;
      Array both = random_array(dtype, rows * ld, 1, 4);
      const Array dy = random_array(dtype, rows * n, 2);
      if (rows == 5) {  // far ends of the sigmoid
        both.set(0, -1000);
        both.set(1, 1000);
        both.set(2, -90);
      }
      Array y(dtype, rows * n);
      Doubles expected(rows * n);
      Doubles gradients(rows * ld);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          const double gate = both[r * ld + i];
          const double up = both[r * ld + n + i];
          const double s = 1 / (1 + std::exp(-gate));
          const double d = dy[r * n + i];
          expected[r * n + i] = gate * s * up;
          gradients[r * ld + i] = d * up * (s + gate * s * (1 - s));
          gradients[r * ld + n + i] = d * gate * s;
        }
      }
      const auto up_of = [&, n = n](Array& x) {
        return static_cast<char*>(x.data()) + n * size_of(dtype);
      };
      kernels::swiglu({.dtype = dtype,
                       .rows = rows,
                       .n = n,
                       .gate = both.data(),
                       .gate_stride = ld,
                       .up = up_of(both),
                       .up_stride = ld,
                       .y = y.data()});
      expect_close(y, expected, "y");
      Array dboth(dtype, rows * ld);
      kernels::SwigluBackward call{.dtype = dtype,
                                   .rows = rows,
                                   .n = n,
                                   .gate = both.data(),
                                   .gate_stride = ld,
                                   .up = up_of(both),
                                   .up_stride = ld,
                                   .dy = dy.data(),
                                   .dgate = dboth.data(),
                                   .dgate_stride = ld,
                                   .dup = up_of(dboth),
                                   .dup_stride = ld};
      kernels::swiglu_backward(call);
      expect_close(dboth, gradients, "gradients");
      call.dgate = both.data();
      call.dup = up_of(both);
      kernels::swiglu_backward(call);
      EXPECT_TRUE(both.same_bits(dboth));
    }
  });
}

}  // namespace
}  // namespace tapestry::testing
