#include "diagnosis/accuracy/temporary_folder.h"

#include <cstdlib>
#include <filesystem>

#include "autograd/tensor/error.h"

namespace tapestry::accuracy {

namespace fs = std::filesystem;

// mkdtemp puts letters of its own in the place of the last six.
TemporaryFolder::TemporaryFolder()
    : path_((fs::temp_directory_path() / "tapestry-XXXXXX").string()) {
  check<IoError>(::mkdtemp(path_.data()) != nullptr, path_, ": cannot be made");
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code none;
  fs::remove_all(path_, none);
}

std::string TemporaryFolder::file(const std::string& name) const {
  return (fs::path(path_) / name).string();
}

}  // namespace tapestry::accuracy
