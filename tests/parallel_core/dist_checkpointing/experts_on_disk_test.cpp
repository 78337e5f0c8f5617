// Experts in checkpoints: whoever has them writes them, and the files are those of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/manifest.h"
#include "parallel_core/dist_checkpointing/stored_tensors.h"
#include "parallel_core/dist_checkpointing/training_state_file.h"
#include "tests/parallel_core/expert_model.h"
#include "tests/parallel_core/made_up_samples.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using data::TempDir;
using testing::ExpertLayout;
using testing::ExpertTrainer;
using testing::joined;
using testing::Overrides;

Overrides level(const char* zero) { return {concat("parallel_config.zero_level=", zero)}; }

std::vector<ExpertLayout> layouts_of_experts() {
  const ModelParallelSizes tp2ep2 = {.tensor_model_parallel_size = 2,
                                     .expert_model_parallel_size = 2};
  return {
      {"dp=2,ep=2", 2, {.expert_model_parallel_size = 2}},
      {"dp=2,ep=2,z3", 2, {.expert_model_parallel_size = 2}, level("z3")},
      {"dp=4,ep=2,z1", 4, {.expert_model_parallel_size = 2}, level("z1")},
      {"dp=4,ep=2,z3", 4, {.expert_model_parallel_size = 2}, level("z3")},
      {"tp=2,dp=2,ep=2", 4, tp2ep2},
      {"tp=2,dp=4,ep=2,z2", 8, tp2ep2, level("z2")},
      {"pp=2", 2, {.pipeline_model_parallel_size = 2}},
      {"tp=2,etp=1", 2, {.tensor_model_parallel_size = 2, .expert_tensor_parallel_size = 1}},
      {"tp=2,dp=2,ep=4,etp=1",
       4,
       {.tensor_model_parallel_size = 2,
        .expert_model_parallel_size = 4,
        .expert_tensor_parallel_size = 1}},
      {"dp=4,ep=2,etp=2", 4, {.expert_model_parallel_size = 2, .expert_tensor_parallel_size = 2}},
      {"cp=2,dp=2,ep=4", 4, {.context_parallel_size = 2, .expert_model_parallel_size = 4}},
      {"pp=2,dp=2,ep=2", 4, {.pipeline_model_parallel_size = 2, .expert_model_parallel_size = 2}},
      {"one", 1}};
}

struct SavedExperts {
  std::string name;
  Overrides overrides;
  bool divided = false;  // what all have is written by all
};
std::ostream& operator<<(std::ostream& out, const SavedExperts& saved) { return out << saved.name; }

class ExpertsOnDisk : public ::testing::TestWithParam<SavedExperts> {
 protected:
  CheckpointOptions options(const std::string& name) const {
    CheckpointOptions out;
    out.directory = dir_.file(name);
    out.training_state = "{}";
    out.remove_redundancy = GetParam().divided;
    return out;
  }
  static void step(ExpertTrainer& trainer, int64_t number) {
    testing::MadeUpSamples samples(trainer.config);
    const bool in_groups = model_parallel_is_initialized();
    const int64_t rank = in_groups ? get_data_parallel_rank() : 0;
    const int64_t ranks = in_groups ? get_data_parallel_world_size() : 1;
    std::vector<data::Batch> batches;
    for (int64_t m = 0; m < 4 / ranks; ++m) {
      batches.push_back(samples.micro_batch({number, 8 * number}, m, 4 / ranks, 2, rank, ranks));
    }
    (*trainer.cell)(batches);
  }
  std::string save(ExpertTrainer& trainer, int64_t number, const std::string& name) const {
    return write_checkpoint(*trainer.model, trainer.config.model_config, number, options(name),
                            trainer.optimizer.get());
  }
  // A trainer that goes on from a checkpoint.
  static std::unique_ptr<ExpertTrainer> resumed(const AllConfig& config, const std::string& from) {
    auto trainer = std::make_unique<ExpertTrainer>(config);
    if (trainer->data_parallel != nullptr && trainer->data_parallel->shards_optimizer()) {
      load_own_weights(*trainer->model, config.model_config, from, *trainer->optimizer);
      trainer->data_parallel->parameters_changed();
    } else {
      load_weights(*trainer->model, config.model_config, from);
    }
    load_optimizer_state(from, *trainer->model, *trainer->optimizer);
    return trainer;
  }
  // Runs `body` on the ranks of a layout; what rank 0 makes of it.
  std::string on_ranks(const ExpertLayout& layout,
                       const std::function<std::string(const AllConfig&)>& body) const {
    std::string out;
    const AllConfig config = layout.config(GetParam().overrides);
    testing::run_parallel(layout.ranks, layout.sizes, [&] {
      std::string own = body(config);
      if (get_world_group().rank() == 0) {
        out = std::move(own);
      }
    });
    return out;
  }
  std::string start() const {
    return on_ranks({}, [&](const AllConfig& config) {
      ExpertTrainer trainer(config);
      step(trainer, 0);
      step(trainer, 1);
      return save(trainer, 2, "start");
    });
  }
  void expect_same_files(const std::string& a, const std::string& b) const {
    for (const char* name : {"/model.safetensors", "/training_state.safetensors"}) {
      EXPECT_EQ(read(a + name), read(b + name)) << name;
    }
    EXPECT_EQ(fault_of_checkpoint(b, /*checksums=*/true), "");
  }
  std::string read(const std::string& path) const {
    return dir_.read(path.substr(dir_.path().size() + 1));
  }

