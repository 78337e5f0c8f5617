// Folders and locks, and whole files as `data::read_file`.
#pragma once

#include <string>
#include <vector>

#include "autograd/io/input_file.h"

namespace tapestry::data {

using tapestry::read_file;

/// Makes the folder and those above it. IoError if that fails.
void make_directories(const std::string& path);

/// Removes temporaries of AtomicFile in a folder whose process is gone, of files whose names begin
/// with `name`. Returns remarks.
std::vector<std::string> remove_stale_temporaries(const std::string& directory,
                                                  const std::string& name = "");

/// Holds an exclusive lock on a folder, across processes, while it lives.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace tapestry::data
