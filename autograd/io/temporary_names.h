// Names of files that are being written, for the handler of a signal that ends the program.
#pragma once

#include <string>

namespace tapestry {

/// A file that is to go if the process ends before it is done. What finds no place in the table (of
/// a thousand) stays behind then.
class TemporaryName {
 public:
  TemporaryName() = default;
  explicit TemporaryName(const std::string& path);
  TemporaryName(TemporaryName&& other) noexcept;
  TemporaryName& operator=(TemporaryName&& other) noexcept;
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;
  ~TemporaryName();

 private:
  int place_ = -1;
};

/// Removes the files of all names that there are. May be called by the handler of a signal; the
/// process has to end then.
void remove_temporaries() noexcept;

}  // namespace tapestry
