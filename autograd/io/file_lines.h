// Text files line by line, in memory that a limit bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "autograd/io/input_file.h"

namespace tapestry {

/// Most bytes of a line unless a reader is told otherwise: a line of metrics.jsonl with the norms
/// of every parameter of a large mixture has some millions.
inline constexpr uint64_t kMaxLineBytes = uint64_t{64} << 20U;

/// The lines that a regular file had when it was opened; what is appended meanwhile is not read.
class FileLines {
 public:
  /// IoError as InputFile.
  explicit FileLines(const std::string& path, uint64_t max_line_bytes = kMaxLineBytes);
  /// From byte `begin` on, which must lie in the file or at its end.
  FileLines(InputFile file, uint64_t begin, uint64_t max_line_bytes = kMaxLineBytes);

  /// The next line with its newline, which the last one need not have; false after that one.
  /// IoError if the file cannot be read or shrinks; ValueError, with file:line, for a line of more
  /// than max_line_bytes, of which no more is read.
  bool next(std::string& line);
  /// How many lines have been read: the number, from 1, of the last one.
  int64_t number() const { return number_; }
  /// Where the last line begins in the file.
  uint64_t offset() const { return begin_; }
  /// What has been taken from the file, whether handed out already or not.
  uint64_t bytes_read() const { return done_; }
  const InputFile& file() const { return file_; }

 private:
  InputFile file_;
  uint64_t max_line_bytes_;
  std::string buffer_;
  size_t at_ = 0;
  int64_t number_ = 0;
  uint64_t done_ = 0;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
};

/// Removes the newline from the end of a line; false if it has none.
bool take_newline(std::string& line);

}  // namespace tapestry
