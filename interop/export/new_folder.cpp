#include "interop/export/new_folder.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {
namespace fs = std::filesystem;
}  // namespace

NewFolder::NewFolder(const std::string& path) {
  fs::path given = fs::absolute(path).lexically_normal();
  if (given.filename().empty()) {  // "DIR/"
    given = given.parent_path();
  }
  path_ = given.string();
  std::error_code error;
  check<ValueError>(
      !fs::exists(path_, error) || (fs::is_directory(path_, error) && fs::is_empty(path_, error)),
      path, ": is there already; name a folder that is not, or remove it");
  fs::create_directories(given.parent_path(), error);
  const fs::path temporary =
      given.parent_path() / concat(".", given.filename().string(), ".tmp-", ::getpid());
  fs::remove_all(temporary, error);
  if (!fs::create_directory(temporary, error)) {
    throw_io_error(path, "make the folder", error.value());
  }
  temporary_ = temporary.string();
}

NewFolder::~NewFolder() {
  if (!temporary_.empty()) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
}

void NewFolder::commit() {
  sync_directory(temporary_);
  std::error_code error;
  fs::rename(temporary_, path_, error);  // replaces an empty folder
  if (error) {
    throw_io_error(path_, "rename its temporary", error.value());
  }
  temporary_.clear();
  sync_directory(fs::path(path_).parent_path().string());
}

}  // namespace tapestry
