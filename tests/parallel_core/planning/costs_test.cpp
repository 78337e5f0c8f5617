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
  parts.layers.push_back({0.25, 0.0625});
  parts.before = {1e-9, 2e-9};
  parts.after = {3, 4};
  parts.reduce = 4.5;
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
  EXPECT_EQ(read.parts.begin()->second.layers.front().backward, 0.0625);
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
            "{\"form\": 2, \"machine\": \"a machine\", \"parts\": {\"x\": {\"layers\": []}}, "
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

TEST(ShareModel, IsAStageOfTheLayout) {
  const AllConfig config = planned_config();
  const Layout layout =
      make_layout(
          config,
          {.tensor = 2, .pipeline = 2, .context = 2, .data = 2, .micro_batch = 1, .zero_level = 1},
          kept_batch(config, 1))
          .layout;
  const ShareModel share = share_model(layout, /*has_all_copies=*/true);
  const ModelParallelConfig& p = share.config.parallel_config;
  EXPECT_EQ(share.ranks(), 8);
  EXPECT_EQ(p.tensor_model_parallel_size, 2);
  EXPECT_EQ(p.pipeline_model_parallel_size, 1);
  EXPECT_EQ(p.context_parallel_size, 2);
  EXPECT_EQ(zero_level(share.config), 1);
  EXPECT_EQ(share.config.model_config.num_layers, 3);
  EXPECT_EQ(share.config.model_config.hidden_size, config.model_config.hidden_size);
  EXPECT_EQ(share.config.model_config.seq_length, config.model_config.seq_length);
  EXPECT_EQ(share.config.dataset_config.batch_size, 1);
  EXPECT_EQ(share.config.dataset_config.micro_batch_num, 2);
  // On several hosts copies are elsewhere.
  const ShareModel alone = share_model(layout, /*has_all_copies=*/false);
  EXPECT_EQ(alone.ranks(), 4);
  EXPECT_EQ(zero_level(alone.config), 0);
}

TEST(ShareModel, OfLayoutsWhoseStagesAreAlikeIsTheSame) {
  const AllConfig config = planned_config();
  const KeptBatch batch = kept_batch(config, 1);
  const auto key = [&](const LayoutChoice& choice) {
    return share_model(make_layout(config, choice, batch).layout, /*has_all_copies=*/true).key;
  };
  const std::string plain = key({.micro_batch = 2});
  EXPECT_EQ(key({.pipeline = 4, .micro_batch = 2}), plain);
  EXPECT_EQ(key({.pipeline = 2, .chunks = 2, .micro_batch = 2}), plain);
  EXPECT_NE(key({.data = 2, .micro_batch = 2}), plain);
  EXPECT_NE(key({.data = 2, .micro_batch = 2, .zero_level = 1}),
            key({.data = 2, .micro_batch = 2}));
  EXPECT_NE(key({.micro_batch = 4}), plain);
  EXPECT_NE(key({.tensor = 2, .micro_batch = 2}), plain);
  EXPECT_NE(key({.tensor = 2, .micro_batch = 2, .sequence_parallel = true}),
            key({.tensor = 2, .micro_batch = 2}));
  EXPECT_NE(key({.micro_batch = 2, .recompute = true}), plain);
}

TEST(PartTimer, KnowsLayers) {
  EXPECT_EQ(layer_of_path("language_model.layers.12.attention.qkv_proj"), 12);
  EXPECT_EQ(layer_of_path("language_model.embedding"), -1);
  EXPECT_EQ(layer_of_path("layers."), -1);
}

PartTimes measured(const LayoutChoice& choice, int ranks) {
  const AllConfig config = planned_config();
  const Layout layout = make_layout(config, choice, kept_batch(config, 1)).layout;
  return measure_parts(share_model(layout, /*has_all_copies=*/true),
                       {.ranks = ranks, .threads = 1, .seconds = 0.01});
}

void expect_every_part(const PartTimes& parts) {
  ASSERT_EQ(parts.layers.size(), 3);
  for (const PassTime& layer : parts.layers) {
    EXPECT_GT(layer.forward, 0);
    EXPECT_GT(layer.backward, 0);
  }
  EXPECT_GT(parts.before.forward, 0);
  EXPECT_GT(parts.after.backward, 0);
  EXPECT_GT(parts.update, 0);
  EXPECT_GT(parts.fixed, 0);
  EXPECT_GT(parts.parameters, 3 * 4 * 32 * 32 / 2);
}

