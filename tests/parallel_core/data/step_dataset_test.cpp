#include "parallel_core/data/step_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "autograd/io/npy.h"
#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Rows of 3 tokens; token = 100 step + 10 (row of the step) + position.
StepRows rows_of(int64_t step, int64_t first, int64_t count) {
  StepRows rows;
  rows.rows = count;
  rows.seq = 3;
  for (int64_t row = first; row < first + count; ++row) {
    for (int64_t t = 0; t < 3; ++t) {
      rows.tokens.push_back(100 * step + 10 * row + t);
      rows.labels.push_back(100 * step + 10 * row + t + 1);
      rows.loss_mask.push_back(t == 2 ? 0.0F : 1.0F);
    }
  }
  return rows;
}

class StepDatasetTest : public ::testing::Test {
 protected:
  // Steps first .. first + 5, two ranks of two rows each.
  void store(int64_t first) {
    for (int64_t step = first; step < first + 6; ++step) {
      write_step(dir_.path(), step, 0, rows_of(step, 0, 2));
      write_step(dir_.path(), step, 1, rows_of(step, 2, 2));
    }
  }
  template <class T>
  void replace(const std::string& name, const Shape& shape, const std::vector<T>& values) {
    write_npy(dir_.file(name), dtype_of<T>(), shape, values.data());
  }
  StepDataSource source() const { return {dir_.path(), 0}; }
  TempDir dir_;
};

TEST_F(StepDatasetTest, WithoutALossMaskAllLabelsCountButNegativeOnes) {
  write_step(dir_.path(), 0, 0, rows_of(0, 0, 1));
  std::filesystem::remove(dir_.file("step_0/rank_0/loss_mask.npy"));
  EXPECT_THAT(source().micro_batch({}, 0, 1, 1, 0, 1).loss_mask, ElementsAre(1, 1, 1));
  replace<int64_t>("step_0/rank_0/labels.npy", {1, 3}, {-100, 2, 3});
  const Batch batch = source().micro_batch({}, 0, 1, 1, 0, 1);
  EXPECT_THAT(batch.loss_mask, ElementsAre(0, 1, 1));
  EXPECT_THAT(batch.labels, ElementsAre(0, 2, 3));
  std::filesystem::remove(dir_.file("step_0/rank_0/labels.npy"));
  EXPECT_ERROR(source(), IoError, "labels.npy is missing");
}

TEST_F(StepDatasetTest, AStepHasSomethingToLearn) {
  write_step(dir_.path(), 0, 0, rows_of(0, 0, 1));
  replace<float>("step_0/rank_0/loss_mask.npy", {1, 3}, {0, 0, 0});
  EXPECT_ERROR(source().micro_batch({}, 0, 1, 1, 0, 1), ValueError, "step_0: no label counts");
}

TEST_F(StepDatasetTest, RanksOfOneModelHaveTheSameRows) {
  // tp 2, dp 2, pp 2: ranks 0 1 4 5 are the first model, 2 3 6 7 the second.
  for (const int64_t rank : {0, 1, 4, 5}) {
    write_step(dir_.path(), 0, rank, rows_of(0, 0, 2));
  }
  for (const int64_t rank : {2, 3, 6, 7}) {
    write_step(dir_.path(), 0, rank, rows_of(0, 2, 2));
  }
  StepDataSource by_rank(dir_.path(), 0, {.neighbours = 2, .stages = 2});
  for (int64_t dp_rank = 0; dp_rank < 2; ++dp_rank) {
    for (int64_t micro = 0; micro < 2; ++micro) {
      const Batch batch = by_rank.micro_batch({}, micro, 2, 1, dp_rank, 2);
      EXPECT_EQ(batch.tokens, rows_of(0, 2 * dp_rank + micro, 1).tokens);
      EXPECT_THAT(batch.sample_ids, ElementsAre(2 * dp_rank + micro));
      EXPECT_EQ(batch.origin(0).recorded->row, micro);
    }
  }
  // The same rows by data-parallel ranks alone, and by one.
  EXPECT_EQ(by_rank.micro_batch({}, 0, 2, 8, 0, 1).tokens.size(), 8U * 3);
  write_step(dir_.path(), 1, 0, rows_of(1, 0, 1));
  for (const int64_t rank : {1, 2, 3}) {
    write_step(dir_.path(), 1, rank, rows_of(1, 1, 1));
  }
  StepDataSource other(dir_.path(), 0, {.neighbours = 4, .stages = 1});
  EXPECT_ERROR(other.micro_batch({.step = 1}, 0, 1, 1, 0, 1), ValueError,
               "step_1: rank_1 has other rows than rank_0");
}

