#include "parallel_core/config/layer_split.h"

#include <numeric>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

std::vector<int64_t> divide(int64_t count, int64_t parts) {
  std::vector<int64_t> out(static_cast<size_t>(parts), count / parts);
  for (int64_t i = 0; i < count % parts; ++i) {
    ++out[static_cast<size_t>(parts - 2 - i)];
  }
  return out;
}

LayerTable even_split(int64_t layers, int64_t ranks, int64_t chunks) {
  LayerTable table;
  for (const int64_t part : divide(layers, chunks)) {
    table.push_back(divide(part, ranks));
  }
  return table;
}

void check_table(const char* key, const LayerTable& table, int64_t ranks, int64_t chunks) {
  bool fits = static_cast<int64_t>(table.size()) == chunks;
  for (const auto& row : table) {
    fits = fits && static_cast<int64_t>(row.size()) == ranks;
  }
  check<ValueError>(fits, key, " has ", table.size(), " row(s) of ",
                    table.empty() ? 0 : table.front().size(), "; the pipeline needs ", chunks,
                    " of ", ranks);
}

// One number stands for every chunk, one row for every virtual stage.
LayerTable over_all_chunks(LayerTable table, int64_t ranks, int64_t chunks) {
  if (table.size() == 1) {
    std::vector<int64_t>& row = table.front();
    if (row.size() == 1) {
      row.assign(static_cast<size_t>(ranks), row.front());
    }
    const std::vector<int64_t> same = row;
    table.assign(static_cast<size_t>(chunks), same);
  }
  return table;
}

void check_sum(const char* key, const LayerTable& table, int64_t expected) {
  int64_t sum = 0;
  for (const auto& row : table) {
    sum = std::accumulate(row.begin(), row.end(), sum);
  }
  check<ValueError>(sum == expected, key, " adds up to ", sum, "; expected ", expected);
}

}  // namespace

LayerTable layers_per_chunk(int64_t num_layers, const ModelParallelConfig& config) {
  const int64_t stages = config.pipeline_model_parallel_size;
  const int64_t chunks = config.virtual_pipeline_model_parallel_size.value_or(1);
  const bool standalone = config.standalone_embedding_stage;
  check<ValueError>(stages >= 1 && chunks >= 1,
                    "a pipeline has at least one stage and one chunk, got ", stages, " and ",
                    chunks);
  check<ValueError>(chunks == 1 || stages >= 2, chunks,
                    " chunks need a pipeline of at least 2 stages to be interleaved, got 1");
  check<ValueError>(!standalone || (stages >= 2 && chunks == 1),
                    "standalone_embedding_stage needs at least 2 pipeline stages and no "
                    "interleaving, got ",
                    stages, " stages of ", chunks, " chunks");
  check<ValueError>(!config.num_layer_list || !config.offset,
                    "num_layer_list and offset both give the layers of a stage; keep one");
  const int64_t ranks = stages - (standalone ? 1 : 0);
  LayerTable table;
  if (config.num_layer_list) {
    table = *config.num_layer_list;
    check_table("num_layer_list", table, ranks, chunks);
    check_sum("num_layer_list", table, num_layers);
  } else if (config.offset) {
    table = over_all_chunks(*config.offset, ranks, chunks);
    check_table("offset", table, ranks, chunks);
    check_sum("offset", table, num_layers % (ranks * chunks));
    for (auto& row : table) {
      for (int64_t& count : row) {
        count += num_layers / (ranks * chunks);
      }
    }
  } else {
    check<ValueError>(num_layers >= ranks * chunks - 1, ranks * chunks, " pipeline chunks for ",
                      num_layers, " layers: every chunk but the last needs a layer");
    table = even_split(num_layers, ranks, chunks);
  }
  for (size_t chunk = 0; chunk < table.size(); ++chunk) {
    for (size_t rank = 0; rank < table[chunk].size(); ++rank) {
      const int64_t count = table[chunk][rank];
      const bool is_last = chunk + 1 == table.size() && rank + 1 == table[chunk].size();
      check<ValueError>(count > 0 || (is_last && count == 0 && ranks * chunks > 1),
                        "every pipeline chunk but the last needs a layer, one would have ", count);
    }
  }
  if (standalone) {
    table.front().insert(table.front().begin(), 0);
  }
  return table;
}

std::vector<std::vector<LayerRange>> layer_ranges(int64_t num_layers,
                                                  const ModelParallelConfig& config) {
  std::vector<std::vector<LayerRange>> ranges;
  int64_t first = 0;
  for (const auto& row : layers_per_chunk(num_layers, config)) {
    auto& out = ranges.emplace_back();
    for (const int64_t count : row) {
      out.push_back({first, count});
      first += count;
    }
  }
  return ranges;
}

}  // namespace tapestry
