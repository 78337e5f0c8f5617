#include "diagnosis/dump/dump_reader.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/strict_json.h"
#include "autograd/io/tensor_io.h"
#include "diagnosis/dump/dump_layout.h"

namespace tapestry::dump {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxSettingsBytes = uint64_t{1} << 20U;

std::optional<int64_t> index_of(std::string_view name) {
  const auto index = parse_integer(name);
  // One spelling per number, so that no two folders have the same.
  return index.has_value() && *index >= 0 && std::to_string(*index) == name ? index : std::nullopt;
}

/// Name and path of the folders in a folder, by name.
std::vector<std::pair<std::string, fs::path>> folders_in(const fs::path& folder) {
  std::vector<std::pair<std::string, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (std::error_code ignored; it->is_directory(ignored)) {
      found.emplace_back(it->path().filename().string(), it->path());
    }
  }
  check<IoError>(!error, folder.string(), ": cannot list the folder: ", error.message());
  std::sort(found.begin(), found.end());
  return found;
}

/// What a file holds for a value of this type; empty for types that only the other program knows.
std::optional<DType> stored_dtype(const std::string& data_type) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (name_of(dtype) == data_type) {
      return dtype == kBFloat16 ? kFloat32 : dtype;
    }
  }
  return std::nullopt;
}

}  // namespace

bool StoredTensor::has_all_elements() const {
  if (!has_value()) {
    return false;
  }
  std::error_code error;
  const uint64_t bytes = fs::file_size(fs::path(folder) / row.file, error);
  const auto elements = static_cast<uint64_t>(row.shape.numel());
  const auto item = static_cast<uint64_t>(size_of(stored_dtype(row.data_type).value_or(kInt8)));
  return error || bytes >= elements * item;  // a missing file is value()'s to report
}

Tensor StoredTensor::value() const {
  const std::string path = (fs::path(folder) / row.file).string();
  check<IoError>(is_plain_file_name(row.file), folder, ": '", row.file,
                 "' is no name of a file in this folder");
  Tensor value;
  try {
    value = load_npy(path);
  } catch (const TypeError& error) {
    throw IoError(error.what());
  }
  const int64_t numel = row.shape.numel();
  const bool sampled = value.dim() == 1 && value.numel() <= numel;
  check<IoError>(value.shape() == row.shape || sampled, path, ": has the shape ", value.shape(),
                 ", and its row in the table ", row.shape);
  const auto dtype = stored_dtype(row.data_type);
  check<IoError>(!dtype.has_value() || value.dtype() == *dtype, path, ": has the dtype ",
                 name_of(value.dtype()), ", and its row in the table ", row.data_type);
  return value;
}

DumpReader::DumpReader(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  check<IoError>(fs::is_directory(folder_, error), folder_, ": is no folder of a dump");
  for (const auto& [rank_name, rank_path] : folders_in(folder_)) {
    constexpr std::string_view kRank = "rank_";
    const auto rank = rank_name.starts_with(kRank)
                          ? index_of(std::string_view(rank_name).substr(kRank.size()))
                          : std::nullopt;
    if (!rank.has_value()) {
      continue;
    }
    for (const auto& [net_name, net_path] : folders_in(rank_path)) {
      for (const auto& [graph_name, graph_path] : folders_in(net_path)) {
        if (!index_of(graph_name).has_value()) {
          continue;  // execution_order, graphs, ...
        }
        for (const auto& [name, path] : folders_in(graph_path)) {
          if (const auto iteration = index_of(name);
              iteration.has_value() && !table_in(path.string()).empty()) {
            folders_[*iteration][*rank].push_back(path.string());
          } else if (name.starts_with('.') && name.ends_with(".unfinished")) {
            unfinished_.push_back(path.string());
          }
        }
      }
    }
  }
  const std::string cut_short =
      unfinished_.empty() ? "" : "; " + unfinished_.front() + " was cut short";
  check<IoError>(!folders_.empty(), folder_,
                 ": holds no iteration (rank_R/NET/GRAPH/ITERATION/statistic.csv)", cut_short);
}

std::vector<int64_t> DumpReader::iterations() const {
  std::vector<int64_t> iterations;
  for (const auto& [iteration, ranks] : folders_) {
    iterations.push_back(iteration);
  }
  return iterations;
}

std::vector<int64_t> DumpReader::ranks() const {
  std::set<int64_t> all;
  for (const auto& [iteration, ranks] : folders_) {
    for (const auto& [rank, folders] : ranks) {
      all.insert(rank);
    }
  }
  return {all.begin(), all.end()};
}

bool DumpReader::chose_ops() const {
  for (const int64_t rank : ranks()) {
    const fs::path file =
        fs::path(folder_) / concat("rank_", rank) / ".dump_metadata" / "data_dump.json";
    if (!fs::exists(file)) {
      continue;
    }
    const auto config = nlohmann::json::parse(read_file(file.string(), kMaxSettingsBytes), nullptr,
                                              /*allow_exceptions=*/false);
    const auto common = config.is_object() ? config.value("common_dump_settings", nlohmann::json())
                                           : nlohmann::json();
    if (common.is_object() &&
        (common.value("dump_mode", nlohmann::json(0)) != nlohmann::json(0) ||
         common.value("op_debug_mode", nlohmann::json(0)) != nlohmann::json(0))) {
      return true;
    }
  }
  return false;
}

std::vector<StoredTensor> DumpReader::tensors(int64_t iteration) const {
  std::vector<StoredTensor> tensors;
  const auto found = folders_.find(iteration);
  check<ValueError>(found != folders_.end(), folder_, ": has no iteration ", iteration);
  for (const auto& [rank, folders] : found->second) {
    for (const std::string& folder : folders) {
      const CsvTable table(table_in(folder));
      const DumpRowReader reader(table);
      for (size_t row = 0; row < table.size(); ++row) {
        tensors.push_back({rank, folder, row, reader.read(row)});
      }
    }
  }
  return tensors;
}

}  // namespace tapestry::dump