TEST(MeasureParts, FindsEveryPartOfAStep) { expect_every_part(measured({.micro_batch = 2}, 2)); }

TEST(MeasureParts, OfRanksThatExchangeWhatALayoutExchanges) {
  for (const LayoutChoice& choice :
       {LayoutChoice{.tensor = 2, .data = 2, .micro_batch = 1, .zero_level = 1},
        LayoutChoice{.tensor = 2, .micro_batch = 1, .sequence_parallel = true},
        LayoutChoice{.context = 2, .data = 2, .micro_batch = 1, .zero_level = 3},
        LayoutChoice{.data = 2, .micro_batch = 1, .zero_level = 2}}) {
    const PartTimes parts = measured(choice, 4);
    expect_every_part(parts);
    EXPECT_GT(parts.reduce, 0);
  }
}

TEST(PartTimes, AddUpToAStep) {
  PartTimes parts{.layers = {{1, 2}, {3, 4}},
                  .before = {5, 6},
                  .after = {7, 8},
                  .reduce = 100,
                  .update = 200,
                  .fixed = 300,
                  .parameters = 5};
  EXPECT_EQ(parts.step(2), 2 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8) + 600);
  PartTimes sum;
  sum += parts;
  sum += parts;
  EXPECT_EQ(sum.step(2), 2 * parts.step(2));
  sum *= 0.5;
  EXPECT_EQ(sum.step(3), parts.step(3));
  EXPECT_EQ(sum.parameters, 5);
}

TEST(MeasuredTimes, PutThePartsOfLayoutsTogether) {
  const AllConfig config = planned_config();
  const Layout layout =
      make_layout(config, {.tensor = 2, .data = 2, .micro_batch = 2}, kept_batch(config, 1)).layout;
  PartTimes parts;
  parts.layers = {{10, 20}, {12, 22}, {14, 24}};
  parts.after = {7, 8};
  parts.reduce = 20;
  parts.update = 30;
  parts.fixed = 4;
  parts.parameters = 10;
  const ModelTimes times =
      measured_times(layout, share_model(layout, /*has_all_copies=*/true), parts, 2);
  ASSERT_EQ(times.layers.size(), 8);
  // Two ranks took turns at each core.
  EXPECT_DOUBLE_EQ(times.layers[5].forward, 6);
  EXPECT_DOUBLE_EQ(times.layers[5].backward, 11);
  EXPECT_EQ(times.after.forward, 3.5);
  EXPECT_EQ(times.update_per_parameter, 2.5);
  EXPECT_EQ(times.fixed, 2);
  EXPECT_TRUE(times.has_messages_of_layers);
  EXPECT_TRUE(times.has_messages_of_data);
  const ModelTimes alone =
      measured_times(layout, share_model(layout, /*has_all_copies=*/false), parts, 1);
  EXPECT_EQ(alone.update_per_parameter, 3);
  EXPECT_FALSE(alone.has_messages_of_data);
}

TEST(MeasuredTimes, OfStagesThatHaveTheCoresToThemselvesForAWhile) {
  const AllConfig config = planned_config();
  const Layout layout =
      make_layout(config, {.tensor = 2, .pipeline = 2, .micro_batch = 2}, kept_batch(config, 1))
          .layout;
  PartTimes crowded;
  crowded.layers.assign(3, {15, 30});
  crowded.update = 40;
  crowded.parameters = 10;
  PartTimes alone;
  alone.layers.assign(3, {10, 20});
  alone.update = 20;
  alone.parameters = 10;
  const ModelTimes times =
      measured_times(layout, share_model(layout, /*has_all_copies=*/true), crowded, 2, alone);
  EXPECT_DOUBLE_EQ(times.layers[0].backward, 20);
  EXPECT_DOUBLE_EQ(times.update_per_parameter, 2);
  EXPECT_DOUBLE_EQ(times.crowding, 0.5);  // half as long again, where twice as long would be all
}

}  // namespace
}  // namespace tapestry::planning
