// Whole files, folders and locks.
#pragma once

#include <string>

namespace tapestry::data {

/// The whole file. IoError if it cannot be read.
std::string read_file(const std::string& path);

/// Makes the folder and those above it. IoError if that fails.
void make_directories(const std::string& path);

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
