#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/planning/costs/costs_file.h"
#include "parallel_core/planning/costs/measure_parts.h"
#include "parallel_core/planning/costs/part_timer.h"
#include "parallel_core/planning/costs/share_model.h"
#include "tests/parallel_core/planning/planning_testing.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::planning {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

MachineCosts some_costs() {
  MachineCosts costs{.machine = "a machine"};
  PartTimes& parts = costs.parts["2 x 1 threads: num_layers=1"];
  parts.layers.push_back(
      {.all = {0.25, 0.5}, .attention = {0.125, 0.0625}, .norms = {0.03125, 0.015625}});
  parts.before = {1e-9, 2e-9};
  parts.after = {3, 4};
  parts.update = 5;
  parts.fixed = 6;
  parts.parameters = 7e9;
  costs.collectives[{4, 2}] = {.bytes = {64, 4096},
                               .seconds = {{{1e-5, 2e-5}, {3e-5, 4e-5}, {1, 2}, {1.0 / 3, 5}}}};
  costs.network = {.latency = 1e-6, .overhead = 1e-7, .per_byte = 1.0 / 3, .add_per_byte = 2};
  return costs;
}

TEST(CostsFile, ComesBackAsItWas) {
  const data::TempDir dir;
  const std::string path = dir.file("cache/tapestry/costs.json");
  EXPECT_EQ(save_costs(some_costs(), path), "");
  std::string remark;
  const MachineCosts read = load_costs(path, "a machine", remark);
  EXPECT_EQ(remark, "");
  EXPECT_EQ(costs_json(read), costs_json(some_costs()));
  EXPECT_EQ(read.parts.begin()->second.layers.front().attention.backward, 0.0625);
  EXPECT_EQ(read.collectives, some_costs().collectives);
  EXPECT_EQ(read.network.value().per_byte, 1.0 / 3);
  EXPECT_EQ(messages_of(read, 4).on_host.at(2).of(Collective::kMessage, 64), 1.0 / 3);
  EXPECT_THAT(messages_of(read, 2).on_host, IsEmpty());
  EXPECT_EQ(messages_of(read, 2).network.add_per_byte, 2);
}

TEST(CostsFile, OfAnotherMachineOrTornIsMeasuredAnew) {
  const data::TempDir dir;
  std::string remark;
  EXPECT_THAT(load_costs(dir.file("none.json"), "a machine", remark).parts, IsEmpty());
  EXPECT_EQ(remark, "");
  const std::string path = dir.file("costs.json");
  ASSERT_EQ(save_costs(some_costs(), path), "");
  EXPECT_THAT(load_costs(path, "another one", remark).parts, IsEmpty());
  EXPECT_THAT(remark, Says("costs.json ... another machine ... a machine ... anew"));
  const std::string whole = dir.read("costs.json");
  for (const std::string& torn :
       {whole.substr(0, whole.size() / 2), std::string("[1, 2]"), std::string(),
        std::string(
            "{\"form\": 1, \"machine\": \"a machine\", \"parts\": {\"x\": {\"layers\": []}}, "
            "\"messages\": {}}")}) {
    dir.write("costs.json", torn);
    const MachineCosts read = load_costs(path, "a machine", remark);
    EXPECT_THAT(read.parts, IsEmpty());
    EXPECT_EQ(read.machine, "a machine");
    EXPECT_THAT(remark, Says("costs.json ... anew"));
  }
  EXPECT_THAT(save_costs(some_costs(), dir.file("costs.json/below.json")), HasSubstr("not kept"));
}

