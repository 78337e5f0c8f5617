#include "parallel_core/data/line_reader.h"

#include <algorithm>

#include "autograd/tensor/error.h"
#include "parallel_core/data/text_files.h"

namespace tapestry::data {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20U;
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
    : file_(path), max_line_bytes_(max_line_bytes) {
  if (begins_with_byte_order_mark(file_)) {
    done_ = kByteOrderMark.size();
    checksum_.add(kByteOrderMark);
  }
  end_ = done_;
}

bool LineReader::next(std::string& line) {
  begin_ = end_;
  const bool found = read_line(line);
  end_ = begin_ + line.size();
  number_ += found ? 1 : 0;
  return found;
}

bool LineReader::read_line(std::string& line) {
  line.clear();
  while (true) {
    const size_t end = buffer_.find('\n', at_);
    const bool whole = end != std::string::npos;
    line.append(buffer_, at_, whole ? end + 1 - at_ : std::string::npos);
    check<ValueError>(line.size() <= max_line_bytes_, file_.path(), ":", number_ + 1,
                      ": the line has more than ", max_line_bytes_, " bytes");
    at_ = whole ? end + 1 : 0;
    if (whole) {
      return true;
    }
    buffer_.resize(std::min<uint64_t>(kBufferBytes, file_.size() - done_));
    if (buffer_.empty()) {
      return !line.empty();
    }
    file_.read_at(done_, buffer_.data(), buffer_.size(), "text");
    done_ += buffer_.size();
    checksum_.add(buffer_);
  }
}

}  // namespace tapestry::data
