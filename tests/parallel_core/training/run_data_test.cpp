#include "parallel_core/training/data/run_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "autograd/tensor/error.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/data/indexed_dataset.h"
#include "parallel_core/data/step_dataset.h"
#include "parallel_core/parallel_state.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace run_data_test {
namespace {

using data::BatchPosition;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::joined;
using testing::Overrides;
using Samples = std::vector<std::vector<int64_t>>;

// Runs of samples of 8 tokens, two to a step unless a test says otherwise.
class RunDataTest : public ::testing::Test {
 protected:
  RunDataTest() { initialize_model_parallel(); }
  ~RunDataTest() override { destroy_model_parallel(); }

  // `documents` documents of 5 to 25 byte-tokens, which count from `first`.
  std::string store(const std::string& name, int32_t documents, int32_t first = 0) const {
    data::IndexedDatasetWriter writer(dir_.file(name), data::TokenType::kUInt16);
    for (int32_t d = 0; d < documents; ++d) {
      std::vector<int32_t> tokens(static_cast<size_t>(5 + (d * 7) % 21));
      for (int32_t& token : tokens) {
        token = first++ % 256;
      }
      writer.add_tokens(tokens);
      writer.end_sequence();
      writer.end_document();
    }
    writer.finish();
    return dir_.file(name);
  }
  static AllConfig config(const Overrides& overrides) {
    return testing::small_config(
        joined({"model_config.vocab_size=300", "dataset_config.tokenizer_type=byte",
                "dataset_config.batch_size=2", "training_config.training_iters=20",
                "training_config.eval_iters=2"},
               overrides));
  }
  static Overrides of(const std::string& data_path) {
    return {"dataset_config.data_path=" + data_path, "dataset_config.split=8,1,1"};
  }
  // Tokens of the samples [first, first + count).
  static Samples samples(data::DataSource& source, int64_t count, int64_t first = 0) {
    Samples all;
    for (int64_t k = first; k < first + count; ++k) {
      all.push_back(source.micro_batch({0, k}, 0, 1, 1, 0, 1).tokens);
    }
    return all;
  }
  // The state of a run after `steps` steps, through its text.
  static DataState after(const RunData& run, int64_t steps, int64_t batch = 2) {
    return parse_data_state(data_state_json(run.state(
                                {run.start.step + steps, run.start.first_sample + steps * batch})),
                            "out/checkpoint/step_00000010");
  }
  static RunData resume(const AllConfig& config, const DataState& state) {
    return open_data(config, DataUse::kTraining, &state);
  }
  data::TempDir dir_;
};

TEST_F(RunDataTest, AFreshRunBeginsAtTheFirstSample) {
  const RunData run = open_data(config(of(store("d", 100))));
  EXPECT_EQ(run.start, BatchPosition{});
  EXPECT_EQ(run.opened.plan.train, (std::vector<int64_t>{40}));
  EXPECT_THAT(run.opened.plan.valid, IsEmpty());  // no eval_interval
  EXPECT_EQ(run.opened.plan.test, (std::vector<int64_t>{4}));
  EXPECT_EQ(run.opened.datasets[0].size(), 1U);
  EXPECT_EQ(run.opened.tokenizer.type, "byte");
  EXPECT_EQ(run.state({5, 10}).in_run(), (BatchPosition{5, 10}));
}

// What a resumed run may change without another sample being drawn.
TEST_F(RunDataTest, ItsLengthItsEvaluationsAndItsBatchDoNotChangeTheSamples) {
  const std::string a = store("a", 30);
  const std::string b = store("b", 12, 100);
  const std::vector<Overrides> sources = {
      of(a),
      of("[0.6, " + a + ", 0.4, " + b + "]"),
      {"dataset_config.train_data_path=" + a, "dataset_config.valid_data_path=" + b,
       "dataset_config.test_data_path=" + b},
      joined(of(a), {"dataset_config.shuffle=False"}),
  };
  const Overrides evaluated = {"training_config.eval_interval=5"};
  const std::vector<Overrides> changes = {
      {},
      {"training_config.training_iters=100"},
      {"training_config.training_iters=11"},
      {"training_config.training_iters=10"},  // it is at its end
      {"training_config.eval_interval=3"},
      {"training_config.eval_interval=null"},
      {"training_config.eval_iters=6"},
      {"dataset_config.batch_size=5"},
      {"dataset_config.batch_size=1", "dataset_config.micro_batch_num=7"},
      {"training_config.training_iters=0", "dataset_config.train_samples=90"},
      {"training_config.training_iters=0", "training_config.epochs=9"},
  };
  for (const Overrides& source : sources) {
    RunData first = open_data(config(joined(source, evaluated)));
    const Samples train = samples(*first.train, 40);
    const Samples valid = samples(*first.validation, 4);
    const Samples test = samples(*first.test, 4);
    const DataState state = after(first, 10);
    for (const Overrides& change : changes) {
      SCOPED_TRACE(source.front() + " " + (change.empty() ? "" : change.front()));
      const AllConfig changed = config(joined({source, evaluated, change}));
      RunData second = resume(changed, state);
      EXPECT_EQ(second.start, (BatchPosition{10, 20}));
      EXPECT_EQ(samples(*second.train, 40), train);
      ASSERT_EQ(second.validation != nullptr, changed.training_config.eval_interval.has_value());
      if (second.validation) {
        EXPECT_EQ(samples(*second.validation, 4), valid);
      }
      EXPECT_EQ(samples(*second.test, 4), test);
      // Once more, from where the second run has got to: what it drew beyond the first plan stays.
      const int64_t batch = global_batch_size(changed, 1);
      const int64_t drawn = std::min<int64_t>(60, second.train->size_in_samples());
      const Samples longer = samples(*second.train, drawn);
      const DataState later = after(second, 8, batch);
      EXPECT_EQ(later.position, (BatchPosition{18, 20 + 8 * batch}));
      RunData third = resume(
          config(joined({source, evaluated, {"training_config.training_iters=500"}})), later);
      EXPECT_EQ(samples(*third.train, drawn), longer);
      EXPECT_GE(third.train->size_in_samples(), later.position.first_sample + 2 * (500 - 18));
    }
  }
}

// A run that was planned for longer from the start has another order: the stored numbers matter.
TEST_F(RunDataTest, TheStoredNumbersMakeTheOrder) {
  const std::string path = store("d", 30);
  RunData first = open_data(config(of(path)));
  const AllConfig longer = config(joined(of(path), {"training_config.training_iters=100"}));
  EXPECT_NE(samples(*open_data(longer).train, 40), samples(*first.train, 40));
  const RunData second = resume(longer, after(first, 10));
  EXPECT_EQ(second.opened.plan.train, (std::vector<int64_t>{40, 200}));
  EXPECT_EQ(resume(longer, after(second, 10)).opened.plan, second.opened.plan);
}

TEST_F(RunDataTest, OneDocumentIsCutAtTheSameTokens) {
  data::IndexedDatasetWriter writer(dir_.file("one"), data::TokenType::kUInt16);
  std::vector<int32_t> tokens(2000);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(i * i % 251);
  }
  writer.add_tokens(tokens);
  writer.end_sequence();
  writer.end_document();
  writer.finish();
  const Overrides one = joined(of(dir_.file("one")), {"training_config.eval_interval=5"});
  RunData first = open_data(config(one));
  RunData second =
      resume(config(joined(one, {"training_config.training_iters=300"})), after(first, 3));
  EXPECT_EQ(samples(*second.train, 40), samples(*first.train, 40));
  EXPECT_EQ(samples(*second.validation, 8), samples(*first.validation, 8));
}

