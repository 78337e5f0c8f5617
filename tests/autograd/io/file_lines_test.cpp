#include "autograd/io/file_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "tests/autograd/io/io_test_util.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> all_of(FileLines& lines) {
  std::vector<std::string> all;
  for (std::string line; lines.next(line);) {
    all.push_back(line);
  }
  return all;
}

TEST(FileLines, AreThoseOfTheFile) {
  const test::ScratchFolder folder;
  const std::string path = folder.file("lines");
  test::put(path, "one\n\nthree");
  FileLines lines(path);
  EXPECT_THAT(all_of(lines), ElementsAre("one\n", "\n", "three"));
  EXPECT_EQ(lines.number(), 3);
  EXPECT_EQ(lines.bytes_read(), 10U);
  FileLines later(InputFile(path), 4);
  std::string line;
  ASSERT_TRUE(later.next(line));
  EXPECT_EQ(later.offset(), 4U);
  ASSERT_TRUE(later.next(line));
  EXPECT_EQ(line, "three");
  EXPECT_EQ(later.offset(), 5U);
  EXPECT_FALSE(take_newline(line));
  line += '\n';
  EXPECT_TRUE(take_newline(line));
  EXPECT_EQ(line, "three");
  EXPECT_FALSE(later.next(line));
  test::put(path, "");
  FileLines none(path);
  EXPECT_THAT(all_of(none), IsEmpty());
}

// Longer than what is read at once.
TEST(FileLines, MayBeLong) {
  const test::ScratchFolder folder;
  const std::string path = folder.file("lines");
  const std::string first = std::string((size_t{1} << 20U) - 1, 'a') + "\n";
  const std::string second = std::string((size_t{3} << 20U) + 7, 'b') + "\n";
  test::put(path, first + second + "c");
  FileLines lines(path);
  EXPECT_THAT(all_of(lines), ElementsAre(first, second, "c"));
}

TEST(FileLines, AreBounded) {
  const test::ScratchFolder folder;
  const std::string path = folder.file("lines");
  test::put(path, "four\nlong one\n");
  FileLines lines(path, 5);
  std::string line;
  ASSERT_TRUE(lines.next(line));
  EXPECT_THAT(message_of<ValueError>([&] { lines.next(line); }),
              HasSubstr(path + ":2: the line has more than 5 bytes"));
  // A file of a terabyte that takes none of the disk: no more is read than a line may have.
  test::put(path, "a");
  std::filesystem::resize_file(path, uint64_t{1} << 40U);
  FileLines giant(path, size_t{1} << 21U);
  EXPECT_THAT(message_of<ValueError>([&] { giant.next(line); }), HasSubstr(path + ":1: the line"));
  EXPECT_LE(giant.bytes_read(), size_t{1} << 22U);
}

TEST(FileLines, TakesFilesAlone) {
  const test::ScratchFolder folder;
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(message_of<IoError>([&] { FileLines lines(pipe); }),
              Says(pipe + ": cannot be read: ... a pipe"));
  EXPECT_THAT(message_of<IoError>([&] { FileLines lines("/dev/zero"); }),
              Says("/dev/zero: ... a device"));
}

}  // namespace
}  // namespace tapestry
