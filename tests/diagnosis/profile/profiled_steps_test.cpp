// Profiles of real steps: what the trace and the tables say, against what is known otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "diagnosis/profile/analysis.h"
#include "diagnosis/profile/step_profiler.h"
#include "diagnosis/run_parts.h"
#include "parallel_core/estimates/time_estimate.h"
#include "parallel_core/parallel_state.h"
#include "tests/diagnosis/profile/trace_checks.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using data::TempDir;
using nlohmann::json;
using testing::expect_nested;
using testing::expect_whole_arrows;
using ::testing::HasSubstr;
using testing::make_batch;
using testing::Overrides;
using testing::run_parallel;
using testing::slices_of;
using testing::small_config;
using testing::TracedSlice;
using testing::Trainer;
using testing::uncovered_share;

class NumberedSamples final : public data::DataSource {
 public:
  explicit NumberedSamples(AllConfig config) : config_(std::move(config)) {}
  data::Batch micro_batch(data::BatchPosition position,
                          int64_t micro_index,
                          int64_t /*micro_batch_num*/,
                          int64_t micro_batch_size,
                          int64_t /*dp_rank*/,
                          int64_t /*dp_size*/) override {
    return make_batch(config_, micro_batch_size,
                      position.first_sample + micro_index * micro_batch_size, true);
  }
  int64_t seq_length() const override { return config_.model_config.seq_length; }
  int64_t size_in_samples() const override { return 1000; }
  int64_t epoch(int64_t /*first_sample*/) const override { return 0; }

 private:
  AllConfig config_;
};

// Sums of CommunicationStats over all groups that a rank of these tests communicates in.
int64_t bytes_sent() {
  int64_t bytes = 0;
  for (ProcessGroup* group :
       {&get_world_group(), &get_tensor_model_parallel_group(),
        &get_pipeline_model_parallel_group(), &get_data_parallel_group(),
        &get_data_parallel_group(true), &get_model_parallel_group(), &get_context_parallel_group(),
        &get_tensor_and_data_parallel_group(), &get_embedding_group()}) {
    for (const CommunicationStats::Counter& counter : group->stats().by_collective) {
      bytes += counter.bytes;
    }
  }
  return bytes;
}

// Notes what has been communicated when the window begins and when it ends.
class BytesOfWindow final : public StepObserver {
 public:
  BytesOfWindow(int64_t first, int64_t last) : first_(first), last_(last) {}
  void before(int64_t step) override {
    if (step == first_) {
      bytes = -bytes_sent();
    }
  }
  void after(FinishedStep& step) override {
    if (step.record.step == last_) {
      bytes += bytes_sent();
      peak = memory_stats().peak_bytes;
    }
  }
  int64_t bytes = 0;
  int64_t peak = 0;

 private:
  int64_t first_;
  int64_t last_;
};

const Overrides kLarger = {
    "model_config.hidden_size=128",      "model_config.ffn_hidden_size=512",
    "model_config.num_layers=4",         "model_config.seq_length=64",
    "model_config.vocab_size=512",       "dataset_config.batch_size=2",
    "dataset_config.micro_batch_num=2",  "training_config.training_iters=4",
    "training_config.profile=True",      "training_config.profile_step_start=2",
    "training_config.profile_step_end=3"};

struct Profiled {
  int64_t bytes = 0;  // of the rank's collectives in the window
  int64_t peak = 0;
};

// Trains four steps on this rank, with files in the folder.
Profiled train_profiled(const TempDir& dir, const Overrides& more) {
  Overrides overrides = testing::joined(kLarger, more);
  overrides.push_back("training_config.output_dir=" + dir.path());
  const AllConfig config = small_config(overrides);
  const auto parts = make_parts(diagnosis::run_parts());
  for (const auto& part : parts) {
    part->begin(config);
  }
  Trainer trainer(config);
  NumberedSamples samples(trainer.config);
  BytesOfWindow bytes(2, 3);
  TrainOptions options;
  options.observers = {&bytes};
  options.parts = pointers_to(parts);
  train(trainer.cell, samples, trainer.config, options);
  return {bytes.bytes, bytes.peak};
}