// Mid-epoch, at its end, in a last epoch that is shuffled on its own.
TEST_F(RunDataTest, EpochsGoOnBeingCounted) {
  const std::string path = store("d", 30);
  const Overrides one_epoch = joined(
      of(path),
      {"dataset_config.split=1", "training_config.training_iters=0", "training_config.epochs=1"});
  const RunData first = open_data(config(one_epoch));
  const int64_t tokens = [&] {
    const data::IndexedDataset set(path);
    return set.num_tokens();
  }();
  for (const int64_t step : {1, 10, 20, 24, 30}) {
    for (const int64_t epochs : {1, 2, 3}) {
      const AllConfig longer =
          config(joined(one_epoch, {"training_config.epochs=" + std::to_string(epochs)}));
      const RunData second = resume(longer, after(first, step));
      for (int64_t sample = 0; sample < 100; ++sample) {
        EXPECT_EQ(second.train->epoch(sample), sample * 8 / tokens);
      }
      // There is a sample for every step until the last epoch is over.
      int64_t sample = second.start.first_sample;
      while (second.train->epoch(sample) < epochs) {
        ASSERT_NO_THROW(second.train->micro_batch({0, sample}, 0, 1, 2, 0, 1));
        sample += 2;
      }
      EXPECT_EQ(has_steps_left(longer, second), second.start.first_sample * 8 / tokens < epochs);
    }
  }
}

