#include "autograd/io/packed_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <mutex>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

struct PackedKind {
  std::string ending;
  ReadPackedFolder read = nullptr;
};

std::vector<PackedKind>& packed_kinds() {
  static std::vector<PackedKind> kinds;
  return kinds;
}

const PackedKind* kind_of_path(std::string_view path) {
  for (const PackedKind& kind : packed_kinds()) {
    if (path.size() > kind.ending.size() && path.ends_with(kind.ending)) {
      return &kind;
    }
  }
  return nullptr;
}

// What tells one content of a path from another.
using FileMark = std::array<int64_t, 5>;

FileMark mark_of(const std::string& path) {
  struct stat status {};
  check<IoError>(::stat(path.c_str(), &status) == 0, path, ": cannot be read");
  return {static_cast<int64_t>(status.st_dev), static_cast<int64_t>(status.st_ino),
          static_cast<int64_t>(status.st_size), static_cast<int64_t>(status.st_mtim.tv_sec),
          static_cast<int64_t>(status.st_mtim.tv_nsec)};
}

struct Kept {
  std::string path;
  FileMark mark;
  std::shared_ptr<const PackedFiles> files;
};

}  // namespace

bool register_packed_folder(std::string_view ending, ReadPackedFolder read) {
  for (const PackedKind& kind : packed_kinds()) {
    check<RuntimeError>(kind.ending != ending, "packed folders: ", ending, " is known already");
  }
  packed_kinds().push_back({std::string(ending), read});
  return true;
}

bool is_packed_folder(const std::string& path) {
  std::error_code ignored;
  return kind_of_path(path) != nullptr && fs::is_regular_file(path, ignored);
}

bool folder_exists(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) || is_packed_folder(path);
}

PackedPath packed_path(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos || slash + 1 == path.size()) {
    return {};
  }
  std::string folder = path.substr(0, slash);
  return is_packed_folder(folder) ? PackedPath{std::move(folder), path.substr(slash + 1)}
                                  : PackedPath{};
}

bool path_exists(const std::string& path) {
  if (const PackedPath found = packed_path(path); !found.name.empty()) {
    return packed_files(found.folder)->contains(found.name);
  }
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::shared_ptr<const PackedFiles> packed_files(const std::string& path) {
  constexpr size_t kMost = 4;
  static std::mutex mutex;
  static std::vector<Kept> kept;  // those that were asked for last at the end
  const PackedKind* kind = kind_of_path(path);
  check<ValueError>(kind != nullptr, path, ": is no file that stands for a folder");
  const std::lock_guard lock(mutex);
  const FileMark mark = mark_of(path);
  const auto same =
      std::find_if(kept.begin(), kept.end(), [&](const Kept& one) { return one.path == path; });
  if (same != kept.end() && same->mark == mark) {
    std::rotate(same, same + 1, kept.end());
    return kept.back().files;
  }
  auto files = std::make_shared<const PackedFiles>(kind->read(path));
  if (same != kept.end()) {
    kept.erase(same);
  }
  if (kept.size() == kMost) {
    kept.erase(kept.begin());
  }
  kept.push_back({path, mark, files});
  return files;
}

}  // namespace tapestry
