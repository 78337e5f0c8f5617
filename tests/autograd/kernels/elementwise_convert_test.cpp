#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "autograd/kernels/elementwise/elementwise.h"
#include "tests/autograd/kernels/elementwise_testing.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

TEST(ElementwiseTest, WhereSelectsBitPatterns) {
  at_every_cpu_level([] {
    for (const DType dtype : kAllDTypes) {
      for (const auto& [sc, sa, sb, sy] : std::vector<std::array<int64_t, 4>>{
               {1, 1, 1, 1}, {1, 0, 1, 1}, {1, 1, 0, 1}, {0, 1, 1, 1}, {2, 1, 3, 2}}) {
        const int64_t n = 133;
        const std::vector<double> cv = small_values(kBool, 3 * n, 3);
        const std::vector<double> av = small_values(dtype, 3 * n, 4);
        const std::vector<double> bv = small_values(dtype, 3 * n, 9);
        const std::vector<char> cond = array(kBool, cv);
        const std::vector<char> a = array(dtype, av);
        const std::vector<char> b = array(dtype, bv);
        std::vector<char> y(a.size());
        where_row(dtype)(n, cond.data(), sc, a.data(), sa, b.data(), sb, y.data(), sy);
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(get(dtype, y.data(), i * sy), cv[i * sc] != 0 ? av[i * sa] : bv[i * sb]);
        }
      }
    }
  });
}

TEST(ElementwiseTest, CastsBetweenAllPairs) {
  at_every_cpu_level([] {
    for (const DType from : kAllDTypes) {
      for (const DType to : kAllDTypes) {
        for (const auto& [sx, sy] :
             std::vector<std::array<int64_t, 2>>{{1, 1}, {0, 1}, {2, 1}, {1, 3}}) {
          const int64_t n = 530;
          std::vector<double> values = small_values(from, 3 * n, 6);
          const std::vector<char> x = array(from, values);
          std::vector<char> y(static_cast<size_t>(3 * n * size_of(to)));
          cast_row(from, to)(n, x.data(), sx, y.data(), sy);
          for (int64_t i = 0; i < n; ++i) {
            double exact = values[i * sx];
            exact =
                to == kBool ? (exact != 0 ? 1 : 0) : (is_integral(to) ? std::trunc(exact) : exact);
            exact = wrapped(to, exact);
            ASSERT_EQ(get(to, y.data(), i * sy), exact) << name_of(from) << " to " << name_of(to);
          }
        }
      }
    }
  });
}

TEST(ElementwiseTest, CastsTo16BitsRoundOnceToNearestEven) {
  at_every_cpu_level([] {
    // Every float16 and bfloat16 survives the way through float32; every midpoint goes to even.
    for (const DType dtype : {kFloat16, kBFloat16}) {
      std::vector<uint16_t> all(65536);
      for (size_t i = 0; i < all.size(); ++i) {
        all[i] = static_cast<uint16_t>(i);
      }
      std::vector<float> wide(all.size());
      std::vector<uint16_t> back(all.size());
      cast_row(dtype, kFloat32)(65536, all.data(), 1, wide.data(), 1);
      cast_row(kFloat32, dtype)(65536, wide.data(), 1, back.data(), 1);
      for (size_t i = 0; i < all.size(); ++i) {
        if (std::isnan(wide[i])) {
          ASSERT_TRUE(std::isnan(get(dtype, back.data(), static_cast<int64_t>(i))));
          continue;
        }
        ASSERT_EQ(back[i], all[i]);
        ASSERT_EQ(wide[i], get(dtype, all.data(), static_cast<int64_t>(i)));
      }
      for (int i = 0; i < 0x7b00; ++i) {
        const double low = get(dtype, all.data(), i);
        const double high = get(dtype, all.data(), i + 1);
        const double middle = (low + high) / 2;
        const double above = std::nextafter(middle, 1e300);
        const double inputs[3] = {middle, above, std::nextafter(middle, 0)};
        uint16_t out[3];
        cast_row(kFloat64, dtype)(3, inputs, 1, out, 1);
        ASSERT_EQ(out[0], (i & 1) != 0 ? i + 1 : i) << middle;
        ASSERT_EQ(out[1], i + 1) << middle;  // would be i for even i if first rounded to float32
        ASSERT_EQ(out[2], i) << middle;
      }
    }
    const float edges[] = {65519.9F, 65520, -70000, 1e-8F, kInf, 3.4e38F};
    Float16 half[6];
    cast_row(kFloat32, kFloat16)(6, edges, 1, half, 1);
    EXPECT_EQ(static_cast<float>(half[0]), 65504);
    EXPECT_EQ(static_cast<float>(half[1]), kInf);
    EXPECT_EQ(static_cast<float>(half[2]), -kInf);
    EXPECT_EQ(static_cast<float>(half[3]), 0);
    BFloat16 brain[6];
    cast_row(kFloat32, kBFloat16)(6, edges, 1, brain, 1);
    EXPECT_EQ(static_cast<float>(brain[4]), kInf);
    EXPECT_EQ(static_cast<float>(brain[5]), kInf);
  });
}

TEST(ElementwiseTest, FillWritesOnlyItsElements) {
  at_every_cpu_level([] {
    for (const DType dtype : kAllDTypes) {
      for (const int64_t n : {0, 1, 17}) {
        std::vector<char> y = array(dtype, std::vector<double>(40, 0));
        fill_row(dtype, n, 1, y.data(), 2);
        for (int64_t i = 0; i < 40; ++i) {
          ASSERT_EQ(get(dtype, y.data(), i), i % 2 == 0 && i / 2 < n ? 1 : 0) << name_of(dtype);
        }
      }
    }
    float value = 0;
    fill_row(kFloat32, 1, -std::numeric_limits<double>::infinity(), &value, 1);
    EXPECT_EQ(value, -kInf);
    int64_t integer = 0;
    fill_row(kInt64, 1, 1e30, &integer, 1);
    EXPECT_EQ(integer, std::numeric_limits<int64_t>::max());
    int8_t small = 0;
    fill_row(kInt8, 1, -1000, &small, 1);
    EXPECT_EQ(small, -128);
    uint8_t byte = 0;
    fill_row(kUInt8, 1, 1000, &byte, 1);
    EXPECT_EQ(byte, 255);
    fill_row(kUInt8, 1, -1, &byte, 1);
    EXPECT_EQ(byte, 0);
  });
}

}  // namespace
}  // namespace tapestry::kernels
