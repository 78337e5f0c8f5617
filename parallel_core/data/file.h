// Files that are read with exact bounds and written so that no half-written one is ever seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tapestry::data {

/// A file open for reading at any position. Reads go through pread, so a file that shrinks under
/// the reader gives an error and not a signal, and several threads may share one object.
class InputFile {
 public:
  /// IoError if the file cannot be opened or is not a regular file.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  InputFile& operator=(InputFile&&) = delete;

  const std::string& path() const { return path_; }
  /// Bytes at the time of opening.
  uint64_t size() const { return size_; }
  /// Reads exactly `count` bytes at `offset`. IoError, naming both, if the file is shorter.
  void read(uint64_t offset, void* out, size_t count) const;

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

/// A file that appears under its name only when it is complete: bytes go to a temporary sibling,
/// commit() syncs and renames it. Without commit() the destructor removes the temporary one.
class OutputFile {
 public:
  /// IoError if the temporary file cannot be made, for example in a folder that is not writable.
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  /// Buffered. IoError if the disk is full.
  void write(const void* bytes, size_t count);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  /// Writes what is buffered and waits until it is on the disk; the name is still the temporary
  /// one.
  void sync();
  /// sync(), then gives the file its name, replacing one that was there.
  void commit();

 private:
  void flush();
  [[noreturn]] void fail(const char* action) const;

  std::string path_;
  std::string temporary_;
  std::string buffer_;
  int fd_ = -1;
};

/// The whole file. IoError if it cannot be read.
std::string read_file(const std::string& path);

/// Writes a whole file at once, by way of OutputFile.
void write_file(const std::string& path, std::string_view bytes);

/// Makes the folder and those above it. IoError if that fails.
void make_directories(const std::string& path);

/// Waits until the folder that holds `path` knows of the files renamed into it.
void sync_parent_directory(const std::string& path);

/// Holds an exclusive lock on a folder, across processes, while it lives.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace tapestry::data
