// Which layers each stage of a pipeline holds.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry {

/// Layers [first, first + count) of the model, from 0.
struct LayerRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const LayerRange&) const = default;
};

/// Number of layers of each chunk, as table[virtual stage][pipeline rank]; chunk v of rank p is
/// model stage v * pp + p.
///
/// num_layer_list as it stands; with offset the even share num_layers / (pp * vpp) plus the offset,
/// of which one number stands for every chunk and one row for every virtual stage; else num_layers
/// are divided over the virtual stages and each part over the ranks, where the remainder r of a
/// division by n goes to parts n - 2, n - 3, .., one each, so that the last part, which also has
/// the head, is served last. With standalone_embedding_stage rank 0 has no layers and the others
/// share them; num_layer_list and offset then have pp - 1 entries.
///
/// The last chunk may have no layer: it then has the last norm and the head alone.
///
/// ValueError for a table of another shape or with another sum, another chunk without layers, both
/// tables at once, interleaving with fewer than two ranks, or a stand-alone embedding with one rank
/// or with interleaving.
LayerTable layers_per_chunk(int64_t num_layers, const ModelParallelConfig& config);

/// The same as ranges: ranges[v][p].
std::vector<std::vector<LayerRange>> layer_ranges(int64_t num_layers,
                                                  const ModelParallelConfig& config);

}  // namespace tapestry
