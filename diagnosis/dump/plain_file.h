// A file that is written in order and stays as far as it has come if the process is killed.
#pragma once

#include <cstddef>
#include <fstream>
#include <string>
#include <string_view>

namespace tapestry::dump {

/// Each failure is an IoError that names the file and the reason.
class PlainFile {
 public:
  enum Mode { kNew, kAppend };
  PlainFile(std::string path, Mode mode);

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// What has been written survives the process.
  void flush();

 private:
  void check_stream(std::string_view action);

  std::string path_;
  std::ofstream stream_;
};

}  // namespace tapestry::dump
