#include "nn/data/data_loader.h"

#include <algorithm>

#include "autograd/ops/reduction.h"
#include "tests/nn/nn_test_util.h"

namespace tapestry::data {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> order_of(const DataLoader& loader, int64_t epoch) {
  std::vector<int64_t> out;
  for (const TensorList& batch : loader.epoch(epoch)) {
    const std::vector<int64_t> numbers = batch[0].to_vector<int64_t>();
    out.insert(out.end(), numbers.begin(), numbers.end());
  }
  return out;
}

TEST(DataLoader, GoesThroughADatasetInOrder) {
  const Tensor x = arange(14).view({7, 2});
  const TensorDataset dataset({x, arange(7)});
  const DataLoader loader(dataset, {.batch_size = 3});
  EXPECT_EQ(loader.size(), 3);
  std::vector<Shape> shapes;
  int64_t next = 0;
  for (const TensorList& batch : loader.epoch(0)) {
    ASSERT_EQ(batch.size(), 2U);
    shapes.push_back(batch[0].shape());
    EXPECT_EQ(batch[0].at({0, 1}), 2 * next + 1);
    EXPECT_EQ(batch[1].at({0}), next);
    EXPECT_EQ(batch[0].storage(), x.storage());  // views
    next += batch[0].size(0);
  }
  EXPECT_THAT(shapes, ElementsAre(Shape{3, 2}, Shape{3, 2}, Shape{1, 2}));
  EXPECT_EQ(DataLoader(dataset, {.batch_size = 8}).epoch(0).batch(0)[1].numel(), 7);
}

TEST(DataLoader, BatchesOfBytesStayBytes) {
  const Tensor images = arange(0, 256, 1, kUInt8).view({128, 2});
  const TensorDataset dataset({images});
  const DataLoader loader(dataset, {.batch_size = 50, .shuffle = true});
  int64_t total = 0;
  for (const TensorList& batch : loader.epoch(0)) {
    EXPECT_EQ(batch[0].dtype(), kUInt8);
    total += static_cast<int64_t>(sum(batch[0]).item());
  }
  EXPECT_EQ(total, 255 * 128);
}

TEST(DataLoader, DropLastLeavesOutTheRest) {
  const TensorDataset dataset({arange(7)});
  const DataLoader loader(dataset, {.batch_size = 3, .drop_last = true});
  EXPECT_EQ(loader.size(), 2);
  EXPECT_EQ(loader.epoch(0).size(), 2);
  EXPECT_THAT(order_of(loader, 0), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(DataLoader(dataset, {.batch_size = 8, .drop_last = true}).size(), 0);
  const TensorDataset nothing({zeros({0, 2})});
  EXPECT_EQ(DataLoader(nothing).size(), 0);
}

TEST(DataLoader, ShufflingFollowsSeedAndEpoch) {
  const TensorDataset dataset({arange(100)});
  const DataLoader loader(dataset, {.batch_size = 7, .shuffle = true, .seed = 5});
  const std::vector<int64_t> first = order_of(loader, 0);
  std::vector<int64_t> sorted = first;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, arange(100).to_vector<int64_t>());  // each once
  EXPECT_NE(first, sorted);
  EXPECT_EQ(order_of(loader, 0), first);
  EXPECT_NE(order_of(loader, 1), first);
  // The same samples, whatever the size of a batch; another order with another seed.
  EXPECT_EQ(order_of(DataLoader(dataset, {.batch_size = 9, .shuffle = true, .seed = 5}), 0), first);
  EXPECT_NE(order_of(DataLoader(dataset, {.batch_size = 7, .shuffle = true, .seed = 6}), 0), first);
  // An epoch goes on by itself.
  const DataLoader::Epoch epoch = DataLoader(dataset, {.shuffle = true, .seed = 5}).epoch(0);
  EXPECT_EQ(epoch.batch(42)[0].item(), static_cast<double>(first[42]));
}

/// Squares of the sample's number: a dataset that makes its samples.
class Squares final : public Dataset {
 public:
  int64_t size() const override { return 5; }
  TensorList get(const Tensor& indices) const override {
    std::vector<int64_t> out;
    for (const int64_t i : indices.to_vector<int64_t>()) {
      out.push_back(i * i);
    }
    const auto n = static_cast<int64_t>(out.size());
    return {tensor(out, {n})};
  }
};

TEST(DataLoader, TakesDatasetsOfOnesOwn) {
  const Squares squares;
  EXPECT_THAT(order_of(DataLoader(squares, {.batch_size = 2}), 0), ElementsAre(0, 1, 4, 9, 16));
}

TEST(DataLoader, MistakesAreNamed) {
  expect_throws<ValueError>([] { TensorDataset({}); }, {"no tensors"});
  expect_throws<ValueError>(
      [] {
        TensorDataset({zeros({3}), zeros({2})});
      },
      {"float32 [3]", "float32 [2]"});
  expect_throws<ValueError>([] { TensorDataset({zeros({})}); }, {"first axis"});
  const TensorDataset dataset({arange(4)});
  expect_throws<ValueError>([&] { DataLoader(dataset, {.batch_size = 0}); }, {"batch_size", "0"});
  expect_throws<ValueError>([&] { DataLoader(dataset).epoch(-1); }, {"-1"});
  expect_throws<IndexError>([&] { DataLoader(dataset).epoch(0).batch(4); }, {"batch 4 of 4"});
}

}  // namespace
}  // namespace tapestry::data