TEST_F(StepDatasetTest, FoldersOfAnotherJobsRanksCountOnce) {
  // Four ranks, two models; this run has one rank and does not know their layout.
  for (const int64_t step : {0, 1}) {
    for (const int64_t rank : {0, 1, 2, 3}) {
      write_step(dir_.path(), step, rank, rows_of(step, rank < 2 ? 0 : 2, 2));
    }
  }
  StepDataSource known(dir_.path(), StepDataSource::Options{.batch = 4, .repeats = true});
  EXPECT_EQ(known.copies(), 2);
  EXPECT_EQ(known.rows_until(2), 8);
  EXPECT_EQ(known.micro_batch({1, 4}, 0, 1, 4, 0, 1).tokens, rows_of(1, 0, 4).tokens);
  EXPECT_EQ(known.epoch(7), 0);
  EXPECT_EQ(known.epoch(8), 1);
  // By content alone, where steps have any number of rows.
  StepDataSource samples(dir_.path(), StepDataSource::Options{.repeats = true, .as_samples = true});
  EXPECT_EQ(samples.copies(), 2);
  const Batch batch = samples.micro_batch({0, 3}, 0, 1, 3, 0, 1);
  EXPECT_THAT(batch.sample_ids, ElementsAre(3, 4, 5));
  EXPECT_EQ(batch.tokens[0], 30);
  EXPECT_EQ(batch.tokens[3], 100);
  EXPECT_EQ(batch.origin(0).recorded->file, dir_.file("step_0/rank_2/tokens.npy"));
  EXPECT_EQ(batch.origin(0).recorded->row, 1);
  // One of them has other rows.
  write_step(dir_.path(), 2, 0, rows_of(2, 0, 2));
  for (const int64_t rank : {1, 2, 3}) {
    write_step(dir_.path(), 2, rank, rows_of(2, 2, 2));
  }
  StepDataSource odd(dir_.path(), StepDataSource::Options{.batch = 4});
  EXPECT_ERROR(odd.micro_batch({2, 8}, 0, 1, 4, 0, 1), ValueError,
               "step_2: has 8 rows, but the run needs 4");
  StepDataSource odd_samples(dir_.path(), StepDataSource::Options{.as_samples = true});
  EXPECT_ERROR(odd_samples.micro_batch({2, 8}, 0, 1, 2, 0, 1), ValueError,
               "step_2: in the first step each of the ranks' rows is there 2 times");
  EXPECT_ERROR(odd_samples.micro_batch({3, 12}, 0, 1, 2, 0, 1), IndexError,
               "sample 14 is asked for, but there are 12 rows");
}

TEST_F(StepDatasetTest, EveryLayoutTakesTheSameSamples) {
  store(1);
  StepDataSource source(dir_.path(), StepDataSource::Options{.repeats = true, .as_samples = true});
  EXPECT_EQ(source.copies(), 1);
  for (const auto& [num, size, dp] :
       std::vector<std::array<int64_t, 3>>{{1, 3, 2}, {3, 1, 2}, {1, 6, 1}, {6, 1, 1}, {1, 1, 6}}) {
    std::vector<int64_t> rows;
    for (int64_t rank = 0; rank < dp; ++rank) {
      for (int64_t m = 0; m < num; ++m) {
        const Batch batch = source.micro_batch({3, 21}, m, num, size, rank, dp);
        for (int64_t row = 0; row < size; ++row) {
          rows.push_back(batch.tokens[static_cast<size_t>(3 * row)]);
        }
      }
    }
    EXPECT_THAT(rows, ElementsAre(610, 620, 630, 100, 110, 120));
  }
}