  TempDir dir_;
};

TEST_P(ExpertsOnDisk, FilesStayTheSame) {
  std::string from = start();
  int number = 0;
  for (const ExpertLayout& layout : layouts_of_experts()) {
    SCOPED_TRACE(layout.name);
    const std::string to = on_ranks(layout, [&](const AllConfig& config) {
      return save(*resumed(config, from), 2, concat("again_", number));
    });
    ++number;
    expect_same_files(from, to);
    from = to;
  }
}

// What one layout has saved another goes on with, as the first would have.
TEST_P(ExpertsOnDisk, AnotherLayoutGoesOn) {
  const ExpertLayout first = {
      "tp=2,dp=2,ep=2", 4, {.tensor_model_parallel_size = 2, .expert_model_parallel_size = 2}};
  std::string further;
  const std::string saved = on_ranks(first, [&](const AllConfig& config) {
    ExpertTrainer trainer(config);
    step(trainer, 0);
    std::string folder = save(trainer, 1, "first");
    step(trainer, 1);
    std::string own = save(trainer, 2, "further");
    if (get_world_group().rank() == 0) {
      further = std::move(own);
    }
    return folder;
  });
  const LogicalState expected = read_weights(further);
  for (const ExpertLayout& layout :
       {ExpertLayout{"pp=2", 2, {.pipeline_model_parallel_size = 2}},
        ExpertLayout{"dp=4,ep=2,z3", 4, {.expert_model_parallel_size = 2}, level("z3")}}) {
    SCOPED_TRACE(layout.name);
    const std::string resumed_run = on_ranks(layout, [&](const AllConfig& config) {
      const auto trainer = resumed(config, saved);
      step(*trainer, 1);
      return save(*trainer, 2, layout.name);
    });
    testing::expect_states_close(read_weights(resumed_run), expected, 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers,
    ExpertsOnDisk,
    ::testing::Values(SavedExperts{"adamw", {"optimizer_config.learning_rate=1e-3"}},
                      SavedExperts{"divided", {"optimizer_config.learning_rate=1e-3"}, true},
                      SavedExperts{"came", {"optimizer_config.optimizer_type=Came"}},
                      SavedExperts{"muon",
                                   {"optimizer_config.optimizer_type=Muon",
                                    "optimizer_config.ns_dtype=float32"},
                                   true}),
    [](const auto& info) { return info.param.name; });

// Weights that a file lacks, or has too many of, whichever rank's experts they are.
TEST(ExpertsOfAFile, AreMissingOrUnexpectedByName) {
  const LogicalState state = get_logical_state(*ExpertTrainer(ExpertLayout{}.config({})).model);
  const ExpertLayout layout = {"dp=2,ep=2", 2, {.expert_model_parallel_size = 2}};
  const auto load = [&](const LogicalState& changed) {
    testing::run_parallel(layout.ranks, layout.sizes, [&] {
      ExpertTrainer trainer(layout.config({}));
      set_logical_state(*trainer.model, changed, "test");
    });
  };
  EXPECT_NO_THROW(load(state));
  LogicalState more = state;
  more.emplace("layers.0.moe.experts.4.up.weight", zeros({16, 32}));
  EXPECT_THAT([&] { load(more); }, ::testing::ThrowsMessage<ValueError>(
                                       ::testing::HasSubstr("layers.0.moe.experts.4.up.weight")));
  LogicalState less = state;
  less.erase("layers.1.moe.experts.3.down.bias");
  EXPECT_THAT([&] { load(less); }, ::testing::ThrowsMessage<ValueError>(
                                       ::testing::HasSubstr("layers.1.moe.experts.3.down.bias")));
}

}  // namespace
}  // namespace tapestry
