#include "diagnosis/accuracy/run_hashes.h"

#include <filesystem>
#include <fstream>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "diagnosis/report/plot/metrics_file.h"

namespace tapestry::accuracy {

namespace {

namespace fs = std::filesystem;

constexpr const char* kHashesFile = "hashes.jsonl";

}  // namespace

RunHashes read_run_hashes(const std::string& folder) {
  RunHashes out;
  const std::string file = plot::metrics_file(folder);
  out.folder = fs::path(file).parent_path().string();
  std::map<int64_t, bool> has_hash;
  plot::read_metrics_lines(file, [&](const plot::MetricsLine& line) {
    const auto hash = line.json.find("hash");
    has_hash[line.step] = hash != line.json.end() && hash->is_string();
    if (has_hash[line.step]) {
      out.steps[line.step] = hash->get<std::string>();
    } else {
      out.steps.erase(line.step);
    }
    if (const auto tokens = line.json.find("tokens"); tokens != line.json.end()) {
      out.tokens[line.step] = tokens->get<int64_t>();
    }
  });
  for (const auto& [step, has] : has_hash) {
    if (!has) {
      out.without.push_back(step);
    }
  }
  return out;
}

std::string class_of_hash(const std::string& hash) {
  const size_t colon = hash.find(':');
  return colon == std::string::npos ? std::string() : hash.substr(0, colon);
}

std::vector<std::pair<std::string, std::string>> read_parameter_hashes(const std::string& folder,
                                                                       int64_t step) {
  std::vector<std::pair<std::string, std::string>> out;
  const std::string path = (fs::path(folder) / kHashesFile).string();
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded() || !json.contains("step") || json["step"] != step) {
      continue;
    }
    out.clear();  // trained again: the last one counts
    for (const auto& [name, hash] : json["parameters"].items()) {
      out.emplace_back(name, hash.get<std::string>());
    }
  }
  return out;
}

}  // namespace tapestry::accuracy