TEST_F(StepDatasetTest, TheFirstFolderFeedsTheFirstStep) {
  for (const int64_t first : {0, 1}) {
    const TempDir dir;
    for (int64_t step = first; step < first + 11; ++step) {  // step_10 comes after step_9
      write_step(dir.path(), step, 0, rows_of(step, 0, 1));
    }
    StepDataSource source(dir.path(), 0);
    ASSERT_EQ(source.num_steps(), 11);
    EXPECT_EQ(source.seq_length(), 3);
    EXPECT_EQ(source.size_in_samples(), 11);
    for (int64_t step = 0; step < 11; ++step) {
      const Batch batch = source.micro_batch({step, step}, 0, 1, 1, 0, 1);
      const int64_t base = 100 * (step + first);
      EXPECT_THAT(batch.tokens, ElementsAre(base, base + 1, base + 2));
      EXPECT_THAT(batch.labels, ElementsAre(base + 1, base + 2, base + 3));
      EXPECT_THAT(batch.loss_mask, ElementsAre(1, 1, 0));
      EXPECT_THAT(batch.sample_ids, ElementsAre(step));
      EXPECT_THAT(batch.attention_mask, IsEmpty());
      EXPECT_EQ(source.epoch(step), 0);
    }
    EXPECT_ERROR(source.micro_batch({11, 11}, 0, 1, 1, 0, 1), IndexError, "step 12 is asked for");
  }
}

TEST_F(StepDatasetTest, ItsFingerprintTellsRecordingsApart) {
  const auto written = [&](int64_t steps, int64_t offset, int64_t rows) {
    const TempDir dir;
    for (int64_t step = 1; step <= steps; ++step) {
      write_step(dir.path(), step, 0, rows_of(step + offset, 0, rows));
    }
    return StepDataSource(dir.path(), 0).fingerprint(2);
  };
  const std::string two = written(2, 0, 1);
  EXPECT_EQ(two.size(), 16U);
  EXPECT_EQ(written(3, 0, 1), two);  // more steps
  EXPECT_NE(written(2, 1, 1), two);  // other tokens
  EXPECT_NE(written(2, 0, 2), two);  // more rows
  EXPECT_ERROR(written(1, 0, 1), IndexError, "2 of 1 step folders");
}

TEST_F(StepDatasetTest, EveryLayoutReplaysTheSameRows) {
  store(1);
  StepDataSource data = source();
  for (const auto& [num, size, dp] : std::vector<std::array<int64_t, 3>>{
           {1, 2, 2}, {2, 1, 2}, {1, 4, 1}, {4, 1, 1}, {2, 2, 1}, {1, 1, 4}}) {
    std::vector<int64_t> rows;
    for (int64_t rank = 0; rank < dp; ++rank) {
      for (int64_t m = 0; m < num; ++m) {
        const Batch batch = data.micro_batch({2, 8}, m, num, size, rank, dp);
        for (int64_t row = 0; row < size; ++row) {
          rows.push_back(batch.tokens[static_cast<size_t>(3 * row)]);
          EXPECT_EQ(batch.sample_ids[static_cast<size_t>(row)],
                    2 * 4 + static_cast<int64_t>(rows.size()) - 1);
        }
      }
    }
    EXPECT_THAT(rows, ElementsAre(300, 310, 320, 330));
  }
  EXPECT_ERROR(data.micro_batch({}, 0, 1, 1, 0, 2), ValueError, "has 4 rows, but the run needs 2");
  EXPECT_ERROR(data.micro_batch({}, 0, 3, 1, 0, 2), ValueError, "needs 6 = 3 micro-batches");
}

