#include "diagnosis/dump/dump_layout.h"

#include <filesystem>

namespace tapestry::dump {

namespace fs = std::filesystem;

std::string rank_folder_name(int64_t rank) { return "rank_" + std::to_string(rank); }

std::string unfinished_name(int64_t iteration) {
  return "." + std::to_string(iteration) + ".unfinished";
}

std::string table_in(const std::string& folder) {
  for (const std::string_view name : {kStatisticTable, kTensorTable}) {
    const fs::path path = fs::path(folder) / name;
    if (std::error_code error; fs::is_regular_file(path, error)) {
      return path.string();
    }
  }
  return {};
}

bool is_iteration_folder(const std::string& folder) {
  std::error_code error;
  return fs::is_directory(folder, error) &&
         (fs::is_empty(folder, error) || !table_in(folder).empty());
}

}  // namespace tapestry::dump
