// hashes.json: what the tensors of a checkpoint hashed to when it was saved in exact mode.
#pragma once

#include <optional>
#include <string>

#include "parallel_core/dist_checkpointing/state_hash.h"

namespace tapestry {

inline constexpr const char* kHashesFile = "hashes.json";

struct StoredHashes {
  std::string bit_class;  ///< exact_class()
  TensorHashes tensors;   ///< HashedState::kWeightsAndStates
};

/// {"hash": "CLASS:HEX", "class": "CLASS", "tensors": {"NAME": "HEX", ..}}, where hash is the
/// combined one of all tensors.
std::string stored_hashes_text(const StoredHashes& hashes);

/// Those of a checkpoint's folder; empty if it has none. IoError, naming the file, for one that is
/// malformed.
std::optional<StoredHashes> read_stored_hashes(const std::string& folder);

/// RuntimeError, with the folder and the names of tensors, if one that both have differs: weights
/// that are not those that were saved, on the disk, on their way or in memory.
void check_stored_hashes(const StoredHashes& stored,
                         const TensorHashes& found,
                         const std::string& folder);

}  // namespace tapestry
