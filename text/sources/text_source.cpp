#include "text/sources/text_source.h"

#include <algorithm>

#include "autograd/io/input_file.h"
#include "autograd/tensor/error.h"
#include "text/sources/json_line.h"
#include "text/sources/line_reader.h"
#include "text/sources/text_files.h"

namespace tapestry::data {
namespace {

// SentencePiece keeps all pairs of a text in one heap: short texts are encoded four times as fast
// as those of a MiB.
constexpr size_t kPieceBytes = size_t{1} << 14U;

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
                      bool is_usual_key,
                      const std::string& place) {
  const JsonLine parsed = parse_json_line(line, place);
  const auto text = parsed.value.find(key);
  if (text == parsed.value.end() || !text->is_string()) {
    std::string strings;
    for (const auto& [name, value] : parsed.value.items()) {
      if (value.is_string()) {
        strings += concat(strings.empty() ? "" : ", ", "\"", name, "\"");
      }
    }
    throw ValueError(concat(
        place, ": ",
        text == parsed.value.end() ? concat("has no key \"", key, "\"")
                                   : concat("the value of \"", key, "\" is a JSON ",
                                            text->type_name(), ", expected a string"),
        !is_usual_key ? ""
        : parsed.value.contains("messages") || parsed.value.contains("prompt")
            ? "; examples for fine-tuning belong into dataset_config.sft_data_path"
            : "; where it has another name: preprocess_data --json_key NAME, which makes a data "
              "set for dataset_config.data_path",
        strings.empty() ? "" : concat("; strings of this object: ", strings)));
  }
  check_no_lone_surrogate(parsed, text->get_ref<const std::string&>(), place);
  return text->get<std::string>();
}

// Whether a text that is not named so is JSONL.
bool looks_like_json_lines(const std::string& path) {
  constexpr uint64_t kMost = 1 << 20U;
  std::string line;
  try {
    LineReader reader(path, kMost);
    if (!reader.next(line) || line.find('{') == std::string::npos) {
      return false;
    }
    const JsonLine parsed = parse_json_line(line, path + ":1");
    return parsed.value.contains("text") || parsed.value.contains("messages") ||
           parsed.value.contains("prompt");
  } catch (const ValueError&) {
    return false;
  }
}

}  // namespace

void BadLines::add(const std::string& message) {
  constexpr size_t kMostShown = 10;
  ++count;
  if (first.size() < kMostShown) {
    first.push_back(message);
  }
}

std::string BadLines::text() const {
  if (count == 0) {
    return "";
  }
  std::string text =
      concat(count, count == 1 ? " bad line is left out" : " bad lines are left out");
  for (size_t i = 0; i < first.size(); ++i) {
    text += concat(i == 0 ? ": " : "; ", first[i]);
  }
  const int64_t more = count - static_cast<int64_t>(first.size());
  return more > 0 ? concat(text, "; and ", more, " more") : text;
}

std::vector<std::string> check_text_files(const std::vector<std::string>& files, bool json_lines) {
  std::vector<std::string> remarks;
  for (const std::string& path : files) {
    if (begins_with_byte_order_mark(InputFile(path))) {
      remarks.push_back(
          concat(path, ": begins with a byte-order mark, which is no part of the text"));
    }
    if (!json_lines && !is_json_lines_name(path) && looks_like_json_lines(path)) {
      remarks.push_back(concat(path,
                               ": looks like JSONL, but is read as plain text, braces and all, "
                               "as its name says; name it *.jsonl if its lines are documents"));
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
    const bool json = !input.json_key.empty() || is_json_lines_name(path);
    const std::string key = input.json_key.empty() ? "text" : input.json_key;
    LineReader reader(path);
    const auto file = static_cast<int64_t>(files.size());
    DocumentBuffer document(in_pieces, file, sink);
    const auto read_line = [&](const std::string& line, const std::string& place,
                               const TextPlace& at) {
      std::string text;
      try {
        text = json_text(line, key, input.json_key.empty(), place);
      } catch (const ValueError& error) {
        if (!input.on_bad_line) {
          throw;
        }
        input.on_bad_line(error.what());
        return;
      }
      sink(text, true, at);
    };
    std::string line;
    uint64_t reported = 0;
    for (int64_t number = 1; reader.next(line); ++number) {
      if (json) {
        if (!is_blank(line)) {
          read_line(line, concat(path, ":", number),
                    {file, static_cast<int64_t>(reader.offset()),
                     static_cast<int64_t>(line.size() - (line.ends_with('\n') ? 1 : 0))});
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
