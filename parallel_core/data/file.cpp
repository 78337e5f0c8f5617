#include "parallel_core/data/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "autograd/tensor/error.h"

namespace tapestry::data {
namespace {

std::string error_text(int error) { return std::generic_category().message(error); }

}  // namespace

void make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  // create_directories also reports an error-free false for a folder that exists.
  if (error || !std::filesystem::is_directory(path)) {
    throw IoError(concat(path, ": the folder cannot be made: ",
                         error ? error.message() : "a file of that name exists"));
  }
}

DirectoryLock::DirectoryLock(const std::string& directory) {
  fd_ = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) {
    throw IoError(concat(directory, ": the folder cannot be opened: ", error_text(errno)));
  }
  while (::flock(fd_, LOCK_EX) != 0) {
    if (errno != EINTR) {
      const int error = errno;
      ::close(fd_);
      throw IoError(concat(directory, ": the folder cannot be locked: ", error_text(error)));
    }
  }
}

DirectoryLock::~DirectoryLock() { ::close(fd_); }

}  // namespace tapestry::data
