// A folder that goes with its object.
#pragma once

#include <string>

namespace tapestry::accuracy {

class TemporaryFolder {
 public:
  /// In the system's folder for temporary files. IoError if it cannot be made.
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const;

 private:
  std::string path_;
};

}  // namespace tapestry::accuracy
