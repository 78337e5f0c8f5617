#include "diagnosis/dump/csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "autograd/io/input_file.h"

namespace tapestry::dump {
namespace {

constexpr uint64_t kMaxTableBytes = uint64_t{4} << 30U;

/// Takes a text apart, line by line.
class CsvScanner {
 public:
  CsvScanner(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  /// The number, from 1, of the line that next() has read.
  int64_t line() const { return line_; }

  /// False at the end, or where the last line has none.
  bool next(std::vector<std::string>& fields) {
    fields.clear();
    line_ = next_line_;
    while (at_ < text_.size()) {
      std::string field;
      if (!take_field(field)) {
        return false;
      }
      fields.push_back(std::move(field));
      if (text_[at_] == ',') {
        ++at_;
        continue;
      }
      at_ += text_[at_] == '\r' ? 2 : 1;
      ++next_line_;
      return true;
    }
    return false;
  }

 private:
  /// Leaves at_ on what ends the field; false at the end of the text.
  bool take_field(std::string& field) {
    if (text_[at_] != '"') {
      const size_t end = text_.find_first_of(",\n\"", at_);
      if (end == std::string_view::npos) {
        return false;
      }
      check<IoError>(text_[end] != '"', path_, ": line ", line_, ": a quote inside a field");
      field = text_.substr(at_, end - at_);
      at_ = end;
      if (text_[at_] == '\n' && !field.empty() && field.back() == '\r') {
        field.pop_back();
      }
      return true;
    }
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '"') {
        if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') {
          ++at_;
          break;
        }
        ++at_;
      } else if (text_[at_] == '\n') {
        ++next_line_;
      }
      field += text_[at_];
    }
    if (at_ >= text_.size() || (text_[at_] == '\r' && at_ + 1 >= text_.size())) {
      return false;
    }
    check<IoError>(text_[at_] == ',' || text_[at_] == '\n' || text_.substr(at_, 2) == "\r\n", path_,
                   ": line ", line_, ": text behind a closing quote");
    return true;
  }

  const std::string& path_;
  std::string_view text_;
  size_t at_ = 0;
  int64_t line_ = 1;
  int64_t next_line_ = 1;
};

}  // namespace

std::string csv_line(const std::vector<std::string>& fields) {
  std::string line;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) {
      line += ',';
    }
    if (fields[i].find_first_of(",\"\n\r") == std::string::npos) {
      line += fields[i];
      continue;
    }
    line += '"';
    for (const char letter : fields[i]) {
      line += letter;
      if (letter == '"') {
        line += '"';
      }
    }
    line += '"';
  }
  line += '\n';
  return line;
}

CsvTable::CsvTable(const std::string& path) : path_(path) {
  const std::string text = read_file(path, kMaxTableBytes);
  CsvScanner scanner(path_, text);
  check<IoError>(scanner.next(columns_), path, ": line 1: the names of the columns are missing");
  std::vector<std::string> fields;
  while (scanner.next(fields)) {
    check<IoError>(fields.size() == columns_.size(), path, ": line ", scanner.line(), ": ",
                   fields.size(), " fields where line 1 has ", columns_.size());
    rows_.push_back({scanner.line(), fields});
  }
}

std::optional<size_t> CsvTable::find(std::string_view column) const {
  const auto found = std::find(columns_.begin(), columns_.end(), column);
  if (found == columns_.end()) {
    return std::nullopt;
  }
  return static_cast<size_t>(found - columns_.begin());
}

size_t CsvTable::column(std::string_view column) const {
  const auto found = find(column);
  check<IoError>(found.has_value(), path_, ": line 1: the column '", column, "' is missing");
  return *found;
}

void CsvTable::fail(size_t row, size_t column, std::string_view reason) const {
  throw IoError(concat(path_, ": line ", rows_[row].line, ": ", columns_[column], ": '",
                       at(row, column), "' ", reason));
}

std::string number_field(double value) {
  if (std::isnan(value)) {
    return "nan";  // of either sign
  }
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end};
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || stop != end ||
      (error != std::errc() && error != std::errc::result_out_of_range)) {
    return std::nullopt;
  }
  return value;
}

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) {
    return std::nullopt;
  }
  return value;
}

}  // namespace tapestry::dump
