#include "autograd/io/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

// Shorter transfers would wait for the medium longer than copying takes.
constexpr size_t kLeastDirect = size_t{256} << 10U;

// What a file system says that cannot do it, or not with blocks of this size.
bool refuses_direct(int error) { return error == EINVAL || error == EOPNOTSUPP; }

void close_if_open(int descriptor) {
  if (descriptor >= 0) {
    ::close(descriptor);
  }
}

}  // namespace

void FreeAligned::operator()(std::byte* memory) const { std::free(memory); }

AlignedBytes aligned_bytes(size_t bytes) {
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kDirectBlock, bytes));
  check<RuntimeError>(memory != nullptr, "there is no memory for a buffer of ", bytes, " bytes");
  return AlignedBytes(memory);
}

DirectFile::DirectFile(std::string path)
    : path_(std::move(path)), cached_(::open(path_.c_str(), O_RDWR | O_CLOEXEC)) {
  struct stat status {};
  if (cached_ < 0 || ::fstat(cached_, &status) != 0) {
    const int error = errno;
    close_if_open(cached_);
    throw_io_error(path_, "be written", error);
  }
  size_ = static_cast<uint64_t>(status.st_size);
  if (size_ >= kLeastDirect) {
    direct_ = ::open(path_.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  }
}

DirectFile::DirectFile(DirectFile&& other) noexcept
    : path_(std::move(other.path_)),
      size_(other.size_),
      cached_(std::exchange(other.cached_, -1)),
      direct_(std::exchange(other.direct_, -1)) {}

DirectFile::~DirectFile() {
  close_if_open(direct_);
  close_if_open(cached_);
}

void DirectFile::give_up_direct() { close_if_open(std::exchange(direct_, -1)); }

bool DirectFile::write_all(int descriptor, uint64_t offset, const std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::pwrite(descriptor, data, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0 && descriptor == direct_ && refuses_direct(errno)) {
      return false;
    }
    if (written <= 0) {
      throw_io_error(path_, "be written", written < 0 ? errno : ENOSPC);
    }
    data += written;
    offset += static_cast<uint64_t>(written);
    bytes -= static_cast<size_t>(written);
  }
  return true;
}

void DirectFile::write_at(uint64_t offset, const std::byte* data, size_t bytes) {
  const size_t place = offset % kDirectBlock;
  const bool aligned = reinterpret_cast<uintptr_t>(data) % kDirectBlock == place;
  const size_t head = std::min(bytes, (kDirectBlock - place) % kDirectBlock);
  const size_t whole = (bytes - head) / kDirectBlock * kDirectBlock;
  if (direct_ >= 0 && aligned && whole >= kLeastDirect) {
    if (write_all(direct_, offset + head, data + head, whole)) {
      write_all(cached_, offset, data, head);
      write_all(cached_, offset + head + whole, data + head + whole, bytes - head - whole);
      return;
    }
    give_up_direct();
  }
  write_all(cached_, offset, data, bytes);
}

void DirectFile::sync() {
  if (::fsync(cached_) != 0) {
    throw_io_error(path_, "be written", errno);
  }
}

bool DirectFile::read_all(
    int descriptor, uint64_t offset, std::byte* out, size_t bytes, size_t& got) {
  got = 0;
  // A direct read that the end of the file has cut short cannot be gone on with: it is the last.
  while (got < bytes && (descriptor != direct_ || got % kDirectBlock == 0)) {
    const ssize_t now =
        ::pread(descriptor, out + got, bytes - got, static_cast<off_t>(offset + got));
    if (now < 0 && errno == EINTR) {
      continue;
    }
    if (now < 0 && descriptor == direct_ && refuses_direct(errno)) {
      return false;
    }
    if (now < 0) {
      throw_io_error(path_, "be read", errno);
    }
    if (now == 0) {
      break;
    }
    got += static_cast<size_t>(now);
  }
  return true;
}

void DirectFile::forget_cached() { ::posix_fadvise(cached_, 0, 0, POSIX_FADV_DONTNEED); }

size_t DirectFile::read_blocks(uint64_t offset, std::byte* blocks, size_t bytes) {
  size_t got = 0;
  if (direct_ >= 0 && bytes >= kLeastDirect) {
    if (read_all(direct_, offset, blocks, bytes, got)) {
      return got;
    }
    give_up_direct();
  }
  read_all(cached_, offset, blocks, bytes, got);
  return got;
}

}  // namespace tapestry
