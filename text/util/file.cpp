#include "text/util/file.h"

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>
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

std::vector<std::string> remove_stale_temporaries(const std::string& directory,
                                                  const std::string& name) {
  namespace fs = std::filesystem;
  constexpr std::string_view kMark = ".tmp-";
  std::vector<std::string> remarks;
  std::vector<fs::path> stale;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string file = entry.path().filename().string();
    const size_t mark = file.rfind(kMark);
    if (!file.starts_with("." + name) || mark == std::string::npos) {
      continue;
    }
    const char* const digits = file.data() + mark + kMark.size();
    const char* const end = file.data() + file.size();
    pid_t process = 0;
    const auto parsed = std::from_chars(digits, end, process);
    const bool is_ours = parsed.ec == std::errc{} && parsed.ptr != end && *parsed.ptr == '-';
    if (is_ours && process > 0 && ::kill(process, 0) != 0 && errno == ESRCH) {
      stale.push_back(entry.path());
    }
  }
  for (const fs::path& path : stale) {
    const uintmax_t bytes = fs::file_size(path, error);
    if (fs::remove(path, error)) {
      remarks.push_back(concat("removed ", path.string(), " (", bytes,
                               " bytes), which a program that was killed has left"));
    }
  }
  return remarks;
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
