#include "autograd/io/file_lines.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {
namespace {

constexpr size_t kLineBufferBytes = size_t{1} << 20U;

}  // namespace

FileLines::FileLines(const std::string& path, uint64_t max_line_bytes)
    : FileLines(InputFile(path), 0, max_line_bytes) {}

FileLines::FileLines(InputFile file, uint64_t begin, uint64_t max_line_bytes)
    : file_(std::move(file)),
      max_line_bytes_(max_line_bytes),
      done_(begin),
      begin_(begin),
      end_(begin) {}

bool FileLines::next(std::string& line) {
  line.clear();
  begin_ = end_;
  while (true) {
    const size_t found = buffer_.find('\n', at_);
    const bool whole = found != std::string::npos;
    const size_t end = whole ? found + 1 : buffer_.size();
    check<ValueError>(line.size() + (end - at_) <= max_line_bytes_, file_.path(), ":", number_ + 1,
                      ": the line has more than ", max_line_bytes_,
                      " bytes, expected a text file of lines; is it the right file, and whole?");
    line.append(buffer_, at_, end - at_);
    at_ = end;
    if (whole) {
      break;
    }
    buffer_.resize(std::min<uint64_t>(kLineBufferBytes, file_.size() - done_));
    at_ = 0;
    if (buffer_.empty()) {
      break;
    }
    file_.read_at(done_, buffer_.data(), buffer_.size(), "text");
    done_ += buffer_.size();
  }
  end_ = begin_ + line.size();
  number_ += line.empty() ? 0 : 1;
  return !line.empty();
}

bool take_newline(std::string& line) {
  const bool ended = line.ends_with('\n');
  if (ended) {
    line.pop_back();
  }
  return ended;
}

}  // namespace tapestry
