// A file of known size that several writers fill, each its own ranges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "autograd/io/direct_file.h"

namespace tapestry {

/// Makes a file of that size with its space reserved, so that a full disk is found before anything
/// is written. StorageError or IoError; the file is then not there. It must not exist before.
void create_range_file(const std::string& path, uint64_t size);

/// One writer of a file that create_range_file has made. Other writers, also other processes, may
/// write other ranges at the same time. Not to be shared between threads.
class RangeFile {
 public:
  /// IoError if it is not there.
  explicit RangeFile(std::string path);

  const std::string& path() const { return file_->path(); }
  uint64_t size() const { return file_->size(); }
  /// Bytes that this object has written so far.
  uint64_t written_bytes() const { return written_bytes_; }

  /// Writes bytes [offset, offset + bytes), which lie within the file and nobody else writes;
  /// small pieces one behind the other are written together. StorageError, IoError.
  void write_at(uint64_t offset, const void* data, size_t bytes);
  /// Hands over what is held back and returns when it is on the medium.
  void sync();

  /// Reads everything that was written back, from the medium where the file system can do that.
  /// After sync(). IoError if it is not what was written.
  void verify();

  /// After sync(): the exclusive or of what the bytes written so far contribute to the file's
  /// CRC-32C (crc32c_moved): that of all writers together is the file's.
  uint32_t checksum_part() const { return checksum_part_; }

 private:
  struct Range {
    uint64_t begin;
    uint64_t end;
  };
  void flush();
  // What bytes [begin, end) contribute to the file's checksum as they are read back.
  uint32_t checksum_on_medium(uint64_t begin, uint64_t end, std::byte* buffer);

  // Waits for the transfer under way.
  void wait();

  std::unique_ptr<DirectFile> file_;  // at one address, whoever moves this object
  AlignedBytes spare_;
  AlignedBytes buffer_;  // of which held_ bytes are used, from where held_offset_ lies in its block
  size_t held_ = 0;
  uint64_t held_offset_ = 0;
  uint32_t checksum_part_ = 0;
  uint64_t written_bytes_ = 0;
  std::vector<Range> written_;
  // Of spare_, while buffer_ is filled; gives its checksum_part. Last, so that it ends before what
  // it uses.
  std::future<uint32_t> transfer_;
};

}  // namespace tapestry
