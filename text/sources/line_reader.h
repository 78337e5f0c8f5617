// Text files line by line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "autograd/io/file_lines.h"
#include "text/sources/text_source.h"
#include "text/util/checksum.h"

namespace tapestry::data {

/// Whether a text begins with a byte-order mark of UTF-8. ValueError as check_is_text.
bool begins_with_byte_order_mark(const InputFile& file);

/// Whether nothing but white space is in it.
bool is_blank(std::string_view line);

/// Most bytes of a line of plain text: some texts are a single one.
inline constexpr uint64_t kMaxTextLineBytes = kMaxReadBytes;

/// FileLines of a text that may begin with a byte-order mark of UTF-8, which is left out, and its
/// checksum. Memory is that of the longest line.
class LineReader {
 public:
  /// IoError for a file that cannot be read, ValueError as begins_with_byte_order_mark.
  explicit LineReader(const std::string& path, uint64_t max_line_bytes = kMaxTextLineBytes);

  /// The next line with its newline, which the last one need not have; false after that one.
  /// ValueError, with file:line, for a line of more than max_line_bytes.
  bool next(std::string& line);
  /// How many lines have been read: the number, from 1, of the last one.
  int64_t number() const { return lines_.number(); }
  uint64_t bytes_read() const { return lines_.bytes_read(); }
  /// Where the last line begins in the file.
  uint64_t offset() const { return lines_.offset(); }
  /// When all lines have been read.
  TextFile file() const {
    const InputFile& file = lines_.file();
    return {file.path(), static_cast<int64_t>(file.size()), checksum_.text()};
  }

 private:
  FileLines lines_;
  Crc64 checksum_;
};

}  // namespace tapestry::data
