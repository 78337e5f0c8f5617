// A layout of ranks that a run could have, and all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry::planning {

/// A run in one layout.
struct Layout {
  AllConfig config;  ///< complete, as a run would read it
  int64_t data_parallel_size = 1;

  int64_t ranks() const;
  /// Ranks of a pipeline stage: tensor x context x data parallel.
  int64_t ranks_of_stage() const;
  /// "tp 2, sp, pp 2 (5, 3), dp 2, z1; 4 sequences x 8"
  std::string text() const;
};

/// What of a layout is chosen. Zeros and empty lists: as parallel_config has it without the key.
struct LayoutChoice {
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t context = 1;
  int64_t data = 1;
  int64_t expert = 1;
  int64_t expert_tensor = 0;  ///< 0: as tensor
  int64_t chunks = 1;         ///< of each rank of the pipeline
  int64_t micro_batch = 1;    ///< sequences
  int zero_level = 0;
  bool sequence_parallel = false;
  bool recompute = false;  ///< every layer whole, whatever the run says
  bool overlap = false;    ///< of gradients, whatever the run says
  std::vector<int64_t> layers;

  int64_t ranks() const { return tensor * pipeline * context * data; }
};

/// What a layout must keep of the run.
struct KeptBatch {
  int64_t sequences = 1;  ///< of a step
  /// Sequences of a micro-batch, where they change what is computed; 0: any number of them.
  int64_t micro_batch = 0;
};

/// The batch of a run on so many data-parallel ranks. Micro-batches count where a loss is the mean
/// of their means over tokens that count, or a router's statistics are theirs.
KeptBatch kept_batch(const AllConfig& config, int64_t data_parallel_size);

/// The run in that layout, or why a run refuses it: the first line of what its own checks say.
struct LayoutOrRefusal {
  Layout layout;
  std::string refusal;  ///< empty: there is a layout
};
LayoutOrRefusal make_layout(const AllConfig& config,
                            const LayoutChoice& choice,
                            const KeptBatch& batch);

/// All choices of exactly so many ranks that keep the batch, without zero levels and
/// recomputation: sizes of each kind of parallelism, chunks of a pipeline, and micro-batches. Of
/// `hosts` machines with as many ranks each, tensor and context parallelism stay on one.
std::vector<LayoutChoice> all_choices(const AllConfig& config,
                                      int64_t ranks,
                                      int64_t hosts,
                                      const KeptBatch& batch);

/// Layers of each stage of such a pipeline, so that the slowest takes as little as possible, if
/// that is another split than the even one; else empty. `head` is the time of what comes behind
/// the layers, as a multiple of a layer's.
std::vector<int64_t> balanced_layers(int64_t layers, int64_t stages, double head);

}  // namespace tapestry::planning
