#include "autograd/io/direct_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "tests/autograd/io/io_test_util.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

constexpr size_t kBytes = size_t{1} << 20U;

std::string pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) {
    text[i] = static_cast<char>(i * 7 % 251);
  }
  return text;
}

TEST(DirectFile, WritesAnyRangeFromAnyMemory) {
  const test::ScratchFolder dir;
  const std::string content = pattern(kBytes);
  for (const size_t offset : {size_t{0}, size_t{1}, kDirectBlock - 1, kDirectBlock, size_t{5000}}) {
    for (const size_t shift : {size_t{0}, size_t{1}, offset % kDirectBlock}) {
      const std::string path = dir.file(concat("file", offset, "_", shift));
      test::put(path, std::string(kBytes + 3 * kDirectBlock + 17, 'x'));
      const AlignedBytes memory = aligned_bytes(kBytes + kDirectBlock);
      std::memcpy(memory.get() + shift, content.data(), kBytes);
      DirectFile file(path);
      file.write_at(offset, memory.get() + shift, kBytes);
      file.sync();
      const std::string found = test::get(path);
      ASSERT_EQ(found.size(), kBytes + 3 * kDirectBlock + 17);
      EXPECT_EQ(found.substr(0, offset), std::string(offset, 'x'));
      EXPECT_TRUE(found.compare(offset, kBytes, content) == 0) << offset << ' ' << shift;
      EXPECT_EQ(found.find_first_not_of('x', offset + kBytes), std::string::npos);
    }
  }
}

TEST(DirectFile, ReadsBlocksUpToTheEnd) {
  const test::ScratchFolder dir;
  const std::string path = dir.file("file");
  const std::string content = pattern(kBytes + 100);
  test::put(path, content);
  const AlignedBytes memory = aligned_bytes(2 * kBytes);
  DirectFile file(path);
  EXPECT_EQ(file.size(), content.size());
  for (const size_t offset : {size_t{0}, kDirectBlock, kBytes}) {
    const size_t got = file.read_blocks(offset, memory.get(), 2 * kBytes);
    ASSERT_EQ(got, content.size() - offset);
    EXPECT_EQ(std::memcmp(memory.get(), content.data() + offset, got), 0);
  }
  EXPECT_EQ(file.read_blocks(2 * kBytes, memory.get(), kBytes), 0U);
}

TEST(DirectFile, SeesWhatTheCacheHasNotWrittenYet) {
  const test::ScratchFolder dir;
  const std::string path = dir.file("file");
  test::put(path, std::string(kBytes, 'a'));
  DirectFile file(path);
  DirectFile other(path);
  const auto* letter = reinterpret_cast<const std::byte*>("b");
  other.write_at(kBytes / 2, letter, 1);
  const AlignedBytes memory = aligned_bytes(kBytes);
  ASSERT_EQ(file.read_blocks(0, memory.get(), kBytes), kBytes);
  EXPECT_EQ(memory[kBytes / 2], std::byte{'b'});
}

TEST(DirectFile, Refusals) {
  const test::ScratchFolder dir;
  EXPECT_THAT(message_of<IoError>([&] { DirectFile{dir.file("none")}; }),
              ::testing::HasSubstr("none"));
}

}  // namespace
}  // namespace tapestry