TEST_F(RunDataTest, LengthsInSamplesAreWhatIsLeftOfThem) {
  const AllConfig small =
      config({"training_config.training_iters=0", "dataset_config.train_samples=100"});
  EXPECT_EQ(total_steps(small, {}), 50);
  const AllConfig large =
      config({"training_config.training_iters=0", "dataset_config.train_samples=100",
              "dataset_config.batch_size=8"});
  EXPECT_EQ(total_steps(large, {20, 40}), 20 + 60 / 8);
  EXPECT_EQ(total_steps(large, {60, 120}), 60);
  EXPECT_EQ(total_steps(config({}), {20, 40}), 20);
}

TEST_F(RunDataTest, OtherDataAreRefusedWithBothValuesAndTheRemedy) {
  const std::string a = store("a", 30);
  const std::string b = store("b", 31);
  const RunData first = open_data(config(of(a)));
  const DataState state = after(first, 10);
  const auto refused = [&](const Overrides& overrides, const std::string& said) {
    const AllConfig other = config(overrides);
    EXPECT_ERROR(resume(other, state), ValueError, said);
    EXPECT_ERROR(resume(other, state), ValueError,
                 "data are not those of ... out/checkpoint/step_00000010:");
    EXPECT_ERROR(resume(other, state), ValueError, "training_config.new_dataset: ... True");
  };
  refused(of(b), "a data set is " + b);
  refused(of(b), "it was " + a);
  refused(joined(of(a), {"dataset_config.split=7,2,1"}),
          "dataset_config.split is 7,2,1; it was 8,1,1");
  refused(joined(of(a), {"training_config.seed=8"}), "training_config.seed is 8; it was 7");
  refused(joined(of(a), {"model_config.seq_length=16"}), "model_config.seq_length is 16; it was 8");
  refused(joined(of(a), {"dataset_config.shuffle=False"}),
          "dataset_config.shuffle is False; it was True");
  refused(of("[1, " + a + "]"), "the data sets are 1 " + a);
  refused(of("[" + a + ", " + b + "]"), "they were " + a);
  // Two at once, a line each.
  refused(joined(of(b), {"training_config.seed=8"}), "\n  training_config.seed");

  // The same data under another name are the same.
  std::filesystem::copy_file(a + ".idx", dir_.file("copy.idx"));
  std::filesystem::copy_file(a + ".bin", dir_.file("copy.bin"));
  EXPECT_EQ(samples(*resume(config(of(dir_.file("copy"))), state).train, 40),
            samples(*first.train, 40));
  // Prepared anew with other text, under the same name.
  store("a", 29);
  refused(of(a), "a data set is " + a);
}

TEST_F(RunDataTest, OtherValidationDataAreRemarkedUpon) {
  const std::string a = store("a", 30);
  const std::string b = store("b", 31);
  const Overrides own = {"dataset_config.train_data_path=" + a,
                         "dataset_config.valid_data_path=" + b, "training_config.eval_interval=5"};
  const RunData first = open_data(config(own));
  EXPECT_THAT(resume(config(own), after(first, 10)).remarks,
              ::testing::Not(::testing::Contains(HasSubstr("validation"))));
  RunData second = resume(config(joined(own, {"dataset_config.valid_data_path=" + store("c", 40)})),
                          after(first, 10));
  EXPECT_THAT(second.remarks,
              ::testing::Contains(HasSubstr("the validation data are not those of out/")));
  EXPECT_EQ(second.opened.plan.train, first.opened.plan.train);
  EXPECT_EQ(samples(*second.train, 40), samples(*first.train, 40));
}

TEST_F(RunDataTest, NewDataBeginAtTheirFirstSampleAndAreGoneOnWith) {
  const RunData first = open_data(config(of(store("a", 30))));
  const std::string b = store("b", 60);
  const Overrides fresh = joined(of(b), {"model_config.seq_length=16"});
  RunData second =
      resume(config(joined(fresh, {"training_config.new_dataset=True"})), after(first, 10));
  EXPECT_EQ(second.start, BatchPosition{});
  EXPECT_EQ(second.opened.in_run(), (BatchPosition{10, 20}));
  EXPECT_EQ(second.opened.plan.train, (std::vector<int64_t>{20}));  // of the 10 steps that are left
  EXPECT_THAT(second.remarks, ::testing::Contains(HasSubstr("after 10 steps with others")));
  const Samples drawn = samples(*second.train, 20);
  EXPECT_EQ(
      drawn,
      samples(*open_data(config(joined(fresh, {"training_config.training_iters=10"}))).train, 20));

  const DataState state = after(second, 4);
  EXPECT_EQ(state.in_run(), (BatchPosition{14, 28}));
  RunData third = resume(config(joined(fresh, {"training_config.training_iters=50"})), state);
  EXPECT_EQ(third.start, (BatchPosition{4, 8}));
  EXPECT_EQ(third.opened.in_run(), (BatchPosition{14, 28}));
  EXPECT_EQ(samples(*third.train, 20), drawn);
  EXPECT_EQ(third.opened.plan.train, (std::vector<int64_t>{20, 8 + 2 * (50 - 14)}));
  // The first data are others now.
  EXPECT_ERROR(resume(config(of(dir_.file("a"))), state), ValueError, "it was " + b);
}