TEST(CollectiveTimes, LieBetweenThoseThatAreMeasured) {
  const CollectiveTimes times{.bytes = {100, 10'000},
                              .seconds = {{{1, 100}, {1, 1}, {1, 1}, {1, 1}}}};
  EXPECT_DOUBLE_EQ(times.of(Collective::kAllReduce, 10), 1);
  EXPECT_DOUBLE_EQ(times.of(Collective::kAllReduce, 100), 1);
  EXPECT_DOUBLE_EQ(times.of(Collective::kAllReduce, 1000), 10);
  EXPECT_DOUBLE_EQ(times.of(Collective::kAllReduce, 20'000), 200);
  EXPECT_DOUBLE_EQ(times.of(Collective::kAllGather, 1000), 1);
}

TEST(CollectiveTimes, AreMeasuredInGroups) {
  std::vector<CollectiveTimes> found(4);
  run_thread_ranks(4, [&](const std::shared_ptr<ProcessGroup>& world) {
    found[static_cast<size_t>(world->rank())] = measure_collectives(*world, 2);
  });
  EXPECT_EQ(found[0], found[3]);
  EXPECT_GT(found[0].bytes.size(), 3);
  for (const std::vector<double>& seconds : found[0].seconds) {
    EXPECT_EQ(seconds.size(), found[0].bytes.size());
    EXPECT_GT(seconds.back(), 0);
  }
}

TEST(ShareModel, HasTheSizesOfARank) {
  const AllConfig config = planned_config();
  const KeptBatch batch = kept_batch(config, 1);
  const ShareModel share = share_model(
      make_layout(config, {.tensor = 2, .pipeline = 2, .context = 2, .micro_batch = 2}, batch)
          .layout);
  const TransformerConfig& model = share.config.model_config;
  EXPECT_EQ(model.num_attention_heads, 2);
  EXPECT_EQ(model.kv_channels, 8);
  EXPECT_EQ(model.ffn_hidden_size, 32);
  EXPECT_EQ(model.hidden_size, 32);
  EXPECT_EQ(model.vocab_size, 64);
  EXPECT_EQ(model.seq_length, 32);
  EXPECT_EQ(model.num_layers, 3);
  EXPECT_EQ(share.config.dataset_config.batch_size, 2);
  EXPECT_EQ(share.config.parallel_config.tensor_model_parallel_size, 1);
}

TEST(ShareModel, OfLayoutsThatDifferOnlyInWhatRanksDoNotComputeIsTheSame) {
  const AllConfig config = planned_config();
  const KeptBatch batch = kept_batch(config, 1);
  const auto key = [&](const LayoutChoice& choice) {
    return share_model(make_layout(config, choice, batch).layout).key;
  };
  const std::string plain = key({.micro_batch = 2});
  EXPECT_EQ(key({.pipeline = 4, .micro_batch = 2}), plain);
  EXPECT_EQ(key({.data = 4, .micro_batch = 2, .zero_level = 1}), plain);
  EXPECT_NE(key({.micro_batch = 4}), plain);
  EXPECT_NE(key({.tensor = 2, .micro_batch = 2}), plain);
  EXPECT_NE(key({.micro_batch = 2, .recompute = true}), plain);
}

TEST(PartTimer, KnowsLayers) {
  EXPECT_EQ(layer_of_path("language_model.layers.12.attention.qkv_proj"), 12);
  EXPECT_EQ(layer_of_path("language_model.embedding"), -1);
  EXPECT_EQ(layer_of_path("layers."), -1);
}

TEST(MeasureParts, FindsEveryPartOfAStep) {
  const AllConfig config = planned_config();
  const ShareModel share =
      share_model(make_layout(config, {.micro_batch = 2}, kept_batch(config, 1)).layout);
  const PartTimes parts = measure_parts(share, {.ranks = 2, .threads = 1, .seconds = 0.01});
  ASSERT_EQ(parts.layers.size(), 3);
  for (const PartTimes::Layer& layer : parts.layers) {
    EXPECT_GT(layer.attention.forward, 0);
    EXPECT_GT(layer.attention.backward, 0);
    EXPECT_GT(layer.norms.forward, 0);
    EXPECT_GT(layer.all.forward, layer.attention.forward);
    EXPECT_GT(layer.all.backward, layer.attention.backward);
  }
  EXPECT_GT(parts.before.forward, 0);
  EXPECT_GT(parts.after.backward, 0);
  EXPECT_GT(parts.update, 0);
  EXPECT_GT(parts.parameters, 3 * 4 * 32 * 32);
}

TEST(MeasuredTimes, PutThePartsOfLayoutsTogether) {
  const AllConfig config = planned_config();
  const KeptBatch batch = kept_batch(config, 1);
  const Layout layout =
      make_layout(config, {.tensor = 2, .context = 2, .micro_batch = 2, .sequence_parallel = true},
                  batch)
          .layout;
  const ShareModel share = share_model(layout);
  PartTimes parts;
  parts.layers.assign(3, {.all = {10, 20}, .attention = {2, 4}, .norms = {1, 2}});
  parts.after = {7, 8};
  parts.update = 30;
  parts.parameters = 10;
  const ModelTimes times = measured_times(layout, share, parts);
  ASSERT_EQ(times.layers.size(), 8);
  // Twice as many keys; half as many rows in norms.
  EXPECT_DOUBLE_EQ(times.layers[5].forward, 10 + 2 - 0.5);
  EXPECT_DOUBLE_EQ(times.layers[5].backward, 20 + 4 - 1);
  EXPECT_EQ(times.after.forward, 7);
  EXPECT_EQ(times.update_per_parameter, 3);
}

}  // namespace
}  // namespace tapestry::planning
