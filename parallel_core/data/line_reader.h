// Text files line by line.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "autograd/io/input_file.h"
#include "parallel_core/data/checksum.h"
#include "parallel_core/data/text_source.h"

namespace tapestry::data {

/// Whether a text begins with a byte-order mark of UTF-8. ValueError as check_is_text.
bool begins_with_byte_order_mark(const InputFile& file);

/// Whether nothing but white space is in it.
bool is_blank(std::string_view line);

/// Reads a file from its beginning, without a byte-order mark of UTF-8. Memory is that of the
/// longest line.
class LineReader {
 public:
  /// IoError for a file that cannot be read, ValueError as begins_with_byte_order_mark.
  explicit LineReader(const std::string& path,
                      uint64_t max_line_bytes = std::numeric_limits<uint64_t>::max());

  /// The next line with its newline, which the last one need not have; false after that one.
  /// ValueError, with file:line, for a line of more than max_line_bytes.
  bool next(std::string& line);
  /// How many lines have been read: the number, from 1, of the last one.
  int64_t number() const { return number_; }
  uint64_t bytes_read() const { return done_; }
  /// Where the last line begins in the file.
  uint64_t offset() const { return begin_; }
  /// When all lines have been read.
  TextFile file() const {
    return {file_.path(), static_cast<int64_t>(file_.size()), checksum_.text()};
  }

 private:
  bool read_line(std::string& line);

  InputFile file_;
  uint64_t max_line_bytes_;
  Crc64 checksum_;
  std::string buffer_;
  size_t at_ = 0;
  int64_t number_ = 0;
  uint64_t done_ = 0;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
};

}  // namespace tapestry::data
