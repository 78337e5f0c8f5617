#include "text/sources/line_reader.h"

#include <algorithm>
#include <utility>

#include "text/sources/text_files.h"

namespace tapestry::data {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

bool begins_with_byte_order_mark(const InputFile& file) {
  check_is_text(file);
  std::string begin(std::min<uint64_t>(kByteOrderMark.size(), file.size()), '\0');
  file.read_at(0, begin.data(), begin.size(), "text");
  return begin == kByteOrderMark;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
}

LineReader::LineReader(const std::string& path, uint64_t max_line_bytes)
    : lines_([&] {
        InputFile file(path);
        const bool has_mark = begins_with_byte_order_mark(file);
        return FileLines(std::move(file), has_mark ? kByteOrderMark.size() : 0, max_line_bytes);
      }()) {
  checksum_.add(kByteOrderMark.substr(0, lines_.offset()));
}

bool LineReader::next(std::string& line) {
  const bool found = lines_.next(line);
  checksum_.add(line);
  return found;
}

}  // namespace tapestry::data