TEST_F(StepDatasetTest, GapsAndOddNamesAreErrors) {
  EXPECT_ERROR(source(), IoError, "has no folders step_N");
  dir_.write("own.idx", "");
  EXPECT_ERROR(source(), IoError,
               "own.idx is a data set; to train on it set dataset_config.data_path");
  std::filesystem::remove(dir_.file("own.idx"));
  EXPECT_ERROR(StepDataSource(dir_.file("none"), 0), IoError, "none: ... cannot be read");
  write_step(dir_.path(), 2, 0, rows_of(2, 0, 1));
  EXPECT_ERROR(source(), IoError, "begins with step_2");
  write_step(dir_.path(), 0, 0, rows_of(0, 0, 1));
  EXPECT_ERROR(source(), IoError, "step_1 is missing, but step_2 is there");
  write_step(dir_.path(), 1, 0, rows_of(1, 0, 1));
  EXPECT_EQ(source().num_steps(), 3);
  dir_.write("notes.txt", "other files do not matter");
  dir_.write(".step_9/x", "");
  EXPECT_EQ(source().num_steps(), 3);
  std::filesystem::create_directory(dir_.file("step_x"));
  EXPECT_ERROR(source(), IoError, "\"step_x\" is not step_N");
  std::filesystem::remove(dir_.file("step_x"));
  std::filesystem::create_directory(dir_.file("step_01"));
  EXPECT_ERROR(source(), IoError, "step_1 is there twice");
  std::filesystem::remove(dir_.file("step_01"));
  dir_.write("step_3", "a file");
  EXPECT_ERROR(source(), IoError, "\"step_3\" is not a folder");
}

TEST_F(StepDatasetTest, MissingRanksAndFilesAreErrors) {
  store(0);
  std::filesystem::remove(dir_.file("step_3/rank_1/labels.npy"));
  EXPECT_ERROR(source(), IoError, "step_3/rank_1: labels.npy is missing");
  std::filesystem::remove_all(dir_.file("step_3/rank_0"));
  EXPECT_ERROR(source(), IoError, "step_3: rank_0 is missing");
  std::filesystem::rename(dir_.file("step_4/rank_1"), dir_.file("step_4/rank_2"));
  std::filesystem::remove_all(dir_.file("step_3"));
  std::filesystem::rename(dir_.file("step_5"), dir_.file("step_3"));
  EXPECT_ERROR(source(), IoError, "step_4: rank_1 is missing, but rank_2 is there");
}

TEST_F(StepDatasetTest, ContentsThatDisagreeAreErrors) {
  const auto expect = [&](const char* message) {
    EXPECT_ERROR(source().micro_batch({}, 0, 1, 2, 0, 2), ValueError, message);
  };
  const std::vector<int32_t> six = {1, 2, 3, 4, 5, 6};
  const std::string rank = "step_0/rank_0/";
  store(0);
  replace(rank + "labels.npy", {3, 2}, six);
  expect("labels.npy: has shape [3, 2], but tokens.npy has [2, 3]");
  replace(rank + "labels.npy", {6}, six);
  expect("labels.npy: has shape [6], expected [rows, seq]");
  replace(rank + "labels.npy", {2, 3}, std::vector<float>(6, 1.0F));
  expect("labels.npy: holds float32, expected integers");
  replace(rank + "labels.npy", {2, 3}, six);
  replace(rank + "loss_mask.npy", {2, 2}, std::vector<float>(4, 1.0F));
  expect("loss_mask.npy: has shape [2, 2]");
  replace(rank + "loss_mask.npy", {2, 3}, std::vector<float>{1, 1, -1, 1, 1, 1});
  expect("loss_mask.npy: value 2 is -1");
  replace(rank + "loss_mask.npy", {2, 3}, std::vector<double>(6, 1.0));
  EXPECT_NO_THROW(source().micro_batch({}, 0, 1, 2, 0, 2));
  replace(rank + "tokens.npy", {0, 3}, std::vector<int32_t>{1});
  expect("tokens.npy: has shape [0, 3]");
  StepRows wide = rows_of(0, 0, 2);
  wide.seq = 2;
  wide.rows = 3;
  std::filesystem::remove_all(dir_.file("step_0/rank_0"));
  write_step(dir_.path(), 0, 0, wide);
  expect("step_0/rank_1: has rows of 3 tokens, but rank_0 has 2");
  dir_.write(rank + "tokens.npy", "not an array");
  EXPECT_ERROR(source().micro_batch({}, 0, 1, 2, 0, 2), IoError, "tokens.npy");
}

