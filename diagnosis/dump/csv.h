// Tables as text: comma-separated values of RFC 4180.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::dump {

/// The fields as a line with its end; those with a comma, a quote or a line's end are quoted.
std::string csv_line(const std::vector<std::string>& fields);

/// A table in a file, read whole, whose first line names its columns.
class CsvTable {
 public:
  /// IoError, with file and line, for a file that cannot be read or is above 4 GiB, quotes out of
  /// place, and a line of another number of fields than the first. A last line without its end,
  /// as a kill leaves it, is left out.
  explicit CsvTable(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<std::string>& columns() const { return columns_; }
  std::optional<size_t> find(std::string_view column) const;
  /// The same; IoError if there is none.
  size_t column(std::string_view column) const;

  size_t size() const { return rows_.size(); }
  const std::string& at(size_t row, size_t column) const { return rows_[row].fields[column]; }

  /// Throws IoError "PATH: line N: COLUMN: 'FIELD' REASON".
  [[noreturn]] void fail(size_t row, size_t column, std::string_view reason) const;

 private:
  struct Row {
    int64_t line = 0;
    std::vector<std::string> fields;
  };
  std::string path_;
  std::vector<std::string> columns_;
  std::vector<Row> rows_;
};

/// The shortest text that reads back as the same number: "0.1", "1e-30", "nan", "-inf".
std::string number_field(double value);
/// Nothing for a text that is no number, or has anything behind it.
std::optional<double> parse_number(std::string_view text);
std::optional<int64_t> parse_integer(std::string_view text);

}  // namespace tapestry::dump