json trace_in(const TempDir& dir) { return json::parse(dir.read("profile/trace.json")); }

// Rows of a CSV file whose fields hold no commas, by the names of its columns.
std::vector<std::map<std::string, std::string>> rows_of(const TempDir& dir, const char* name) {
  std::istringstream lines(dir.read(std::string("profile/") + name));
  const auto split = [](const std::string& line) {
    std::vector<std::string> fields;
    std::istringstream in(line);
    for (std::string field; std::getline(in, field, ',');) {
      fields.push_back(field);
    }
    return fields;
  };
  std::string line;
  std::getline(lines, line);
  const std::vector<std::string> header = split(line);
  std::vector<std::map<std::string, std::string>> rows;
  while (std::getline(lines, line)) {
    const std::vector<std::string> fields = split(line);
    std::map<std::string, std::string> row;
    for (size_t i = 0; i < header.size(); ++i) {
      row[header[i]] = i < fields.size() ? fields[i] : "";
    }
    rows.push_back(std::move(row));
  }
  return rows;
}
double sum_of(const TempDir& dir,
              const char* file,
              const char* column,
              const char* rank = nullptr) {
  double sum = 0;
  for (const auto& row : rows_of(dir, file)) {
    if (rank == nullptr || row.at("rank") == rank) {
      sum += std::stod(row.at(column));
    }
  }
  return sum;
}

class ProfiledSteps : public ::testing::Test {
 protected:
  ProfiledSteps() { initialize_model_parallel(); }
  ~ProfiledSteps() override { destroy_model_parallel(); }
  TempDir dir_;
};

TEST_F(ProfiledSteps, SlicesNestAndPhasesMakeUpTheSteps) {
  train_profiled(dir_, {"training_config.profile_level=level1", "training_config.eval_interval=3"});
  const json trace = trace_in(dir_);
  expect_nested(trace);
  EXPECT_LT(uncovered_share(trace, 0), 0.02);
  std::map<std::string, int> categories;
  std::map<std::string, int> phases;
  std::vector<std::string> steps;
  for (const TracedSlice& slice : slices_of(trace)) {
    ++categories[slice.category];
    if (slice.category == "phase") {
      ++phases[slice.name];
      EXPECT_EQ(slice.tid, slice.name == "data" ? 2 : 0) << slice.name;
    }
    if (slice.category == "step") {
      steps.push_back(slice.name);
    }
  }
  EXPECT_EQ(steps, (std::vector<std::string>{"step 2", "step 3"}));
  EXPECT_EQ(phases["forward"], 4);
  EXPECT_EQ(phases["backward"], 4);
  for (const char* phase : {"data", "optimizer", "reduce_gradients", "gradient_norm"}) {
    EXPECT_EQ(phases[phase], 2) << phase;
  }
  EXPECT_EQ(phases.count("fetch"), 0U);
  EXPECT_GT(categories["op"], 100);
  EXPECT_GT(categories["module"], 20);
  EXPECT_EQ(trace.at("otherData").at("first_step"), 2);
  EXPECT_EQ(trace.at("otherData").at("last_step"), 3);
}

TEST_F(ProfiledSteps, OpTimesSumToWhatWasRecorded) {
  train_profiled(dir_, {});
  int64_t outermost = 0;
  for (const TracedSlice& slice : slices_of(trace_in(dir_))) {
    EXPECT_NE(slice.category, "op") << "level0 draws none";
    outermost += slice.category == "step" ? slice.end - slice.begin : 0;
  }
  EXPECT_NEAR(sum_of(dir_, "ops.csv", "self_ms"), static_cast<double>(outermost) / 1e6,
              1e-3 * static_cast<double>(outermost) / 1e6);
  EXPECT_NEAR(sum_of(dir_, "ops.csv", "share_of_time"), 1, 1e-3);
  for (const auto& row : rows_of(dir_, "ops.csv")) {
    EXPECT_GE(std::stod(row.at("ms")), std::stod(row.at("self_ms"))) << row.at("name");
    EXPECT_GE(std::stod(row.at("share_of_peak_flops")), 0);
  }
}

