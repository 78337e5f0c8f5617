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
#include "autograd/kernels/machine/signals_blocked.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

// Of one transfer: long enough for the medium, short enough to be still in a core's cache.
constexpr size_t kPieceBytes = size_t{2} << 20U;

// Shorter ones are done before a thread has begun.
constexpr size_t kLeastInBackground = size_t{256} << 10U;

uint64_t place_in_block(uint64_t offset) { return offset % kDirectBlock; }

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
  struct stat status {};
  if (error == 0 && ::fstat(file, &status) != 0) {
    error = errno;
  }
  if (::close(file) != 0 && error == 0) {
    error = errno;
  }
  if (error != 0) {
    ::unlink(path.c_str());
    throw_io_error(path, concat("be given ", size, " bytes"), error);
  }
  // Nothing else would say what is wrong: places behind the end are errors of who writes there.
  if (static_cast<uint64_t>(status.st_size) != size) {
    ::unlink(path.c_str());
    throw StorageError(concat(path, ": has ", status.st_size, " bytes after it was given ", size,
                              "; the file system or its driver is at fault"));
  }
}

RangeFile::RangeFile(std::string path) : file_(std::make_unique<DirectFile>(std::move(path))) {}

void RangeFile::write_at(uint64_t offset, const void* data, size_t bytes) {
  check<IndexError>(offset <= size() && bytes <= size() - offset, path(), ": ", bytes, " bytes at ",
                    offset, " do not lie within its ", size());
  if (held_ > 0 && offset != held_offset_ + held_) {
    flush();
  }
  const auto* source = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    if (held_ == 0) {
      held_offset_ = offset;
    }
    if (buffer_ == nullptr) {
      buffer_ = aligned_bytes(kPieceBytes);
    }
    // In its block as in the file's, so that a full buffer ends with one.
    const size_t used = place_in_block(held_offset_) + held_;
    const size_t now = std::min(bytes, kPieceBytes - used);
    std::memcpy(buffer_.get() + used, source, now);
    held_ += now;
    source += now;
    offset += now;
    bytes -= now;
    if (used + now == kPieceBytes) {
      flush();
    }
  }
}

void RangeFile::wait() {
  if (transfer_.valid()) {
    checksum_part_ ^= transfer_.get();
  }
}

void RangeFile::flush() {
  wait();
  const size_t bytes = std::exchange(held_, 0);
  if (bytes == 0) {
    return;
  }
  const uint64_t offset = held_offset_;
  written_bytes_ += bytes;
  if (!written_.empty() && written_.back().end == offset) {
    written_.back().end += bytes;
  } else {
    written_.push_back({offset, offset + bytes});
  }
  const auto transfer = [file = file_.get(), data = buffer_.get() + place_in_block(offset), offset,
                         bytes] {
    file->write_at(offset, data, bytes);
    return crc32c_moved(crc32c(data, bytes), file->size() - offset - bytes);
  };
  if (bytes < kLeastInBackground) {
    checksum_part_ ^= transfer();
    return;
  }
  const kernels::SignalsBlocked blocked;
  transfer_ = std::async(std::launch::async, transfer);
  std::swap(buffer_, spare_);
}

void RangeFile::verify() {
  // Columns of a matrix lie between each other: together they are long ranges again.
  std::sort(written_.begin(), written_.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  const AlignedBytes buffer = aligned_bytes(kPieceBytes);
  uint32_t found = 0;
  file_->forget_cached();
  for (size_t i = 0; i < written_.size();) {
    const uint64_t begin = written_[i].begin;
    uint64_t end = begin;
    for (; i < written_.size() && written_[i].begin <= end; ++i) {
      end = std::max(end, written_[i].end);
    }
    found ^= checksum_on_medium(begin, end, buffer.get());
  }
  check<IoError>(
      found == checksum_part_, path(),
      ": reads back other bytes than were written; the medium or its driver is at fault");
}

uint32_t RangeFile::checksum_on_medium(uint64_t begin, uint64_t end, std::byte* buffer) {
  uint32_t crc = 0;
  for (uint64_t at = begin; at < end;) {
    const uint64_t first = place_in_block(at);
    const uint64_t wanted = std::min<uint64_t>(end - at, kPieceBytes - first);
    const size_t blocks = (first + wanted + kDirectBlock - 1) / kDirectBlock * kDirectBlock;
    const size_t got = file_->read_blocks(at - first, buffer, blocks);
    check<IoError>(got >= first + wanted, path(), ": ends at byte ", at - first + got,
                   " when it is read back; ", size(), " were written");
    crc = crc32c(buffer + first, wanted, crc);
    at += wanted;
  }
  return crc32c_moved(crc, size() - end);
}

void RangeFile::sync() {
  flush();
  wait();
  file_->sync();
}

}  // namespace tapestry
