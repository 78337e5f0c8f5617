#include "autograd/io/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "autograd/io/npy.h"
#include "autograd/tensor/error.h"
#include "tests/autograd/io/io_test_util.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(AtomicFile, AppearsAtCommit) {
  const test::ScratchFolder folder;
  const std::string path = folder.file("x");
  AtomicFile file(path);
  file.write("one ");
  file.write("two");
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(file.size(), 7U);
  file.commit();
  EXPECT_EQ(test::get(path), "one two");
  EXPECT_THAT(folder.names(), ElementsAre("x"));
  EXPECT_THAT(message_of<RuntimeError>([&] { file.commit(); }), HasSubstr("after commit"));
  EXPECT_THAT(message_of<RuntimeError>([&] { file.write("more"); }), HasSubstr("after commit"));
}

TEST(AtomicFile, ObeysTheUmask) {
  const test::ScratchFolder folder;
  const mode_t before = ::umask(027);
  write_file_atomically(folder.file("x"), "1");
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat(folder.file("x").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0640U);
}

TEST(AtomicFile, WithoutCommitNothingChanges) {
  const test::ScratchFolder folder;
  const std::string path = folder.file("x");
  test::put(path, "old");
  {
    AtomicFile file(path);
    file.write("new");
  }
  EXPECT_EQ(test::get(path), "old");
  EXPECT_THAT(folder.names(), ElementsAre("x"));
}

TEST(AtomicFile, ReplacesAndLeavesOpenReadersTheOldContent) {
  const test::ScratchFolder folder;
  const std::string path = folder.file("x");
  write_file_atomically(path, "old");
  std::ifstream reader(path);
  write_file_atomically(path, "new");
  std::string seen;
  reader >> seen;
  EXPECT_EQ(seen, "old");
  EXPECT_EQ(test::get(path), "new");
}

TEST(AtomicFile, LargeAndSmallWritesKeepTheirOrder) {
  const test::ScratchFolder folder;
  std::string expected;
  AtomicFile file(folder.file("x"));
  for (const size_t n : {size_t{1}, size_t{100'000}, size_t{262'144}, size_t{3}, size_t{262'143},
                         size_t{1'000'000}, size_t{0}, size_t{7}}) {
    std::string block(n, '\0');
    for (size_t i = 0; i < n; ++i) {
      block[i] = static_cast<char>(i * 7 + n);
    }
    file.write(block);
    expected += block;
  }
  EXPECT_EQ(file.size(), expected.size());
  file.commit();
  EXPECT_TRUE(test::get(folder.file("x")) == expected);
}

TEST(AtomicFile, NamesTheFolderThatIsMissing) {
  const test::ScratchFolder folder;
  const std::string message =
      message_of<IoError>([&] { AtomicFile file(folder.file("no/such/x.npy")); });
  EXPECT_THAT(message, HasSubstr(folder.file("no/such")));
  EXPECT_THAT(message, HasSubstr("No such file or directory"));
  EXPECT_THAT(message_of<IoError>([&] { AtomicFile file(folder.path()); }),
              HasSubstr("is a directory"));
  EXPECT_THAT(message_of<IoError>([&] { AtomicFile file(folder.path() + "/"); }),
              HasSubstr("not the name of a file"));
  EXPECT_THAT(message_of<IoError>([&] { AtomicFile file(""); }),
              HasSubstr("not the name of a file"));
  // A file where a folder is needed stops root too.
  test::put(folder.file("plain"), "");
  EXPECT_THAT(message_of<IoError>([&] { AtomicFile file(folder.file("plain/x")); }),
              HasSubstr("Not a directory"));
}

TEST(AtomicFile, UnwritableFolder) {
  if (::geteuid() == 0) {
    // Permissions do not bind root; /proc takes new files from nobody.
    EXPECT_THAT(message_of<IoError>([&] { AtomicFile file("/proc/tapestry.npy"); }),
                HasSubstr("/proc"));
    return;
  }
  const test::ScratchFolder folder;
  std::filesystem::permissions(
      folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_THAT(message_of<IoError>([&] { AtomicFile file(folder.file("x")); }),
              HasSubstr("Permission denied"));
}

// What a program may blame on its input, and what not.
TEST(AtomicFile, TheMediumsFailuresAreStorageErrors) {
  for (const int error : {ENOSPC, EDQUOT, EFBIG, EIO}) {
    EXPECT_THAT(message_of<StorageError>([&] { throw_io_error("x", "write", error); }),
                HasSubstr("x: cannot write: "));
  }
  for (const int error : {ENOENT, EACCES, EROFS, EISDIR}) {
    try {
      throw_io_error("x", "write", error);
    } catch (const IoError& thrown) {
      EXPECT_EQ(dynamic_cast<const StorageError*>(&thrown), nullptr) << error;
    }
  }
}

TEST(AtomicFile, AFailedWriteLeavesTheOldFileAndNoTemporary) {
  const test::ScratchFolder folder;
  const std::string path = folder.file("x.npy");
  test::put(path, "old");
  // A limit on the size of files makes write fail as a full disk would.
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 1'000'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::vector<float> data(1'000'000);
  const std::string message =
      message_of<StorageError>([&] { write_npy(path, kFloat32, Shape{1'000'000}, data.data()); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, HasSubstr(path));
  EXPECT_THAT(message, HasSubstr("cannot write"));
  EXPECT_EQ(test::get(path), "old");
  EXPECT_THAT(folder.names(), ElementsAre("x.npy"));
}

}  // namespace
}  // namespace tapestry
