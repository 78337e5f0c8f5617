// MindFormers 2.0's sections as those of the schema.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry::config::mindformers2 {

/// Whether a file has the sections of MindFormers 2.0: more of those that only its files have
/// (training, parallelism, lr_scheduler, ...) than of those of 1.x, ours and static ones.
bool is_dialect(const RawNode& root);

/// Whether an override, "training.steps", is one of a file of 2.0's own keys.
bool is_own_path(const std::string& path);

/// Puts "section.key=value" into the tree; false if its path goes through a list.
bool put_override(RawNode& root,
                  const std::string& text,
                  const Place& place,
                  std::vector<std::string>& errors);

struct Translation {
  RawNode root;  ///< sections of the schema; every node has the place of what it comes from
  std::vector<std::string> errors;
  std::vector<std::string> notes;
};

/// `ranks` are those of the whole job, and go after `data_parallel_size`. Without both, one
/// data-parallel rank is assumed, unless parallelism.data_parallel_shard or
/// parallel_config.data_parallel_size below `tapestry` says how many there are.
Translation translate(const RawNode& root,
                      std::optional<int64_t> ranks,
                      std::optional<int64_t> data_parallel_size = {});

}  // namespace tapestry::config::mindformers2
