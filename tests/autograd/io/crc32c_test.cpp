#include "autograd/io/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace tapestry {
namespace {

constexpr std::string_view kCheck = "123456789";  // the catalogue's check value, and RFC 3720's

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c(kCheck.data(), kCheck.size()), 0xE3069283U);
  EXPECT_EQ(crc32c(nullptr, 0), 0U);
  const std::string zeros(32, '\0');
  EXPECT_EQ(crc32c(zeros.data(), zeros.size()), 0x8A9136AAU);
  const std::string ones(32, '\xff');
  EXPECT_EQ(crc32c(ones.data(), ones.size()), 0x62A8AB43U);
  EXPECT_EQ(crc32c_text(0xE3069283U), "e3069283");
  EXPECT_EQ(crc32c_text(7), "00000007");
}

TEST(Crc32c, GoesOnWhereItStopped) {
  for (size_t cut = 0; cut <= kCheck.size(); ++cut) {
    const uint32_t first = crc32c(kCheck.data(), cut);
    EXPECT_EQ(crc32c(kCheck.data() + cut, kCheck.size() - cut, first), 0xE3069283U) << cut;
  }
}

TEST(Crc32c, OfPartsInAnyOrder) {
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text.push_back(static_cast<char>(i * 7 + i / 13));
  }
  const uint32_t whole = crc32c(text.data(), text.size());
  for (const size_t piece : {1U, 7U, 8U, 64U, 1000U, 4999U, 5000U}) {
    uint32_t sum = 0;
    for (size_t end = text.size(); end > 0;) {  // the last part first
      const size_t begin = end > piece ? end - piece : 0;
      sum ^= crc32c_moved(crc32c(text.data() + begin, end - begin), text.size() - end);
      end = begin;
    }
    EXPECT_EQ(sum, whole) << piece;
  }
}

}  // namespace
}  // namespace tapestry
