// Which layers a configuration recomputes, and with which patterns of operations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry {

/// Layers in which the operations that a pattern names are recomputed: table[chunk][stage] says how
/// many, always the first of the cell.
struct PatternLayers {
  std::string pattern;
  LayerTable layers;
  bool operator==(const PatternLayers&) const = default;
};

/// recompute_config with every choice as such tables.
struct RecomputeTables {
  LayerTable layer_recompute;
  std::vector<PatternLayers> select_recompute;
  std::vector<PatternLayers> select_comm_recompute;
  std::vector<PatternLayers> select_recompute_exclude;
  std::vector<PatternLayers> select_comm_recompute_exclude;
};

/// `counts` are the layers of each cell (layers_per_chunk). True: all of them, False: none. A
/// number for each stage is dealt out over its chunks one layer at a time, chunk 0 first, full
/// chunks left out; a row for each chunk is taken as it is. No number exceeds what its cells hold.
/// ValueError for another number of stages or chunks, naming `key`.
LayerTable normalised_layers(const std::string& key,
                             const RecomputeChoice& choice,
                             const LayerTable& counts);

/// The same for each pattern, in the order in which they were written: those of a list hold for all
/// layers; layers without patterns are for each of `usual`.
std::vector<PatternLayers> normalised_patterns(const std::string& key,
                                               const RecomputeChoice& choice,
                                               const LayerTable& counts,
                                               const std::vector<std::string>& usual);

RecomputeTables recompute_tables(const RecomputeConfig& config, const LayerTable& counts);

/// Of every layer of the model. recompute_config counts; where it recomputes nothing,
/// recompute_granularity and its method, recompute_activations, select_recompute and
/// select_comm_recompute of model_config. A pattern that is both selected and excluded is left out
/// of the selection. ValueError as normalised_layers(), and for numbers of layers that the model
/// does not have.
std::vector<LayerRecompute> layer_recompute(const AllConfig& config);

/// Whether some layer recomputes or keeps anything in another way than without these keys.
bool recomputes(const std::vector<LayerRecompute>& layers);

/// Four lines for the log: how many layers each stage has, the running totals, and each layer's
/// stage and chunk.
std::string layer_placement_text(const LayerTable& counts);

/// "Formative layer_recompute: .." and the same for the selections, as lines; those of exclusions
/// if there are any.
std::string formative_text(const RecomputeTables& tables);

/// Lines for the log: what recompute_config comes to, as tables, and patterns that were left out
/// because they are excluded. Empty without recompute_config, or where a boolean stands for it.
std::string recompute_config_text(const AllConfig& config);

/// What is wrong with a pattern: parts between "\." that are regular expressions; or empty.
std::string complaint_of_pattern(const std::string& pattern);

/// The parts of a pattern.
std::vector<std::string> parts_of_pattern(const std::string& pattern);

}  // namespace tapestry
