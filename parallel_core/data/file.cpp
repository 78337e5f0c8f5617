#include "parallel_core/data/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::data {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20U;

std::string error_text(int error) { return std::generic_category().message(error); }

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) {
    throw IoError(concat(path_, ": cannot be opened: ", error_text(errno)));
  }
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw IoError(concat(path_, ": is not a regular file"));
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

InputFile::~InputFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

void InputFile::read(uint64_t offset, void* out, size_t count) const {
  auto* destination = static_cast<char*>(out);
  size_t done = 0;
  while (done < count) {
    const ssize_t got =
        ::pread(fd_, destination + done, count - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      throw IoError(
          concat(path_, ": cannot be read at offset ", offset + done, ": ", error_text(errno)));
    }
    if (got == 0) {
      throw IoError(concat(path_, ": ends at offset ", offset + done, ", but ", count,
                           " bytes were expected at offset ", offset,
                           "; the file is truncated or was cut while in use"));
    }
    done += static_cast<size_t>(got);
  }
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  static std::atomic<uint64_t> counter{0};
  temporary_ = concat(path_, ".tmp.", ::getpid(), ".", counter++);
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    throw IoError(concat(path_, ": cannot be written: ", error_text(errno),
                         "; check that the folder exists and is writable"));
  }
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
}

void OutputFile::fail(const char* action) const {
  throw IoError(concat(path_, ": cannot be ", action, ": ", error_text(errno)));
}

void OutputFile::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t put = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (put < 0 && errno != EINTR) {
      fail("written");
    }
    done += put > 0 ? static_cast<size_t>(put) : 0;
  }
  buffer_.clear();
}

void OutputFile::write(const void* bytes, size_t count) {
  buffer_.append(static_cast<const char*>(bytes), count);
  if (buffer_.size() >= kBufferBytes) {
    flush();
  }
}

void OutputFile::sync() {
  flush();
  if (::fsync(fd_) != 0) {
    fail("synced to the disk");
  }
}

void OutputFile::commit() {
  sync();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("renamed from its temporary name");
  }
  ::close(std::exchange(fd_, -1));
  sync_parent_directory(path_);
}

std::string read_file(const std::string& path) {
  const InputFile file(path);
  std::string bytes(file.size(), '\0');
  file.read(0, bytes.data(), bytes.size());
  return bytes;
}

void write_file(const std::string& path, std::string_view bytes) {
  OutputFile file(path);
  file.write(bytes);
  file.commit();
}

void make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  // create_directories also reports an error-free false for a folder that exists.
  if (error || !std::filesystem::is_directory(path)) {
    throw IoError(concat(path, ": the folder cannot be made: ",
                         error ? error.message() : "a file of that name exists"));
  }
}

void sync_parent_directory(const std::string& path) {
  const std::string parent = parent_of(path);
  const int fd = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    throw IoError(concat(parent, ": the folder cannot be opened: ", error_text(errno)));
  }
  // Some file systems cannot sync a folder; the rename itself has happened all the same.
  ::fsync(fd);
  ::close(fd);
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
