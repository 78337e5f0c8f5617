#include "parallel_core/dist_checkpointing/stored_hashes.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"

namespace tapestry {

std::string stored_hashes_text(const StoredHashes& hashes) {
  nlohmann::ordered_json out;
  out["hash"] = concat(hashes.bit_class, ":", hash_text(combined_hash(hashes.tensors)));
  out["class"] = hashes.bit_class;
  out["tensors"] = nlohmann::ordered_json::object();
  for (const auto& [name, hash] : hashes.tensors) {
    out["tensors"][name] = hash_text(hash);
  }
  return out.dump(1) + "\n";
}

std::optional<StoredHashes> read_stored_hashes(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / kHashesFile).string();
  std::ifstream file(path);
  if (!file.is_open()) {
    return std::nullopt;
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    StoredHashes hashes{.bit_class = json.at("class").get<std::string>(), .tensors = {}};
    for (const auto& [name, hash] : json.at("tensors").items()) {
      hashes.tensors.emplace(name, hash_of_text(hash.get<std::string>()));
    }
    return hashes;
  } catch (const std::exception& error) {
    throw IoError(concat(path, ": ", error.what()));
  }
}

void check_stored_hashes(const StoredHashes& stored,
                         const TensorHashes& found,
                         const std::string& folder) {
  constexpr int kNamed = 10;
  std::string names;
  int different = 0;
  for (const auto& [name, hash] : found) {
    const auto saved = stored.tensors.find(name);
    if (saved != stored.tensors.end() && saved->second != hash && ++different <= kNamed) {
      names += concat(names.empty() ? "" : ", ", name);
    }
  }
  if (different > kNamed) {
    names += concat(" and ", different - kNamed, " more");
  }
  check<RuntimeError>(different == 0, folder, ": ", kHashesFile, " has other hashes than ", names,
                      " as loaded: these tensors are not what was saved; go on from another "
                      "checkpoint");
}

}  // namespace tapestry
