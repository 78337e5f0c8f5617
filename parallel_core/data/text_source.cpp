#include "parallel_core/data/text_source.h"

#include <algorithm>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/data/line_reader.h"

namespace tapestry::data {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20U;

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
    if (begins_with_byte_order_mark(InputFile(path))) {
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
