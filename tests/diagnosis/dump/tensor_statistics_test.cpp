#include "diagnosis/dump/tensor_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "diagnosis/dump/md5.h"
#include "tests/diagnosis/dump/dump_testing.h"
#include "tests/message_of.h"

namespace tapestry::dump {
namespace {

StatisticSet everything() {
  StatisticSet all;
  for (int i = 0; i < kNumStatistics; ++i) {
    all.add(static_cast<Statistic>(i));
  }
  return all;
}

std::string md5_of(const std::string& text) { return md5_hex(text.data(), text.size()); }

TEST(Md5, TheVectorsOfItsDefinition) {  // RFC 1321, A.5
  EXPECT_EQ(md5_of(""), "d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(md5_of("a"), "0cc175b9c0f1b6a831c399e269772661");
  EXPECT_EQ(md5_of("abc"), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(md5_of("message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
  EXPECT_EQ(md5_of("abcdefghijklmnopqrstuvwxyz"), "c3fcd3d76192e4007dfb496cca67e13b");
  EXPECT_EQ(md5_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"),
            "d174ab98d277d9f5a5611c2c9f419d9f");
  EXPECT_EQ(md5_of("1234567890123456789012345678901234567890123456789012345678901234567890"
                   "1234567890"),
            "57edf4a22be3c955ac49da2e2107b67a");
}

TEST(TensorStatistics, OfAMixture) {
  const float nan = std::nanf("");
  const Tensor x = tensor({3, -1, 0, nan, INFINITY, -INFINITY, -INFINITY, 2});
  const TensorStatistics s = tensor_statistics(x, everything());
  EXPECT_EQ(s.max, 3);
  EXPECT_EQ(s.min, -1);
  EXPECT_EQ(s.avg, 1);  // of 3, -1, 0, 2
  EXPECT_EQ(s.l2norm, std::sqrt(14.0));
  EXPECT_EQ(s.count, 8);
  EXPECT_EQ(s.negative, 3);
  EXPECT_EQ(s.positive, 3);
  EXPECT_EQ(s.zero, 1);
  EXPECT_EQ(s.nan, 1);
  EXPECT_EQ(s.negative_infinity, 2);
  EXPECT_EQ(s.positive_infinity, 1);
  EXPECT_EQ(s.bits, 2);  // of 3
  EXPECT_EQ(s.finite(), 4);
}

TEST(TensorStatistics, OfNothingAndOfNothingFinite) {
  const TensorStatistics none = tensor_statistics(zeros({0, 3}), everything());
  EXPECT_EQ(none.count, 0);
  EXPECT_TRUE(std::isnan(none.max) && std::isnan(none.min) && std::isnan(none.avg));
  EXPECT_EQ(none.l2norm, 0);
  EXPECT_EQ(none.md5, "d41d8cd98f00b204e9800998ecf8427e");
  const TensorStatistics nans = tensor_statistics(tensor({std::nanf("")}), everything());
  EXPECT_EQ(nans.nan, 1);
  EXPECT_TRUE(std::isnan(nans.max));
}

TEST(TensorStatistics, ReadElementsInTheOrderOfTheShape) {
  const Tensor x = numbered({4, 6});
  const Tensor transposed = alias(x, {6, 4}, {1, 6}, 0);
  const Tensor copy = transposed.contiguous();
  const TensorStatistics strided = tensor_statistics(transposed, everything());
  EXPECT_EQ(strided.md5, md5_hex(copy.raw(), static_cast<size_t>(copy.numel()) * sizeof(float)));
  EXPECT_NE(strided.md5, tensor_statistics(x, everything()).md5);
  EXPECT_EQ(strided.max, 23 * 0.25);
  const Tensor expanded = alias(x, {2, 6}, {0, 1}, 6);  // the second row, twice
  EXPECT_EQ(tensor_statistics(expanded, everything()).max, 11 * 0.25);
  EXPECT_EQ(tensor_statistics(expanded, everything()).count, 12);
}

TEST(TensorStatistics, OfEachType) {
  for (const DType dtype :
       {kBool, kInt8, kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64}) {
    const Tensor x = tensor({0, 1, 1}).to(dtype);
    const TensorStatistics s = tensor_statistics(x, everything());
    EXPECT_EQ(s.max, 1) << name_of(dtype);
    EXPECT_EQ(s.l2norm, std::sqrt(2.0)) << name_of(dtype);
    EXPECT_EQ(s.md5, md5_hex(x.raw(), static_cast<size_t>(3 * size_of(dtype)))) << name_of(dtype);
  }
}

TEST(TensorStatistics, BitsBetrayBFloat16InsideFloat32) {
  const Tensor x = numbered({1000}, 0.123F);
  EXPECT_GT(tensor_statistics(x, {Statistic::kBits}).bits, 20);
  EXPECT_EQ(tensor_statistics(x.to(kBFloat16).to(kFloat32), {Statistic::kBits}).bits, 8);
}

TEST(TensorStatistics, OfPartsTogether) {
  const Tensor x = tensor({5, -7, 0, std::nanf(""), 1, 2});
  const TensorStatistics whole = tensor_statistics(x, everything());
  const TensorStatistics both = joined({tensor_statistics(x.slice(0, 0, 2), everything()),
                                        tensor_statistics(x.slice(0, 2, 6), everything())});
  for (int i = 0; i < kNumStatistics; ++i) {
    const auto statistic = static_cast<Statistic>(i);
    if (statistic != Statistic::kMd5) {
      EXPECT_NEAR(both.value(statistic), whole.value(statistic), 1e-14) << category_of(statistic);
    }
  }
  EXPECT_EQ(both.md5, "");
}

TEST(TensorStatistics, NamesOfTheGuide) {
  for (int i = 0; i < kNumStatistics; ++i) {
    const auto statistic = static_cast<Statistic>(i);
    EXPECT_EQ(statistic_of_category(category_of(statistic)), statistic);
    EXPECT_EQ(statistic_of_column(column_of(statistic)), statistic);
  }
  EXPECT_EQ(column_of(Statistic::kNegativeZeroCount), "Negative Zero Count");
  EXPECT_EQ(statistic_of_category("median"), std::nullopt);
  EXPECT_NE(message_of<ValueError>([] { TensorStatistics().value(Statistic::kMd5); }), "");
  TensorStatistics s;
  EXPECT_FALSE(s.set(Statistic::kNanCount, -1));
  EXPECT_FALSE(s.set(Statistic::kNanCount, 0.5));
  EXPECT_TRUE(s.set(Statistic::kNanCount, 3));
  EXPECT_EQ(s.nan, 3);
}

}  // namespace
}  // namespace tapestry::dump
