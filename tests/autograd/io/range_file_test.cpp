#include "autograd/io/range_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/io/crc32c.h"
#include "autograd/tensor/error.h"
#include "tests/autograd/io/io_test_util.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

TEST(RangeFile, WritersFillTheirRanges) {
  const test::ScratchFolder dir;
  const std::string path = dir.file("whole");
  std::string expected(12'345'678, '\0');
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = static_cast<char>(i % 251);
  }
  create_range_file(path, expected.size());
  // Stripes of many sizes, from bytes to more than one transfer, within blocks and across them,
  // taken in turn and backwards.
  const std::vector<size_t> ends = {3,         900,       70'000,    1'500'000,  1'500'001,
                                    2'999'999, 3'000'000, 7'340'032, 12'345'000, expected.size()};
  uint32_t checksum = 0;
  std::vector<std::thread> threads;
  std::vector<uint32_t> parts(2);
  for (size_t writer = 0; writer < 2; ++writer) {
    threads.emplace_back([&, writer] {
      RangeFile file(path);
      for (size_t i = ends.size(); i-- > 0;) {
        const size_t begin = i == 0 ? 0 : ends[i - 1];
        if (i % 2 == writer) {
          file.write_at(begin, expected.data() + begin, ends[i] - begin);
        }
      }
      file.sync();
      file.verify();
      parts[writer] = file.checksum_part();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  checksum = parts[0] ^ parts[1];
  EXPECT_EQ(test::get(path), expected);
  EXPECT_EQ(checksum, crc32c(expected.data(), expected.size()));
}

TEST(RangeFile, PiecesBehindEachOtherAndWithGaps) {
  const test::ScratchFolder dir;
  const std::string path = dir.file("file");
  constexpr size_t kSize = 6'000'000;
  create_range_file(path, kSize);
  std::string expected(kSize, '\0');
  RangeFile file(path);
  size_t step = 1;
  for (size_t at = 5; at + step < kSize; at += step + (step % 7 == 0 ? 3 : 0)) {
    step = step * 13 % 700'001 + 1;
    const size_t bytes = std::min(step, kSize - at);
    for (size_t i = at; i < at + bytes; ++i) {
      expected[i] = static_cast<char>(i * 31 % 253);
    }
    file.write_at(at, expected.data() + at, bytes);
  }
  file.sync();
  file.verify();
  EXPECT_EQ(test::get(path), expected);
  EXPECT_LT(file.written_bytes(), kSize);
}

TEST(RangeFile, VerifySeesWhatSomebodyElseWrote) {
  const test::ScratchFolder dir;
  const std::string path = dir.file("file");
  create_range_file(path, 8);
  RangeFile file(path);
  file.write_at(0, "abcdefgh", 8);
  file.sync();
  file.verify();
  RangeFile other(path);
  other.write_at(3, "X", 1);
  other.sync();
  EXPECT_THAT(message_of<IoError>([&] { file.verify(); }),
              ::testing::HasSubstr("reads back other bytes"));
}

TEST(RangeFile, Refusals) {
  const test::ScratchFolder dir;
  const std::string path = dir.file("file");
  EXPECT_THAT(message_of<IoError>([&] { RangeFile{path}; }), ::testing::HasSubstr(path));
  create_range_file(path, 4);
  EXPECT_EQ(test::get(path), std::string(4, '\0'));
  EXPECT_THAT(message_of<IoError>([&] { create_range_file(path, 4); }),
              ::testing::HasSubstr("File exists"));
  RangeFile file(path);
  EXPECT_THAT(message_of<IndexError>([&] { file.write_at(2, "abc", 3); }),
              ::testing::HasSubstr("do not lie within"));
  EXPECT_THAT(message_of<IoError>([&] { create_range_file(dir.file("none/file"), 1); }),
              ::testing::HasSubstr("none/file"));
}

TEST(RangeFile, SpaceThatIsNotThereIsFoundAtOnce) {
  const test::ScratchFolder dir;
  const std::string path = dir.file("file");
  EXPECT_THAT(message_of<IoError>([&] { create_range_file(path, uint64_t{1} << 62U); }),
              ::testing::HasSubstr(path));
  EXPECT_FALSE(std::ifstream(path).good());
}

}  // namespace
}  // namespace tapestry