TEST_F(ProfiledSteps, FlopsAreThoseOfTheFormula) {
  train_profiled(dir_, {});
  const AllConfig config = small_config(kLarger);
  const double expected = 2 * step_work(config, 1).flops / 1e9;  // two steps
  EXPECT_NEAR(sum_of(dir_, "ops.csv", "gflop"), expected, 0.01 * expected);
  double of_modules = 0;  // the rows without a path are the whole model's
  for (const auto& row : rows_of(dir_, "modules.csv")) {
    of_modules += row.at("module").empty() ? std::stod(row.at("gflop")) : 0;
  }
  EXPECT_NEAR(of_modules, expected, 0.01 * expected);
}

TEST_F(ProfiledSteps, RecomputedOpsHaveRowsOfTheirOwn) {
  train_profiled(dir_, {"recompute_config.recompute=True"});
  double again = 0;
  for (const auto& row : rows_of(dir_, "ops.csv")) {
    again += row.at("pass") == "again" ? std::stod(row.at("gflop")) : 0;
  }
  EXPECT_GT(again, 0);
  expect_nested(trace_in(dir_));
}

TEST_F(ProfiledSteps, MemoryTableSumsToTheAllocatorsPeak) {
  const Profiled run = train_profiled(dir_, {"training_config.profile_memory=True"});
  EXPECT_EQ(static_cast<int64_t>(sum_of(dir_, "memory.csv", "bytes")), run.peak);
  EXPECT_NEAR(sum_of(dir_, "memory.csv", "share_of_peak"), 1, 1e-4);
  std::map<std::string, int> named;
  for (const auto& row : rows_of(dir_, "memory.csv")) {
    EXPECT_GT(std::stoll(row.at("bytes")), 0);
    ++named[row.at("op")];
    if (row.at("kind") == "optimizer") {
      EXPECT_THAT(row.at("op"), HasSubstr("exp_avg")) << row.at("module");
    }
  }
  EXPECT_GT(named["parameter weight"], 8);
}

TEST_F(ProfiledSteps, LackOfMemoryNamesModulesAndOps) {
  const AllConfig config =
      small_config(testing::joined(kLarger, {"training_config.profile_memory=True",
                                             "training_config.output_dir=" + dir_.path()}));
  const auto parts = make_parts(diagnosis::run_parts());
  for (const auto& part : parts) {
    part->begin(config);
  }
  Trainer trainer(config);
  NumberedSamples samples(trainer.config);
  TrainOptions options;
  options.parts = pointers_to(parts);
  RankContext::current().allocator().release_cache();
  set_memory_limit(memory_stats().current_bytes + (int64_t{5} << 20));
  std::string message;
  try {
    train(trainer.cell, samples, trainer.config, options);
  } catch (const RuntimeError& error) {
    message = error.what();
  }
  set_memory_limit(-1);
  EXPECT_THAT(message, HasSubstr("largest holders:\n"));
  EXPECT_THAT(message, ::testing::ContainsRegex(
                           "MiB  parameters in 1 block, parameter weight, language_model\\."));
  EXPECT_THAT(message, ::testing::ContainsRegex("MiB  [a-z]+ in [0-9]+ blocks?, .*layers\\."));
}

