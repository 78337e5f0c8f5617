#include "parallel_core/data/text_source.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "autograd/io/input_file.h"
#include "autograd/tensor/error.h"
#include "parallel_core/data/checksum.h"

namespace tapestry::data {
namespace {

using std::string_view_literals::operator""sv;

constexpr size_t kPieceBytes = size_t{1} << 20U;
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

// The first bytes of a file; ValueError if they are not those of a text.
std::string beginning_of_text(const InputFile& file) {
  constexpr uint64_t kMost = 8;
  std::string begin(std::min(kMost, file.size()), '\0');
  file.read_at(0, begin.data(), begin.size(), "text");
  for (const Disguise& disguise : kDisguises) {
    check<ValueError>(!begin.starts_with(disguise.magic), file.path(), ": ", disguise.what,
                      ", expected plain text; ", replace_file(disguise.remedy, file.path()));
  }
  return begin;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
}

// Reads a file line by line; each line keeps its newline, the last one may have none.
class LineReader {
 public:
  explicit LineReader(const std::string& path) : file_(path) {
    if (beginning_of_text(file_).starts_with(kByteOrderMark)) {
      done_ = kByteOrderMark.size();
      checksum_.add(kByteOrderMark);
    }
    end_ = done_;
  }

  bool next(std::string& line) {
    begin_ = end_;
    const bool found = read_line(line);
    end_ = begin_ + line.size();
    return found;
  }
  uint64_t bytes_read() const { return done_; }
  // Of the line that was read last.
  uint64_t offset() const { return begin_; }
  // When all lines have been read.
  TextFile file() const {
    return {file_.path(), static_cast<int64_t>(file_.size()), checksum_.text()};
  }

 private:
  bool read_line(std::string& line) {
    line.clear();
    while (true) {
      const size_t end = buffer_.find('\n', at_);
      if (end != std::string::npos) {
        line.append(buffer_, at_, end + 1 - at_);
        at_ = end + 1;
        return true;
      }
      line.append(buffer_, at_);
      at_ = 0;
      buffer_.resize(std::min<uint64_t>(kPieceBytes, file_.size() - done_));
      if (buffer_.empty()) {
        return !line.empty();
      }
      file_.read_at(done_, buffer_.data(), buffer_.size(), "text");
      done_ += buffer_.size();
      checksum_.add(buffer_);
    }
  }

  InputFile file_;
  Crc64 checksum_;
  std::string buffer_;
  size_t at_ = 0;
  uint64_t done_ = 0;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
};

// Collects the lines of a document and hands them on, in pieces if that is allowed.
class DocumentBuffer {
 public:
  DocumentBuffer(bool in_pieces, int64_t file, const DocumentSink& sink)
      : in_pieces_(in_pieces), sink_(sink), place_{.file = file} {}

  // A line at this place of the file.
  void add(std::string_view line, uint64_t offset) {
    if (!open_) {
      place_.offset = static_cast<int64_t>(offset);
      place_.bytes = 0;
      open_ = true;
    }
    if (in_pieces_ && text_.size() + line.size() > kPieceBytes && !text_.empty()) {
      sink_(text_, false, place_);
      text_.clear();
    }
    text_.append(line);
    place_.bytes += static_cast<int64_t>(line.size());
  }
  void end_document() {
    sink_(text_, true, place_);
    text_.clear();
    open_ = false;
  }
  bool open() const { return open_; }

 private:
  bool in_pieces_;
  const DocumentSink& sink_;
  TextPlace place_;
  std::string text_;
  bool open_ = false;
};

std::string json_text(const std::string& line,
                      const std::string& key,
                      const std::string& path,
                      int64_t number) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    throw ValueError(concat(path, ":", number, ": is not valid JSON: ", error.what()));
  }
  check<ValueError>(object.is_object(), path, ":", number, ": is a JSON ", object.type_name(),
                    ", expected an object with the key \"", key, "\"");
  const auto text = object.find(key);
  check<ValueError>(text != object.end(), path, ":", number, ": has no key \"", key,
                    "\"; name the one that holds the text with --json_key");
  check<ValueError>(text->is_string(), path, ":", number, ": the value of \"", key, "\" is a JSON ",
                    text->type_name(), ", expected a string");
  return text->get<std::string>();
}

}  // namespace

std::vector<std::string> check_text_files(const std::vector<std::string>& files) {
  std::vector<std::string> remarks;
  for (const std::string& path : files) {
    if (beginning_of_text(InputFile(path)).starts_with(kByteOrderMark)) {
      remarks.push_back(
          concat(path, ": begins with a byte-order mark, which is no part of the text"));
    }
  }
  return remarks;
}

std::vector<TextFile> read_documents(const TextInput& input,
                                     bool in_pieces,
                                     const DocumentSink& sink,
                                     const ReadProgress& progress) {
  check<ValueError>(!input.files.empty(), "text: no input file is given");
  uint64_t total = 0;
  for (const std::string& path : input.files) {
    total += InputFile(path).size();
  }
  uint64_t before = 0;
  std::vector<TextFile> files;
  for (const std::string& path : input.files) {
    const bool json =
        !input.json_key.empty() || path.ends_with(".jsonl") || path.ends_with(".json");
    const std::string key = input.json_key.empty() ? "text" : input.json_key;
    LineReader reader(path);
    const auto file = static_cast<int64_t>(files.size());
    DocumentBuffer document(in_pieces, file, sink);
    std::string line;
    uint64_t reported = 0;
    for (int64_t number = 1; reader.next(line); ++number) {
      if (json) {
        if (!is_blank(line)) {
          const size_t newline = line.ends_with('\n') ? 1 : 0;
          sink(json_text(line, key, path, number), true,
               {file, static_cast<int64_t>(reader.offset()),
                static_cast<int64_t>(line.size() - newline)});
        }
      } else if (input.split_documents == DocumentSplit::kBlankLine && is_blank(line)) {
        if (document.open()) {
          document.end_document();
        }
      } else {
        document.add(line, reader.offset());
      }
      if (progress && reader.bytes_read() != reported) {
        reported = reader.bytes_read();
        progress(before + reported, total);
      }
    }
    if (document.open()) {
      document.end_document();
    }
    before += reader.bytes_read();
    files.push_back(reader.file());
  }
  return files;
}

}  // namespace tapestry::data