TEST_F(StepDatasetTest, IdsAreCheckedAgainstTheVocabulary) {
  store(0);
  EXPECT_NO_THROW(StepDataSource(dir_.path(), 100).micro_batch({}, 0, 1, 2, 0, 2));
  EXPECT_ERROR(
      StepDataSource(dir_.path(), 33).micro_batch({}, 0, 1, 2, 0, 2), ValueError,
      "step_0/rank_1/labels.npy: row 1, position 2: id 33 is outside the vocabulary of 33");
  // "No label" is fine where the mask is 0, here at position 2 of each row, and nowhere else.
  replace("step_0/rank_0/labels.npy", {2, 3}, std::vector<int64_t>{1, 2, -100, 4, 5, -100});
  EXPECT_THAT(StepDataSource(dir_.path(), 100).micro_batch({}, 0, 1, 2, 0, 2).labels,
              ElementsAre(1, 2, 0, 4, 5, 0));
  replace("step_0/rank_0/labels.npy", {2, 3}, std::vector<int64_t>{-100, 2, 3, 4, 5, 6});
  EXPECT_ERROR(StepDataSource(dir_.path(), 100).micro_batch({}, 0, 1, 2, 0, 2), ValueError,
               "row 0, position 0: id -100");
}

TEST_F(StepDatasetTest, MasksOfAttention) {
  store(0);
  const std::vector<float> causal = {0, 1, 1, 0, 0, 1, 0, 0, 0};
  replace("step_0/rank_0/attention_mask.npy", {3, 3}, causal);
  EXPECT_THAT(source().micro_batch({}, 0, 1, 2, 0, 2).attention_mask, IsEmpty());
  // Row 1 of rank 0 hides key 0 from the last query; the other rank's rows become causal.
  std::vector<int32_t> own = {0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0};
  replace("step_0/rank_0/attention_mask.npy", {2, 1, 3, 3}, own);
  StepDataSource data = source();
  EXPECT_EQ(data.micro_batch({}, 0, 1, 2, 0, 2).attention_mask,
            (std::vector<uint8_t>(own.begin(), own.end())));
  EXPECT_THAT(data.micro_batch({}, 1, 2, 1, 1, 2).attention_mask,
              ElementsAre(0, 1, 1, 0, 0, 1, 0, 0, 0));
  replace("step_0/rank_0/attention_mask.npy", {2, 3}, std::vector<float>(6));
  EXPECT_ERROR(source().micro_batch({}, 0, 1, 2, 0, 2), ValueError,
               "has shape [2, 3], expected [3, 3]");
}

TEST_F(StepDatasetTest, WritingIsAllOrNothing) {
  StepRows rows = rows_of(0, 0, 2);
  rows.labels.pop_back();
  EXPECT_ERROR(write_step(dir_.path(), 0, 0, rows), ValueError, "5 labels");
  rows.labels.push_back(int64_t{1} << 40U);
  EXPECT_ERROR(write_step(dir_.path(), 0, 0, rows), ValueError, "does not fit int32");
  EXPECT_ERROR(write_step(dir_.path(), -1, 0, rows_of(0, 0, 1)), ValueError, "step_-1");
  EXPECT_THAT(dir_.names(), IsEmpty());
  write_step(dir_.path(), 0, 0, rows_of(0, 0, 1));
  EXPECT_ERROR(write_step(dir_.path(), 0, 0, rows_of(0, 0, 1)), IoError,
               "step_0/rank_0: exists already");
  EXPECT_ERROR(write_step("/proc/x", 0, 0, rows_of(0, 0, 1)), IoError, "/proc/x");
  EXPECT_EQ(source().micro_batch({}, 0, 1, 1, 0, 1).tokens[0], 0);
}

}  // namespace
}  // namespace tapestry::data