TEST_F(ProfiledSteps, Level2CountsEveryAllocation) {
  train_profiled(dir_, {"training_config.profile_level=level2"});
  int counters = 0;
  int64_t last = INT64_MIN;
  const json trace = trace_in(dir_);
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "C") {
      ++counters;
      EXPECT_GE(event.at("args").at("bytes").get<int64_t>(), 0);
      const int64_t at = testing::traced_ns(event.at("ts"));
      EXPECT_GE(at, last);
      last = at;
    }
  }
  EXPECT_GT(counters, 1000);
}

TEST_F(ProfiledSteps, KeysSayWhatIsRecorded) {
  train_profiled(
      dir_, {"training_config.profile_level=level1", "training_config.profile_op_time=False",
             "training_config.profile_framework=None", "training_config.profile_data_process=True",
             "training_config.profile_communication=True",
             "training_config.profile_parallel_strategy=True",
             "training_config.profile_data_simplification=True"});
  const json trace = trace_in(dir_);
  for (const TracedSlice& slice : slices_of(trace)) {
    EXPECT_THAT(slice.category, ::testing::AnyOf("step", "phase", "communication", "wait"));
  }
  for (const auto& event : trace.at("traceEvents")) {
    EXPECT_NE(event.at("ph"), "C");
  }
  namespace fs = std::filesystem;
  EXPECT_FALSE(fs::exists(dir_.file("profile/ops.csv")));
  EXPECT_FALSE(fs::exists(dir_.file("profile/rank_0")));
  EXPECT_FALSE(fs::exists(dir_.file("profile/memory.csv")));
  int fetched = 0;
  for (const auto& row : rows_of(dir_, "data.csv")) {
    fetched += row.at("micro_batch") == "all" ? 0 : 1;
  }
  EXPECT_EQ(fetched, 4);
  const json layout = json::parse(dir_.read("profile/parallel_strategy.json"));
  ASSERT_EQ(layout.at("ranks").size(), 1U);
  EXPECT_EQ(layout.at("ranks")[0].at("layers_of_chunks")[0].at("count"), 4);
}

TEST_F(ProfiledSteps, StacksNameModulesAndSourceLines) {
  train_profiled(dir_, {"training_config.profile_with_stack=True"});
  const std::string stacks = dir_.read("profile/stacks.txt");
  EXPECT_THAT(stacks,
              ::testing::ContainsRegex(
                  "step;forward;[^;]*layers[^;]*;[a-z_]+ \\(.*autograd/ops/[a-z_]+\\.cpp:"));
  EXPECT_THAT(stacks, HasSubstr("step;backward;"));
}

TEST_F(ProfiledSteps, AnalysisCanWait) {
  train_profiled(dir_, {"training_config.profile_offline_analyse=True"});
  const std::string folder = dir_.file("profile");
  EXPECT_FALSE(std::filesystem::exists(folder + "/trace.json"));
  EXPECT_THAT(profile::analyse(folder), HasSubstr("profile of steps 2 to 3 on 1 rank"));
  expect_nested(trace_in(dir_));
  EXPECT_GT(sum_of(dir_, "ops.csv", "gflop"), 0);
}

TEST_F(ProfiledSteps, AWindowBeyondTheEndStopsWithTheRun) {
  train_profiled(dir_, {"training_config.profile_step_end=9"});
  EXPECT_EQ(trace_in(dir_).at("otherData").at("last_step"), 4);
}

TEST_F(ProfiledSteps, AFileSteersARunThatGoesOn) {
  dir_.write("steer/profiler_config.json",
             R"({"start_step": 3, "stop_step": 3, "profiler_level": 1})");
  train_profiled(dir_,
                 {"training_config.profile_dynamic_profiler_config_path=" + dir_.file("steer")});
  EXPECT_FALSE(std::filesystem::exists(dir_.file("profile/trace.json")));
  const json trace = json::parse(dir_.read("profile/steps_3_to_3/trace.json"));
  EXPECT_EQ(trace.at("otherData").at("first_step"), 3);
  const auto slices = slices_of(trace);
  EXPECT_TRUE(std::any_of(slices.begin(), slices.end(),
                          [](const TracedSlice& slice) { return slice.category == "op"; }));
}

