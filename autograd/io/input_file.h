// Reading of untrusted binary files: sizes are known before anything is allocated, and each failure
// says file, offset and field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

/// Most bytes that read_file takes unless it is told otherwise.
inline constexpr uint64_t kMaxReadBytes = uint64_t{1} << 30U;

/// The whole content of a regular file; one of /proc too, whose size says nothing, and one of a
/// file that stands for a folder (packed_folder.h). IoError, which begins with the path and ends
/// with `hint` where there is one (what was expected, or what helps), for a file that is not there,
/// may not be read, is a folder, a pipe, a socket or a device, has more than `max_bytes`, or
/// shrinks while it is read.
std::string read_file(const std::string& path,
                      uint64_t max_bytes = kMaxReadBytes,
                      std::string_view hint = {});

/// A regular file opened for reading. Reads go through pread, so a file that shrinks under the
/// reader gives an IoError where a mapping would give a signal. Reads of one object may run on
/// several threads.
class InputFile {
 public:
  /// IoError if it does not exist, may not be read, is not a regular file (then it says what it
  /// is), or is a Git LFS pointer in place of one.
  explicit InputFile(std::string path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  /// Size when it was opened.
  uint64_t size() const { return size_; }

  /// Reads exactly bytes [offset, offset + bytes). IoError, naming the field, if the file ends
  /// before.
  void read_at(uint64_t offset, void* data, size_t bytes, std::string_view field) const;

  /// Reads up to `bytes` bytes from `offset` on; fewer, or none, where the file ends. IoError.
  size_t read_some(uint64_t offset, void* data, size_t bytes, std::string_view field) const;

  /// Throws IoError "PATH: offset N: field F: reason".
  template <class... Args>
  [[noreturn]] void fail(uint64_t offset, std::string_view field, const Args&... reason) const {
    throw IoError(concat(path_, ": offset ", offset, ": field ", field, ": ", reason...));
  }

 private:
  void refuse_pointer() const;

  std::string path_;
  uint64_t size_ = 0;
  int descriptor_ = -1;
};

/// a * b and a + b; false if the result does not fit.
inline bool checked_mul(uint64_t a, uint64_t b, uint64_t& out) {
  return !__builtin_mul_overflow(a, b, &out);
}
inline bool checked_add(uint64_t a, uint64_t b, uint64_t& out) {
  return !__builtin_add_overflow(a, b, &out);
}

}  // namespace tapestry
