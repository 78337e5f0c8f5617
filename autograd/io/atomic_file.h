// A file that appears under its name complete and on disk, or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/io/temporary_names.h"
#include "autograd/tensor/error.h"

namespace tapestry {

/// The medium fails, not what was asked of it: the disk is full, a quota or a limit of file sizes
/// is reached, or the device reports an error.
class StorageError : public IoError {
  using IoError::IoError;
};

/// "PATH: cannot ACTION: REASON", as a StorageError or, for what better input would have avoided (a
/// missing folder, rights), a plain IoError. `error` is an errno.
[[noreturn]] void throw_io_error(const std::string& path, std::string_view action, int error);

/// Writes to a temporary sibling of `path` (same folder, ".NAME.tmp-PID-N") and gives it its name
/// at commit(). What stood under the name before stays whole until then, for readers that have it
/// open or mapped too. Not to be shared between threads.
///
/// Every failure is an IoError that names the file and the reason, of a full disk a StorageError;
/// it leaves no temporary behind. The folder has to exist. A medium that says it has written and
/// has not is found too: what stands there is read back before it gets its name.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  /// Without commit(): removes the temporary; `path` is as it was.
  ~AtomicFile();

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }

  /// Bytes written so far.
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }

  /// Flushes, fsyncs, reads back and compares, renames, fsyncs the folder. RuntimeError if called
  /// twice.
  void commit();

 private:
  void flush();
  void write_through(const std::byte* data, size_t bytes);
  void verify();
  [[noreturn]] void fail(std::string_view action, int error);
  void discard() noexcept;

  std::string path_;
  std::string temporary_;  // empty once renamed or removed
  TemporaryName name_;
  std::vector<std::byte> buffer_;
  uint64_t size_ = 0;
  uint32_t checksum_ = 0;  // of what write() was given
  int descriptor_ = -1;
};

/// Writes `content` to `path` through an AtomicFile.
void write_file_atomically(const std::string& path, std::string_view content);

/// fsync of a folder, so that names made or removed in it survive a power failure. An empty name
/// means the current folder. IoError; file systems that cannot sync a folder (EINVAL) are accepted.
void sync_directory(const std::string& path);

}  // namespace tapestry
