#include "autograd/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "autograd/io/crc32c.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 18U;

std::filesystem::path folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? std::filesystem::path(".") : folder;
}

}  // namespace

void throw_io_error(const std::string& path, std::string_view action, int error) {
  const std::string message =
      concat(path, ": cannot ", action, ": ", std::generic_category().message(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EIO:
      throw StorageError(message);
    default:
      throw IoError(message);
  }
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  const std::filesystem::path name = std::filesystem::path(path_).filename();
  check<IoError>(!name.empty() && name != "." && name != "..", "'", path_,
                 "': not the name of a file");
  // A rename would fail on it only after all the work of writing.
  std::error_code ignored;
  check<IoError>(!std::filesystem::is_directory(path_, ignored), path_,
                 ": cannot write: is a directory");
  buffer_.reserve(kBufferBytes);
  // Another host may have the same process id on a shared file system: O_EXCL decides.
  static std::atomic<uint64_t> counter{0};
  do {
    temporary_ = (folder_of(path_) /
                  concat(".", name.string(), ".tmp-", ::getpid(), "-", counter.fetch_add(1)))
                     .string();
    // Before it is there, so that a signal in between leaves none behind.
    name_ = TemporaryName(temporary_);
    descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && (errno == EEXIST || errno == EINTR));
  if (descriptor_ < 0) {
    const int error = errno;
    temporary_.clear();
    name_ = {};
    throw_io_error(path_, concat("create in folder ", folder_of(path_).string()), error);
  }
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::fail(std::string_view action, int error) {
  discard();
  throw_io_error(path_, action, error);
}

void AtomicFile::discard() noexcept {
  if (descriptor_ >= 0) {
    ::close(std::exchange(descriptor_, -1));
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
    temporary_.clear();
    name_ = {};
  }
}

void AtomicFile::write_through(const std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, data, bytes);
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      fail("write", errno);
    }
    data += written;
    bytes -= static_cast<size_t>(written);
  }
}

void AtomicFile::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void AtomicFile::write(const void* data, size_t bytes) {
  check<RuntimeError>(descriptor_ >= 0, path_, ": write after commit or after a failure");
  const auto* first = static_cast<const std::byte*>(data);
  size_ += bytes;
  checksum_ = crc32c(data, bytes, checksum_);
  if (buffer_.size() + bytes > kBufferBytes) {
    flush();
  }
  if (bytes >= kBufferBytes) {
    write_through(first, bytes);
  } else if (bytes > 0) {
    buffer_.insert(buffer_.end(), first, first + bytes);
  }
}

void AtomicFile::commit() {
  check<RuntimeError>(descriptor_ >= 0, path_, ": commit after commit or after a failure");
  flush();
  if (::fsync(descriptor_) != 0) {
    fail("sync", errno);
  }
  verify();
  // Some file systems report a failed write at close only.
  if (::close(std::exchange(descriptor_, -1)) != 0) {
    fail("close", errno);
  }
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("rename the finished temporary", errno);
  }
  if (::access(temporary_.c_str(), F_OK) == 0) {
    discard();
    throw StorageError(concat(path_, ": the finished temporary has not got its name, though the ",
                              "file system says so; it or its driver is at fault"));
  }
  temporary_.clear();
  name_ = {};
  sync_directory(folder_of(path_).string());
}

void AtomicFile::verify() {
  // From the medium, where the system lets go of what it holds in memory.
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
  buffer_.resize(kBufferBytes);
  uint64_t found = 0;
  uint32_t checksum = 0;
  while (true) {
    const ssize_t now =
        ::pread(descriptor_, buffer_.data(), buffer_.size(), static_cast<off_t>(found));
    if (now < 0 && errno == EINTR) {
      continue;
    }
    if (now < 0) {
      fail("read back", errno);
    }
    if (now == 0) {
      break;
    }
    checksum = crc32c(buffer_.data(), static_cast<size_t>(now), checksum);
    found += static_cast<uint64_t>(now);
  }
  buffer_.clear();
  if (found != size_ || checksum != checksum_) {
    discard();
    throw StorageError(concat(path_, ": reads back other bytes than were written (", found, " of ",
                              size_, "); the medium or its driver is at fault"));
  }
}

void write_file_atomically(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

void sync_directory(const std::string& path) {
  const std::string name = path.empty() ? "." : path;
  const int descriptor = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    throw_io_error(name, "open the folder", errno);
  }
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != 0 && error != EINVAL) {
    throw_io_error(name, "sync the folder", error);
  }
}

}  // namespace tapestry