TEST(ProfiledLayout, RanksShareAClockAndArrowsHaveBothEnds) {
  const TempDir dir;
  std::array<int64_t, 4> bytes = {};
  std::array<int64_t, 4> peaks = {};
  run_parallel(4, {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2}, [&] {
    const Profiled run = train_profiled(
        dir,
        {"parallel_config.tensor_model_parallel_size=2",
         "parallel_config.pipeline_model_parallel_size=2", "training_config.profile_level=level1",
         "training_config.profile_memory=True", "training_config.profile_communication=True"});
    const auto rank = static_cast<size_t>(get_world_group().rank());
    bytes[rank] = run.bytes;
    peaks[rank] = run.peak;
  });
  const json trace = trace_in(dir);
  expect_nested(trace);
  EXPECT_GE(expect_whole_arrows(trace), 8);
  for (int rank = 0; rank < 4; ++rank) {
    const std::string name = std::to_string(rank);
    EXPECT_LT(uncovered_share(trace, rank), 0.02) << rank;
    EXPECT_EQ(static_cast<int64_t>(sum_of(dir, "communication.csv", "bytes", name.c_str())),
              bytes[static_cast<size_t>(rank)])
        << rank;
    EXPECT_EQ(static_cast<int64_t>(sum_of(dir, "memory.csv", "bytes", name.c_str())),
              peaks[static_cast<size_t>(rank)])
        << rank;
  }
  // All messages of the window have an arrow.
  int messages = 0;
  int arrows = 0;
  for (const TracedSlice& slice : slices_of(trace)) {
    messages += slice.name == "send" ? 1 : 0;
  }
  for (const auto& event : trace.at("traceEvents")) {
    arrows += event.at("ph") == "s" && event.at("name") == "message" ? 1 : 0;
  }
  EXPECT_EQ(arrows, messages);
  EXPECT_EQ(messages, 2 * 2 * 2 * 2);  // steps, micro-batches, ranks of a stage, both directions
  const json& clocks = trace.at("otherData").at("clocks");
  ASSERT_EQ(clocks.size(), 4U);
  EXPECT_EQ(clocks[0].at("shift_us"), 0);
  EXPECT_EQ(clocks[0].at("scale"), 1);
}

TEST_F(ProfiledSteps, AnalysisSaysWhatIsMissingOrWrong) {
  EXPECT_THROW(profile::analyse(dir_.file("none")), IoError);
  train_profiled(dir_, {"training_config.profile_offline_analyse=True"});
  const std::string folder = dir_.file("profile");
  const std::string trace = dir_.read("profile/rank_0/trace.json");
  const auto complaint = [&] {
    try {
      profile::analyse(folder);
    } catch (const IoError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  dir_.write("profile/rank_0/trace.json", trace.substr(0, trace.size() / 2));
  EXPECT_THAT(complaint(), HasSubstr("rank_0/trace.json: is no JSON object"));
  dir_.write("profile/rank_0/trace.json", R"({"traceEvents": []})");
  EXPECT_THAT(complaint(), HasSubstr("is no profile of version 1"));
  json two = json::parse(trace);
  two["otherData"]["ranks"] = 2;
  dir_.write("profile/rank_0/trace.json", two.dump());
  EXPECT_THAT(complaint(), HasSubstr("rank_1/trace.json: cannot be read"));
  two["otherData"]["rank"] = 1;
  two["otherData"]["last_step"] = 7;
  dir_.write("profile/rank_1/trace.json", two.dump());
  EXPECT_THAT(complaint(), HasSubstr("last_step is 7, but 3 for rank 0"));
  dir_.write("profile/rank_0/trace.json", trace);
  dir_.write("profile/rank_0/tables.json", "{\"ops\": 3}");
  EXPECT_THAT(complaint(), HasSubstr("are not those of a profile"));
}

}  // namespace
}  // namespace tapestry
