#include "parallel_core/data/line_reader.h"

#include <algorithm>

#include "autograd/tensor/error.h"

namespace tapestry::data {
namespace {

using std::string_view_literals::operator""sv;

constexpr size_t kBufferBytes = size_t{1} << 20U;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Files that are no text, by how they begin.
struct Disguise {
  std::string_view magic;
  const char* what;
  const char* remedy;
};
constexpr Disguise kDisguises[] = {
    {"\x1F\x8B"sv, "is compressed by gzip", "unpack it first: gunzip -k FILE"},
    {"\x28\xB5\x2F\xFD"sv, "is compressed by zstd", "unpack it first: zstd -d FILE"},
    {"\xFD\x37\x7A\x58\x5A\0"sv, "is compressed by xz", "unpack it first: unxz -k FILE"},
    {"PK\x03\x04"sv, "is a zip archive (or an office document)", "unpack it first"},
    {"%PDF-"sv, "is a PDF document", "turn it into text first: pdftotext FILE"},
    {"\xFF\xFE"sv, "is UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 FILE > NEW"},
    {"\xFE\xFF"sv, "is UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 FILE > NEW"},
    {"MMIDIDX"sv, "is the index of a data set",
     "its path without .idx is what dataset_config.data_path takes"},
};

std::string replace_file(std::string remedy, const std::string& path) {
  const size_t at = remedy.find("FILE");
  return at == std::string::npos ? remedy : remedy.replace(at, 4, path);
}

}  // namespace

bool begins_with_byte_order_mark(const InputFile& file) {
  constexpr uint64_t kMost = 8;
  std::string begin(std::min(kMost, file.size()), '\0');
  file.read_at(0, begin.data(), begin.size(), "text");
  for (const Disguise& disguise : kDisguises) {
    check<ValueError>(!begin.starts_with(disguise.magic), file.path(), ": ", disguise.what,
                      ", expected plain text; ", replace_file(disguise.remedy, file.path()));
  }
  return begin.starts_with(kByteOrderMark);
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
