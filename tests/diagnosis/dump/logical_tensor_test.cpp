#include "diagnosis/dump/logical_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops/shape_ops.h"
#include "tests/diagnosis/dump/dump_testing.h"
#include "tests/message_of.h"

namespace tapestry::dump {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Dumps one tensor of each rank; the rank's number is its place in the list, or `ranks` says it.
class MadeUpDump {
 public:
  explicit MadeUpDump(const std::string& name = "dump", const std::string& saved = "full")
      : folder_(fresh_folder(name)),
        config_(
            config_in(folder_,
                      ", \"saved_data\": \"" + saved +
                          R"(", "statistic_category": ["max", "min", "avg", "l2norm", "md5"])")) {}

  void add(int64_t rank, const std::vector<DumpedTensor>& tensors) {
    DumpWriter writer(config_, rank, 0);
    writer.begin_iteration(0);
    int64_t time = 1;
    for (DumpedTensor tensor : tensors) {
      tensor.op_type = tensor.op_type.empty() ? "Value" : tensor.op_type;
      tensor.op_name = tensor.op_name.empty() ? "x" : tensor.op_name;
      tensor.pass = tensor.pass.empty() ? "forward" : tensor.pass;
      tensor.timestamp = tensor.timestamp == 0 ? time++ : tensor.timestamp;
      writer.write(tensor);
    }
    writer.end_iteration();
  }
  std::vector<LogicalTensor> tensors() const {
    return logical_tensors(DumpReader(folder_).tensors(0));
  }
  /// The only logical tensor.
  LogicalTensor only() const {
    auto all = tensors();
    EXPECT_EQ(all.size(), 1U);
    return all.front();
  }

 private:
  std::string folder_;
  DumpConfig config_;
};

/// The part of `whole` that has these ranges, as a slice.
DumpedTensor slice_of(const Tensor& whole, const std::vector<AxisRanges>& ranges) {
  Tensor part = whole;
  for (size_t axis = 0; axis < ranges.size(); ++axis) {
    TensorList pieces;
    for (const AxisRange& range : ranges[axis]) {
      pieces.push_back(part.slice(static_cast<int64_t>(axis), range.begin, range.end));
    }
    part = cat(pieces, static_cast<int64_t>(axis));
  }
  return {
      .value = part, .global_shape = whole.shape(), .ranges = ranges, .state = TensorState::kSlice};
}

TEST(LogicalTensor, SlicesOfTensorParallelRanks) {
  const Tensor whole = numbered({2, 3, 4});
  MadeUpDump dump;
  dump.add(0, {slice_of(whole, {{{0, 2}}, {{0, 3}}, {{0, 2}}})});
  dump.add(1, {slice_of(whole, {{{0, 2}}, {{0, 3}}, {{2, 4}}})});
  const LogicalTensor x = dump.only();
  EXPECT_EQ(x.problem(), "");
  const JoinedTensor joined = x.load();
  ASSERT_EQ(joined.values.size(), 1U);
  EXPECT_EQ(joined.values[0].shape(), whole.shape());
  EXPECT_EQ(joined.values[0].to_vector<float>(), whole.to_vector<float>());
  EXPECT_EQ(x.rank_of(std::nullopt, 1), 0);
  EXPECT_EQ(x.rank_of(std::nullopt, 4 + 2), 1);
  const JoinedStatistics statistics = x.statistics();
  EXPECT_EQ(statistics.statistics.max, 23 * 0.25);
  EXPECT_NEAR(statistics.statistics.avg, 23 * 0.125, 1e-12);
}

TEST(LogicalTensor, RangesAsContextParallelRanksHaveThem) {
  const Tensor whole = numbered({8, 2});
  MadeUpDump dump;
  dump.add(0, {slice_of(whole, {{{0, 2}, {6, 8}}, {{0, 2}}})});
  dump.add(1, {slice_of(whole, {{{2, 3}, {3, 6}}, {{0, 2}}})});  // of different lengths
  const LogicalTensor x = dump.only();
  EXPECT_EQ(x.load().values[0].to_vector<float>(), whole.to_vector<float>());
  EXPECT_EQ(x.rank_of(std::nullopt, 6 * 2), 0);
  EXPECT_EQ(x.rank_of(std::nullopt, 5 * 2 + 1), 1);
}

TEST(LogicalTensor, SamplesOfMicroBatchesAndDataParallelRanks) {
  const Tensor whole = numbered({4, 3});  // a row per sample
  const auto rows = [&](int64_t sample, int64_t micro_batch) {
    return DumpedTensor{.value = whole.slice(0, sample, sample + 1),
                        .micro_batch = micro_batch,
                        .samples = {sample}};
  };
  MadeUpDump dump;
  dump.add(0, {rows(0, 0), rows(2, 1)});
  dump.add(1, {rows(1, 0), rows(3, 1)});
  const LogicalTensor x = dump.only();
  EXPECT_THAT(x.samples(), ElementsAre(0, 1, 2, 3));
  const JoinedTensor joined = x.load();
  EXPECT_THAT(joined.samples, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(joined.values[2].shape(), Shape{3});
  EXPECT_THAT(joined.values[2].to_vector<float>(), ElementsAre(1.5, 1.75, 2));
  EXPECT_EQ(x.rank_of(3, 0), 1);
  EXPECT_EQ(x.micro_batch_of(2), 1);
}

TEST(LogicalTensor, EveryOrderOfAxesGivesTheSameRowsOfASample) {
  const Tensor batch_first = numbered({2, 3, 4});
  const Tensor expected = batch_first.select(0, 1);
  const auto sample_1 = [](const DumpedTensor& tensor) {
    MadeUpDump dump("axes");
    dump.add(0, {tensor});
    return dump.only().load().values[1];
  };
  const std::vector<int64_t> samples = {7, 9};
  for (const Tensor& found :
       {sample_1({.value = batch_first, .samples = samples}),
        sample_1({.value = batch_first.transpose(0, 1), .samples = samples, .sample_axis = 1}),
        sample_1({.value = batch_first.reshape({6, 4}), .samples = samples})}) {
    EXPECT_EQ(found.shape(), (Shape{3, 4}));
    EXPECT_EQ(found.to_vector<float>(), expected.to_vector<float>());
  }
}

TEST(LogicalTensor, SummandsOfRanksAndMicroBatches) {
  const auto summand = [](double from) {
    return DumpedTensor{.value = numbered({3}, from), .state = TensorState::kPartial};
  };
  MadeUpDump dump;
  dump.add(0, {summand(1), summand(2)});
  dump.add(1, {summand(4)});
  const LogicalTensor x = dump.tensors().front();
  // The second run of rank 0 is another tensor where nothing says that it is another micro-batch.
  EXPECT_EQ(dump.tensors().size(), 2U);
  EXPECT_THAT(x.load().values[0].to_vector<double>(), ElementsAre(5, 5.5, 6));
  EXPECT_FALSE(x.statistics().has.has(Statistic::kMax));  // does not follow from the summands'

  MadeUpDump batches("batches");
  DumpedTensor second = summand(2);
  second.micro_batch = 1;
  batches.add(0, {summand(1), second});
  EXPECT_THAT(batches.only().load().values[0].to_vector<double>(), ElementsAre(3, 3.5, 4));
}

TEST(LogicalTensor, SummandsOfSlices) {
  const Tensor whole = numbered({4});
  MadeUpDump dump;
  for (const int64_t rank : {0, 1, 2, 3}) {  // two slices, two summands of each
    DumpedTensor part = slice_of(whole, {{{rank % 2 * 2, rank % 2 * 2 + 2}}});
    part.state = TensorState::kPartial;
    dump.add(rank, {part});
  }
  EXPECT_THAT(dump.only().load().values[0].to_vector<double>(), ElementsAre(0, 0.5, 1, 1.5));
}

TEST(LogicalTensor, CopiesThatAreNone) {
  MadeUpDump dump;
  Tensor other = numbered({4}, 1).clone();
  dump.add(0, {{.value = numbered({4}, 1), .state = TensorState::kCopy}});
  other.data<float>()[2] += 0.875F;
  dump.add(3, {{.value = other, .state = TensorState::kCopy}});
  const JoinedTensor joined = dump.only().load();
  EXPECT_EQ(joined.copies_distance, 0.5);  // of a largest element of 1.75
  EXPECT_EQ(joined.copies, "ranks 0 and 3");
  EXPECT_THAT(joined.values[0].to_vector<float>(), ElementsAre(1, 1.25, 1.5, 1.75));
}

TEST(LogicalTensor, WhatCannotBePutTogetherSaysWhy) {
  const Tensor whole = numbered({4, 2});
  {
    MadeUpDump dump("missing");
    dump.add(0, {slice_of(whole, {{{0, 1}}, {{0, 2}}})});
    EXPECT_THAT(dump.only().problem(), HasSubstr("2 of 8 elements"));
    EXPECT_THAT(message_of<ValueError>([&] { dump.only().load(); }), HasSubstr("x: its parts"));
  }
  {
    MadeUpDump dump("overlap");
    dump.add(0, {slice_of(whole, {{{0, 3}}, {{0, 2}}})});
    dump.add(1, {slice_of(whole, {{{2, 4}}, {{0, 2}}})});
    EXPECT_THAT(dump.only().problem(), HasSubstr("ranks 0 and 1 overlap"));
  }
  {
    MadeUpDump dump("shapes");
    dump.add(0, {slice_of(whole, {{{0, 2}}, {{0, 2}}})});
    dump.add(1, {slice_of(numbered({5, 2}), {{{2, 4}}, {{0, 2}}})});
    EXPECT_THAT(dump.only().problem(), HasSubstr("wholes of different shapes"));
  }
  {
    MadeUpDump dump("twice");
    dump.add(0, {{.value = whole, .samples = {0, 1}}});
    dump.add(1, {{.value = whole, .samples = {1, 2}}});
    EXPECT_THAT(dump.only().problem(), HasSubstr("sample 1 is in two"));
  }
  {
    MadeUpDump dump("losses");  // of two data-parallel ranks
    dump.add(0, {{.value = tensor({1})}});
    dump.add(1, {{.value = tensor({2})}});
    EXPECT_THAT(dump.only().problem(), HasSubstr("belongs to no samples"));
  }
  {
    MadeUpDump dump("stages");  // of a pipeline: the same module around other layers
    const auto module = [&](double from) {
      return DumpedTensor{.op_type = "Module", .value = numbered({2, 2}, from), .samples = {0, 1}};
    };
    dump.add(0, {module(1)});
    dump.add(1, {module(2)});
    EXPECT_THAT(dump.only().problem(), HasSubstr("ranks 0 and 1 have different values"));
  }
  {
    MadeUpDump dump("weights");  // equal on all of them
    dump.add(0, {{.value = whole}});
    dump.add(1, {{.value = whole}});
    EXPECT_EQ(dump.only().problem(), "");
  }
  {
    MadeUpDump dump("statistic", "statistic");
    dump.add(0, {{.value = whole}});
    EXPECT_FALSE(dump.only().has_values());
    EXPECT_THAT(message_of<ValueError>([&] { dump.only().load(); }), HasSubstr("not dumped"));
    EXPECT_EQ(dump.only().statistics().statistics.max, 1.75);
  }
}

TEST(LogicalTensor, TheOrderIsThatOfTheStep) {
  MadeUpDump dump;
  dump.add(1, {{.op_name = "last stage", .timestamp = 5, .value = tensor({1}), .pass = "forward"},
               {.op_name = "late", .timestamp = 6, .value = tensor({1}), .pass = "backward"}});
  dump.add(0, {{.op_name = "first stage", .timestamp = 1, .value = tensor({1}), .pass = "forward"},
               {.op_name = "update", .timestamp = 4, .value = tensor({1}), .pass = "optimizer"}});
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : dump.tensors()) {
    names.push_back(tensor.row().op_name);
  }
  EXPECT_THAT(names, ElementsAre("first stage", "last stage", "late", "update"));
}

}  // namespace
}  // namespace tapestry::dump
