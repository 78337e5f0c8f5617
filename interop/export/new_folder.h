// A folder that appears under its name complete and on disk, or not at all.
#pragma once

#include <string>

namespace tapestry {

class NewFolder {
 public:
  /// Makes a temporary sibling (".NAME.tmp-PID"). ValueError if the path is there already and no
  /// empty folder, IoError if it cannot be made.
  explicit NewFolder(const std::string& path);
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  /// Without commit(): removes it.
  ~NewFolder();

  /// Where its files go until then.
  const std::string& temporary() const { return temporary_; }
  /// Gives it its name. IoError.
  void commit();

 private:
  std::string path_;
  std::string temporary_;  // empty once renamed
};

}  // namespace tapestry
