#include "autograd/io/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "autograd/tensor/error.h"
#include "tests/autograd/io/io_test_util.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ReadFile, GivesTheWholeContent) {
  const test::ScratchFolder folder;
  const std::string path = folder.file("x");
  for (const std::string& content : {std::string(), std::string("a"),
                                     std::string("a\0b\r\n\xFF", 6), std::string(70'001, 'z')}) {
    test::put(path, content);
    EXPECT_EQ(read_file(path), content) << content.size();
    EXPECT_EQ(read_file(path, content.size()), content) << content.size();
  }
  // What the kernel makes up has no size.
  EXPECT_THAT(read_file("/proc/self/status"), HasSubstr("Pid:"));
}

TEST(ReadFile, RefusesWhatIsNoRegularFileByItsKind) {
  const test::ScratchFolder folder;
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);  // nobody ever writes to it
  const std::string socket_path = folder.file("socket");
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(socket_path.size(), sizeof(address.sun_path));
  std::copy(socket_path.begin(), socket_path.end(), address.sun_path);
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  for (const auto& [path, what] :
       {std::pair<std::string, const char*>{folder.path(), "not a regular file but a folder"},
        {pipe, "not a regular file but a pipe"},
        {"/dev/zero", "not a regular file but a device"},
        {socket_path, "cannot be read: No such device or address"},  // open says so of sockets
        {folder.file("none"), "cannot be read: No such file or directory"}}) {
    const std::string message =
        message_of<IoError>([&] { read_file(path, kMaxReadBytes, "give a YAML file"); });
    EXPECT_THAT(message, StartsWith(path + ": "));
    EXPECT_THAT(message, EndsWith(std::string(what) + "; give a YAML file"));
  }
  ::close(socket);
}

TEST(ReadFile, RefusesMoreBytesThanTheLimitBeforeItTakesMemory) {
  const test::ScratchFolder folder;
  const std::string path = folder.file("sparse");
  test::put(path, "{}");
  std::filesystem::resize_file(path, uint64_t{1} << 42U);  // 4 TiB, one block on disk
  EXPECT_EQ(message_of<IoError>([&] { read_file(path); }),
            path + ": has 4398046511104 bytes, expected at most 1073741824");
  std::filesystem::resize_file(path, 101);
  EXPECT_EQ(message_of<IoError>([&] { read_file(path, 100, "a manifest is small"); }),
            path + ": has 101 bytes, expected at most 100; a manifest is small");
  EXPECT_EQ(read_file(path, 101).size(), 101U);
  EXPECT_THAT(message_of<IoError>([&] { read_file("/proc/self/status", 16); }),
              StartsWith("/proc/self/status: has "));
}

}  // namespace
}  // namespace tapestry
