// The list of a checkpoint's files with their sizes and checksums.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "parallel_core/comm/process_group.h"

namespace tapestry {

inline constexpr const char* kManifestFile = "manifest.json";

struct Manifest {
  struct File {
    uint64_t bytes = 0;
    uint32_t crc32c = 0;
  };
  int64_t step = 0;
  std::map<std::string, File> files;  ///< by name; all but the manifest itself
};

/// With the list's own checksum, without which a changed bit in it would be blamed on another file.
std::string manifest_text(const Manifest& manifest);

/// The manifest of a checkpoint's folder; empty if it has none, as plain model folders. IoError,
/// naming file and member, for one that is not as manifest_text writes it.
std::optional<Manifest> read_manifest(const std::string& folder);

/// Which files of a checkpoint are looked at.
enum class CheckpointPart : uint8_t {
  kAll,
  kWeights,  ///< and their index (is_weights_file)
};

/// IoError, naming the file and what is wrong with it, unless every file of the manifest is there
/// with its size and, where asked for, its checksum. Collective: each rank reads its share of the
/// bytes, and all of them throw alike. Nothing for a folder without a manifest.
void verify_checkpoint(const std::string& folder,
                       bool checksums,
                       ProcessGroup& world,
                       CheckpointPart of = CheckpointPart::kAll);

/// The same of this process alone, as a text: empty if nothing is wrong.
std::string fault_of_checkpoint(const std::string& folder,
                                bool checksums,
                                CheckpointPart of = CheckpointPart::kAll);

}  // namespace tapestry
