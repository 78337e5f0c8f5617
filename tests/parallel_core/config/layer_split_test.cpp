#include "parallel_core/config/layer_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "autograd/tensor/error.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

ModelParallelConfig pipeline(int64_t stages, int64_t chunks = 1) {
  ModelParallelConfig config;
  config.pipeline_model_parallel_size = stages;
  if (chunks > 1) {
    config.virtual_pipeline_model_parallel_size = chunks;
  }
  return config;
}

TEST(LayerSplit, TheRemainderAvoidsTheLastStage) {
  EXPECT_EQ(layers_per_chunk(8, pipeline(1)), (LayerTable{{8}}));
  EXPECT_EQ(layers_per_chunk(8, pipeline(4)), (LayerTable{{2, 2, 2, 2}}));
  EXPECT_EQ(layers_per_chunk(7, pipeline(4)), (LayerTable{{2, 2, 2, 1}}));
  EXPECT_EQ(layers_per_chunk(5, pipeline(4)), (LayerTable{{1, 1, 2, 1}}));
  EXPECT_EQ(layers_per_chunk(3, pipeline(2)), (LayerTable{{2, 1}}));
}

TEST(LayerSplit, InterleavingDividesOverVirtualStagesFirst) {
  EXPECT_EQ(layers_per_chunk(8, pipeline(2, 2)), (LayerTable{{2, 2}, {2, 2}}));
  EXPECT_EQ(layers_per_chunk(11, pipeline(2, 2)), (LayerTable{{3, 3}, {3, 2}}));
  const auto ranges = layer_ranges(11, pipeline(2, 2));
  EXPECT_EQ(ranges[0][1], (LayerRange{3, 3}));
  EXPECT_EQ(ranges[1][0], (LayerRange{6, 3}));
  EXPECT_EQ(ranges[1][1], (LayerRange{9, 2}));
}

TEST(LayerSplit, TablesSayItThemselves) {
  ModelParallelConfig list = pipeline(4);
  list.num_layer_list = {{2, 3, 1, 2}};
  EXPECT_EQ(layers_per_chunk(8, list), (LayerTable{{2, 3, 1, 2}}));
  ModelParallelConfig offset = pipeline(2, 2);
  offset.offset = {{1, 0}, {0, -1}};
  EXPECT_EQ(layers_per_chunk(8, offset), (LayerTable{{3, 2}, {2, 1}}));
  ModelParallelConfig uneven = pipeline(4);
  uneven.offset = {{1, 1, 0, 0}};
  EXPECT_EQ(layers_per_chunk(10, uneven), (LayerTable{{3, 3, 2, 2}}));
}

TEST(LayerSplit, AnOffsetMayStandForSeveralChunks) {
  ModelParallelConfig config = pipeline(2, 2);
  config.offset = LayerTable{{0}};
  EXPECT_EQ(layers_per_chunk(8, config), (LayerTable{{2, 2}, {2, 2}}));
  config.offset = LayerTable{{1, 0}};  // of either chunk
  EXPECT_EQ(layers_per_chunk(6, config), (LayerTable{{2, 1}, {2, 1}}));
  // The sum counts after the row was repeated.
  EXPECT_THROW(layers_per_chunk(5, config), ValueError);
  config.offset = LayerTable{{1}};
  EXPECT_THROW(layers_per_chunk(5, config), ValueError);
}

TEST(LayerSplit, TheLastChunkMayHaveTheHeadAlone) {
  EXPECT_EQ(layers_per_chunk(3, pipeline(4)), (LayerTable{{1, 1, 1, 0}}));
  EXPECT_EQ(layers_per_chunk(3, pipeline(2, 2)), (LayerTable{{1, 1}, {1, 0}}));
  EXPECT_EQ(layers_per_chunk(7, pipeline(4, 2)), (LayerTable{{1, 1, 1, 1}, {1, 1, 1, 0}}));
  ModelParallelConfig config = pipeline(2);
  config.num_layer_list = {{4, 0}};
  EXPECT_EQ(layers_per_chunk(4, config), (LayerTable{{4, 0}}));
  EXPECT_EQ(layer_ranges(4, config)[0][1], (LayerRange{4, 0}));
  config.num_layer_list.reset();
  config.offset = {{2, -2}};
  EXPECT_EQ(layers_per_chunk(4, config), (LayerTable{{4, 0}}));
}

TEST(LayerSplit, AStandaloneEmbeddingHasNoLayers) {
  ModelParallelConfig config = pipeline(3);
  config.standalone_embedding_stage = true;
  EXPECT_EQ(layers_per_chunk(5, config), (LayerTable{{0, 3, 2}}));
  config.num_layer_list = {{1, 4}};
  EXPECT_EQ(layers_per_chunk(5, config), (LayerTable{{0, 1, 4}}));
}

std::string refusal(int64_t layers, const ModelParallelConfig& config) {
  try {
    layers_per_chunk(layers, config);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(LayerSplit, RefusesWhatDoesNotFit) {
  EXPECT_THAT(refusal(2, pipeline(4)), HasSubstr("4 pipeline chunks for 2 layers"));
  EXPECT_THAT(refusal(6, pipeline(4, 2)), HasSubstr("8 pipeline chunks for 6 layers"));
  EXPECT_THAT(refusal(0, pipeline(1)), HasSubstr("one would have 0"));
  EXPECT_THAT(refusal(4, pipeline(1, 2)), HasSubstr("at least 2 stages"));
  ModelParallelConfig config = pipeline(2);
  config.num_layer_list = {{3, 2}};
  EXPECT_THAT(refusal(4, config), HasSubstr("num_layer_list adds up to 5; expected 4"));
  config.num_layer_list = {{0, 4}};
  EXPECT_THAT(refusal(4, config), HasSubstr("one would have 0"));
  config.num_layer_list = {{1, 1, 2}};
  EXPECT_THAT(refusal(4, config), HasSubstr("has 1 row(s) of 3; the pipeline needs 1 of 2"));
  config.num_layer_list = {{2, 2}};
  config.offset = {{0, 0}};
  EXPECT_THAT(refusal(4, config), HasSubstr("keep one"));
  config.num_layer_list.reset();
  config.offset = {{1, 0}};
  EXPECT_THAT(refusal(4, config), HasSubstr("offset adds up to 1; expected 0"));
  config.offset = {{-2, 2}};
  EXPECT_THAT(refusal(4, config), HasSubstr("one would have 0"));
  ModelParallelConfig standalone = pipeline(2, 2);
  standalone.standalone_embedding_stage = true;
  EXPECT_THAT(refusal(8, standalone), HasSubstr("standalone_embedding_stage"));
}

}  // namespace
}  // namespace tapestry