TEST_F(RunDataTest, AnEvaluationTakesTheOrderIfTheDataAreTheSame) {
  const std::string a = store("a", 100);
  const RunData first = open_data(config(joined(of(a), {"training_config.eval_interval=5"})));
  const Samples valid = samples(*first.validation, 4);
  const DataState state = after(first, 10);
  const AllConfig longer = config(
      joined(of(a), {"training_config.eval_interval=1", "training_config.training_iters=300"}));
  EXPECT_EQ(samples(*open_data(longer, DataUse::kEvaluation, &state).validation, 4), valid);
  EXPECT_NE(samples(*open_data(longer, DataUse::kEvaluation).validation, 4), valid);
  const AllConfig other = config(of(store("b", 90)));
  EXPECT_NE(open_data(other, DataUse::kEvaluation, &state).validation, nullptr);
}

// Ranks that share the samples of a step, and a run that is resumed with more or fewer of them.
TEST_F(RunDataTest, AnotherNumberOfRanksGoesOnAtTheNextSample) {
  const Overrides path = of(store("d", 100));
  RunData first = open_data(config(path));
  const Samples all = samples(*first.train, 40);
  const DataState state = after(first, 10);
  destroy_model_parallel();
  run_thread_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
    initialize_model_parallel({}, world);
    const RunData run = open_data(config(joined(path, {"dataset_config.batch_size=3"})), *world,
                                  DataUse::kTraining, &state);
    const data::Batch batch = run.train->micro_batch(run.start, 0, 1, 3, world->rank(), 2);
    for (int64_t row = 0; row < 3; ++row) {
      const auto k = static_cast<size_t>(20 + 3 * world->rank() + row);
      const auto tokens = batch.tokens.begin() + 8 * row;
      EXPECT_EQ(std::vector<int64_t>(tokens, tokens + 8), all[k]);
      EXPECT_EQ(batch.sample_ids[static_cast<size_t>(row)], static_cast<int64_t>(k));
    }
    destroy_model_parallel();
  });
  initialize_model_parallel();
}

class RecordedRunTest : public RunDataTest {
 protected:
  void record(int64_t first, int64_t last, int64_t offset = 0) const {
    for (int64_t step = first; step <= last; ++step) {
      data::StepRows rows{.rows = 2, .seq = 8};
      for (int64_t i = 0; i < 16; ++i) {
        rows.tokens.push_back((16 * step + i + offset) % 300);
        rows.labels.push_back((16 * step + i + 1) % 300);
        rows.loss_mask.push_back(1);
      }
      data::write_step(dir_.file("steps"), step, 0, rows);
    }
  }
  AllConfig recorded(const Overrides& overrides = {}) const {
    return config(joined({"dataset_config.step_data_dir=" + dir_.file("steps")}, overrides));
  }
};

TEST_F(RecordedRunTest, GoesOnAtTheNextStep) {
  record(1, 20);
  const RunData first = open_data(recorded());
  const DataState state = after(first, 7);
  RunData second = resume(recorded(), state);
  EXPECT_EQ(second.start, (BatchPosition{7, 14}));
  const data::Batch batch = second.train->micro_batch(second.start, 0, 1, 2, 0, 1);
  EXPECT_EQ(batch.tokens[0], 16 * 8);
  EXPECT_EQ(batch.sample_ids, (std::vector<int64_t>{14, 15}));
  // Steps may be added.
  record(21, 25);
  RunData third = resume(recorded({"training_config.training_iters=25"}), state);
  EXPECT_EQ(third.opened.recorded->steps, 25);
  EXPECT_EQ(resume(recorded(), after(third, 1)).start, (BatchPosition{8, 16}));
  // Others are refused, and begun on request.
  std::filesystem::remove_all(dir_.file("steps"));
  record(1, 25, 3);
  EXPECT_ERROR(resume(recorded(), state), ValueError, "whose first 20 steps have checksum");
  RunData fresh = resume(recorded({"training_config.new_dataset=True"}), state);
  EXPECT_EQ(fresh.start, BatchPosition{});
  EXPECT_EQ(fresh.opened.in_run(), (BatchPosition{7, 14}));
  EXPECT_EQ(fresh.train->micro_batch(fresh.start, 0, 1, 2, 0, 1).tokens[0], 16 + 3);
  const RunData longer = resume(
      recorded({"training_config.new_dataset=True", "training_config.training_iters=33"}), state);
  EXPECT_THAT(longer.remarks, Contains(HasSubstr("holds 25 steps, the run has 26")));  // 33 less 7
  EXPECT_ERROR(resume(config(of(store("d", 100))), state), ValueError,
               "they were dataset_config.step_data_dir");
}

