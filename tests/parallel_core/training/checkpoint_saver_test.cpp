// Which checkpoint is the best one: never one that is not on disk, and there is always the one
// before until then.
#include "parallel_core/training/checkpoints/checkpoint_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "autograd/io/json.h"
#include "parallel_core/parallel_state.h"
#include "tests/parallel_core/small_model.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace checkpoint_saver_test {
namespace {

using data::TempDir;
using ::testing::ElementsAre;
using testing::Overrides;
using testing::Trainer;

// No file of more bytes than this while it lives, as on a disk that is full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit small{.rlim_cur = bytes, .rlim_max = old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int) = nullptr;
};

class BestCheckpoint : public ::testing::TestWithParam<bool> {
 protected:
  BestCheckpoint()
      : trainer_(Overrides{
            "training_config.keep_checkpoint_max=1",
            std::string("training_config.async_save=") + (GetParam() ? "True" : "False")}) {
    initialize_model_parallel();
    begin();
  }
  ~BestCheckpoint() override {
    saver_.reset();
    destroy_model_parallel();
  }
  // A start of the run.
  void begin(const std::optional<BestEvaluation>& best = std::nullopt) {
    CheckpointOptions options;
    options.directory = dir_.file("checkpoint");
    options.keep_max = 1;
    saver_.emplace(*trainer_.model, *trainer_.optimizer, trainer_.config, options);
    saver_->take_up_best(best);
  }
  static BestEvaluation evaluation(int64_t step, double value) {
    return {.metric = "loss", .value = value, .step = step};
  }
  // As the loop does it, up to the finite loss of the step that follows.
  void save(int64_t step) {
    saver_->save(step, "{}");
    saver_->finish();
  }
  void save_proven(int64_t step) {
    save(step);
    saver_->accept();
  }
  void save_best(int64_t step, double value) {
    saver_->propose_best(evaluation(step, value));
    EXPECT_EQ(saver_->best()->step, step);
    save(step);
  }
  std::vector<std::string> saved() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.file("checkpoint"))) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  // What best.json says; nothing where it is not there.
  std::string named() const {
    const auto json = nlohmann::json::parse(dir_.read("checkpoint/best.json"), nullptr, false);
    if (!json.is_object()) {
      return {};
    }
    EXPECT_EQ(json.at("checkpoint"), checkpoint_name(json.at("step")));
    EXPECT_TRUE(std::filesystem::exists(dir_.file(
        "checkpoint/" + json.at("checkpoint").get<std::string>() + "/model.safetensors")));
    return json.at("checkpoint");
  }

  TempDir dir_;
  Trainer trainer_;
  std::optional<CheckpointSaver> saver_;
};

TEST_P(BestCheckpoint, StaysUntilABetterOneIsOnDisk) {
  save_best(1, 5);
  saver_->accept();
  save_proven(2);
  EXPECT_EQ(named(), "step_00000001");
  {
    const FileSizeLimit full(1000);
    save_best(3, 4);
  }
  saver_->accept();
  EXPECT_EQ(saver_->best()->step, 1);
  EXPECT_EQ(saver_->best()->value, 5);
  EXPECT_EQ(named(), "step_00000001");
  save_proven(4);
  EXPECT_THAT(saved(), ElementsAre("best.json", "step_00000001", "step_00000004"));
  save_best(5, 4.5);
  EXPECT_EQ(named(), "step_00000005");
  EXPECT_THAT(saved(), ElementsAre("best.json", "step_00000001", "step_00000004", "step_00000005"));
  saver_->accept();
  save_proven(6);
  EXPECT_THAT(saved(), ElementsAre("best.json", "step_00000005", "step_00000006"));
}

TEST_P(BestCheckpoint, ThatIsSpoiltGivesItsPlaceBack) {
  save_best(1, 5);
  saver_->accept();
  save_best(2, 4);
  EXPECT_EQ(named(), "step_00000002");
  EXPECT_THAT(saver_->set_unproven_aside(), ::testing::HasSubstr("diverged_step_2"));
  EXPECT_EQ(named(), "step_00000001");
  EXPECT_EQ(saver_->best()->step, 1);
  EXPECT_THAT(saved(), ElementsAre("best.json", "diverged_step_2", "step_00000001"));
}

TEST_P(BestCheckpoint, ThatIsSpoiltAndTheOnlyOneIsNamedByNothing) {
  save_best(1, 5);
  EXPECT_EQ(named(), "step_00000001");
  saver_->set_unproven_aside();
  EXPECT_FALSE(saver_->best());
  EXPECT_THAT(saved(), ElementsAre("diverged_step_1"));
}

// Neither is a failed save, nor may the others of several ranks take it for one.
TEST_P(BestCheckpoint, ThatCannotBeNamedIsKeptAndNamedLater) {
  save_best(1, 5);
  saver_->accept();
  std::filesystem::remove(dir_.file("checkpoint/best.json"));
  std::filesystem::create_directory(dir_.file("checkpoint/best.json"));
  save_best(2, 4);
  saver_->accept();
  EXPECT_FALSE(saver_->has_failed());
  EXPECT_EQ(saver_->best()->step, 2);
  save_proven(3);
  save_proven(4);
  EXPECT_THAT(saved(), ElementsAre("best.json", "step_00000001", "step_00000002", "step_00000004"));
  std::filesystem::remove(dir_.file("checkpoint/best.json"));
  save_proven(5);
  EXPECT_EQ(named(), "step_00000002");
  save_proven(6);
  EXPECT_THAT(saved(), ElementsAre("best.json", "step_00000002", "step_00000006"));
}

TEST_P(BestCheckpoint, OfAnEarlierStartIsNamedIfItIsThere) {
  save_best(1, 5);
  saver_->accept();
  save_best(2, 4);
  saver_->accept();  // removes the first one
  begin(evaluation(2, 4));
  EXPECT_EQ(named(), "step_00000002");
  save_proven(3);
  EXPECT_THAT(saved(), ElementsAre("best.json", "step_00000002", "step_00000003"));
  begin(evaluation(1, 5));  // in the folder of another run
  EXPECT_EQ(named(), "");
  EXPECT_FALSE(std::filesystem::exists(dir_.file("checkpoint/best.json")));
  EXPECT_EQ(saver_->best()->value, 5);
  begin(evaluation(3, 3));  // the run was killed before it could name it
  EXPECT_EQ(named(), "step_00000003");
  begin();
  EXPECT_FALSE(std::filesystem::exists(dir_.file("checkpoint/best.json")));
}

INSTANTIATE_TEST_SUITE_P(Saves, BestCheckpoint, ::testing::Bool(), [](const auto& info) {
  return info.param ? "async" : "sync";
});

}  // namespace
}  // namespace checkpoint_saver_test
}  // namespace tapestry
