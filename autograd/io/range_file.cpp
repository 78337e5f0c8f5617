#include "autograd/io/range_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/crc32c.h"
#include "autograd/io/input_file.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

constexpr size_t kPieceBytes = size_t{1} << 20U;

}  // namespace

void create_range_file(const std::string& path, uint64_t size) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) {
    throw_io_error(path, "be made", errno);
  }
  int error = size == 0 ? 0 : ::posix_fallocate(file, 0, static_cast<off_t>(size));
  if (error == EOPNOTSUPP || error == EINVAL) {  // the file system cannot reserve space
    error = ::ftruncate(file, static_cast<off_t>(size)) == 0 ? 0 : errno;
  }
  ::close(file);
  if (error != 0) {
    ::unlink(path.c_str());
    throw_io_error(path, concat("be given ", size, " bytes"), error);
  }
}

RangeFile::RangeFile(std::string path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_WRONLY | O_CLOEXEC)) {
  struct stat status {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    const int error = errno;
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
    throw_io_error(path_, "be written", error);
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

RangeFile::RangeFile(RangeFile&& other) noexcept
    : path_(std::move(other.path_)),
      size_(other.size_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      buffer_(std::move(other.buffer_)),
      held_(std::exchange(other.held_, 0)),
      held_offset_(other.held_offset_),
      checksum_part_(other.checksum_part_),
      written_bytes_(other.written_bytes_),
      written_(std::move(other.written_)) {}

RangeFile::~RangeFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void RangeFile::write_at(uint64_t offset, const void* data, size_t bytes) {
  check<IndexError>(offset <= size_ && bytes <= size_ - offset, path_, ": ", bytes, " bytes at ",
                    offset, " do not lie within its ", size_);
  const auto* source = static_cast<const std::byte*>(data);
  if (held_ > 0 && (offset != held_offset_ + held_ || bytes > kPieceBytes - held_)) {
    flush();
  }
  if (bytes >= kPieceBytes) {
    write_through(offset, source, bytes);
    return;
  }
  if (buffer_ == nullptr) {
    buffer_ = std::make_unique_for_overwrite<std::byte[]>(kPieceBytes);
  }
  if (held_ == 0) {
    held_offset_ = offset;
  }
  std::memcpy(buffer_.get() + held_, source, bytes);
  held_ += bytes;
}

void RangeFile::flush() {
  const size_t bytes = std::exchange(held_, 0);
  if (bytes > 0) {
    write_through(held_offset_, buffer_.get(), bytes);
  }
}

void RangeFile::write_through(uint64_t offset, const std::byte* data, size_t bytes) {
  checksum_part_ ^= crc32c_moved(crc32c(data, bytes), size_ - offset - bytes);
  written_bytes_ += bytes;
  if (!written_.empty() && written_.back().end == offset) {
    written_.back().end += bytes;
  } else {
    written_.push_back({offset, offset + bytes});
  }
  while (bytes > 0) {
    const ssize_t written = ::pwrite(descriptor_, data, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      throw_io_error(path_, "be written", written < 0 ? errno : ENOSPC);
    }
    data += written;
    offset += static_cast<uint64_t>(written);
    bytes -= static_cast<size_t>(written);
  }
}

void RangeFile::verify() const {
  // What the system has in memory says nothing of the medium.
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
  const InputFile file(path_);
  std::vector<std::byte> buffer(kPieceBytes);
  uint32_t found = 0;
  for (const Range& range : written_) {
    uint32_t crc = 0;
    for (uint64_t at = range.begin; at < range.end;) {
      const size_t bytes = std::min<uint64_t>(buffer.size(), range.end - at);
      file.read_at(at, buffer.data(), bytes, "content");
      crc = crc32c(buffer.data(), bytes, crc);
      at += bytes;
    }
    found ^= crc32c_moved(crc, size_ - range.end);
  }
  check<IoError>(
      found == checksum_part_, path_,
      ": reads back other bytes than were written; the medium or its driver is at fault");
}

void RangeFile::sync() {
  flush();
  if (::fsync(descriptor_) != 0) {
    throw_io_error(path_, "be written", errno);
  }
}

}  // namespace tapestry