TEST_F(RecordedRunTest, StepsComeAgainBehindTheLastOne) {
  record(1, 3);
  RunData run = open_data(recorded({"training_config.training_iters=7"}));
  EXPECT_THAT(run.remarks, ElementsAre(AllOf(HasSubstr("holds 3 steps, the run has 7"),
                                             HasSubstr("the first one comes again"))));
  for (int64_t step = 0; step < 7; ++step) {
    const data::Batch batch = run.train->micro_batch({step, 2 * step}, 0, 1, 2, 0, 1);
    EXPECT_EQ(batch.tokens[0], 16 * (step % 3 + 1));
    EXPECT_EQ(batch.sample_ids, (std::vector<int64_t>{2 * step, 2 * step + 1}));
    EXPECT_EQ(run.train->epoch(2 * step), step / 3);
  }
  // As many epochs as were asked for.
  EXPECT_EQ(data::batches_until_epoch(*run.train, 0, 2, 2), 6);
  EXPECT_EQ(data::batches_until_epoch(*run.train, 8, 2, 2), 2);
  // Without a need for it nothing is said.
  EXPECT_THAT(open_data(recorded({"training_config.training_iters=3"})).remarks, IsEmpty());
}

TEST_F(RecordedRunTest, StepsThatAreAddedCountForRunsThatHaveNotBegunAgain) {
  record(1, 3);
  const RunData run = open_data(recorded({"training_config.training_iters=20"}));
  const DataState before = after(run, 3);
  const DataState again = after(run, 4);
  record(4, 5);
  const auto next = [&](const DataState& state) {
    RunData resumed = resume(recorded({"training_config.training_iters=20"}), state);
    return std::pair(resumed.train->micro_batch(resumed.start, 0, 1, 2, 0, 1).tokens[0],
                     resumed.opened.recorded->steps);
  };
  EXPECT_EQ(next(before), std::pair(int64_t{16 * 4}, int64_t{5}));
  EXPECT_EQ(next(again), std::pair(int64_t{16 * 2}, int64_t{3}));
  EXPECT_THAT(resume(recorded({"training_config.training_iters=20"}), again).remarks,
              Contains(HasSubstr("the 2 steps behind the first 3 were added")));
}

TEST_F(RecordedRunTest, RowsCanBeTakenOneAfterTheOther) {
  record(1, 3);  // 2 rows each
  const auto keys = [&](const std::string& iters) {
    return recorded({"dataset_config.step_data_as_samples=True",
                     "training_config.training_iters=" + iters, "dataset_config.batch_size=4"});
  };
  RunData run = open_data(keys("4"));
  EXPECT_THAT(run.remarks, Contains(HasSubstr("6 rows are taken one after the other, 4 a step")));
  std::vector<int64_t> firsts;
  for (int64_t step = 0; step < 4; ++step) {
    const data::Batch batch = run.train->micro_batch({step, 4 * step}, 0, 1, 4, 0, 1);
    EXPECT_EQ(batch.sample_ids[3], 4 * step + 3);
    for (int64_t row = 0; row < 4; ++row) {
      firsts.push_back(batch.tokens[static_cast<size_t>(8 * row)]);
      EXPECT_EQ(batch.origin(row).recorded->row, (4 * step + row) % 2);
    }
  }
  EXPECT_EQ(firsts,
            (std::vector<int64_t>{16, 24, 32, 40, 48, 56, 16, 24, 32, 40, 48, 56, 16, 24, 32, 40}));
  EXPECT_EQ(run.train->epoch(5), 0);
  EXPECT_EQ(run.train->epoch(6), 1);
  EXPECT_EQ(resume(keys("4"), after(run, 2)).start.step, 2);
  EXPECT_ERROR(resume(recorded(), after(run, 2)), ValueError,
               "step_data_as_samples is False; it was True");
  EXPECT_ERROR(
      open_data(recorded({"dataset_config.batch_size=4"})).train->micro_batch({}, 0, 1, 4, 0, 1),
      ValueError, "step_data_as_samples: True takes rows one after the other");
}

}  // namespace
}  // namespace run_data_test
}  // namespace tapestry
