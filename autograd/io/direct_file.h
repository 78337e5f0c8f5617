// Large transfers past the system's cache of files (O_DIRECT), where the file system can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tapestry {

/// Bytes that begin at a multiple of kDirectBlock.
struct FreeAligned {
  void operator()(std::byte* memory) const;
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeAligned>;
/// `bytes` is a multiple of kDirectBlock. RuntimeError if there is no memory.
AlignedBytes aligned_bytes(size_t bytes);

/// What places in the file, in memory, and lengths of direct transfers are multiples of.
inline constexpr size_t kDirectBlock = 4096;

/// An existing file of which ranges are written and read. Whole blocks of long ranges go directly
/// between memory and medium: nothing is copied, no memory is taken from those who train, and what
/// is read back comes from the medium. The rest, and everything on a file system that cannot do
/// that, goes through the system's cache as usual. Not to be shared between threads.
class DirectFile {
 public:
  /// IoError if it is not there or may not be written.
  explicit DirectFile(std::string path);
  DirectFile(DirectFile&& other) noexcept;
  DirectFile& operator=(DirectFile&&) = delete;
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;
  ~DirectFile();

  const std::string& path() const { return path_; }
  /// When it was opened.
  uint64_t size() const { return size_; }

  /// Writes to bytes [offset, offset + bytes). What of it is whole blocks can go directly if `data`
  /// lies in its block as `offset` does in the file's: modulo kDirectBlock they are the same.
  /// StorageError, IoError.
  void write_at(uint64_t offset, const std::byte* data, size_t bytes);
  /// Returns when everything is on the medium. StorageError, IoError.
  void sync();

  /// Asks the system to let go of what it has of the file in memory, which says nothing of what is
  /// on the medium: for reads that cannot go directly. After sync().
  void forget_cached();
  /// Fills `blocks` with the file's content from `offset`, a multiple of kDirectBlock, on, and
  /// returns how many bytes it has there, at most `bytes`, a multiple of it too. IoError.
  size_t read_blocks(uint64_t offset, std::byte* blocks, size_t bytes);

 private:
  // One of the two transfers, whole; false if the direct one is refused as such.
  bool write_all(int descriptor, uint64_t offset, const std::byte* data, size_t bytes);
  bool read_all(int descriptor, uint64_t offset, std::byte* out, size_t bytes, size_t& got);
  void give_up_direct();

  std::string path_;
  uint64_t size_ = 0;
  int cached_ = -1;
  int direct_ = -1;  // -1: the file system cannot
};

}  // namespace tapestry
