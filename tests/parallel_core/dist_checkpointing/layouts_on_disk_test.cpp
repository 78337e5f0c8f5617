// What a checkpoint holds does not depend on who wrote it: loaded in one layout after the other and
// written again, its files stay the same, bit for bit, and what is in memory has the same hashes.
#include <gtest/gtest.h>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/manifest.h"
#include "parallel_core/dist_checkpointing/stored_hashes.h"
#include "parallel_core/dist_checkpointing/training_state_file.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/pretrain.h"
#include "tests/message_of.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/rank_layouts.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using data::TempDir;
using testing::joined;
using testing::kParallel;
using testing::Overrides;
using testing::pp;
using testing::RankLayout;
using testing::small_config;
using testing::tp;
using testing::Trainer;
using testing::zero;

std::vector<RankLayout> layouts() {
  const Overrides chunks = {"model_config.num_layers=4",
                            kParallel + "virtual_pipeline_model_parallel_size=2"};
  return {{2, tp(2)},
          {2, {}},
          {2, zero("z1")},
          {4, joined(tp(2), zero("z2"))},
          {4, joined(tp(4), {kParallel + "sequence_parallel=True"})},
          {2, zero("z3")},
          {2, pp(2)},
          {4, joined(tp(2), pp(2))},
          {4, joined(pp(2), zero("z1"))},
          {2, {kParallel + "context_parallel_size=2"}},
          {4, joined(zero("z3"), tp(2))},
          {4, joined(zero("z3"), {kParallel + "context_parallel_size=2"})},
          {1, {}}};
}

struct SavedModel {
  Overrides overrides;
  std::string ckpt_prefix = {};  // empty: safetensors
  uint64_t max_part = 5'000'000'000;
};

class LayoutsOnDisk : public ::testing::TestWithParam<SavedModel> {
 protected:
  static std::vector<std::string> binaries() {
    const std::string& prefix = GetParam().ckpt_prefix;
    return prefix.empty()
               ? std::vector<std::string>{"model.safetensors", "training_state.safetensors"}
               : std::vector<std::string>{prefix + ".ckpt", prefix + "-training_state.ckpt"};
  }
  // Trains three steps in one process and saves.
  std::string train() {
    Trainer trainer(GetParam().overrides);
    for (int64_t step = 0; step < 3; ++step) {
      trainer.cell({testing::make_batch(trainer.config, 2, 2 * step)});
    }
    hashes_ = StateHash(*trainer.model, trainer.optimizer.get(), HashedState::kWeightsAndStates)();
    EXPECT_EQ(StateHash(*trainer.model, trainer.optimizer.get())(), whole_hashes(trainer));
    return write_checkpoint(*trainer.model, trainer.config.model_config, 3, options("start"),
                            trainer.optimizer.get());
  }
  // Of whole tensors.
  static TensorHashes whole_hashes(const Trainer& trainer) {
    TensorHashes hashes;
    for (const auto& [name, tensor] : get_logical_state(*trainer.model, trainer.optimizer.get())) {
      hashes.emplace(name, whole_tensor_hash(tensor));
    }
    return hashes;
  }
  CheckpointOptions options(const std::string& name) const {
    CheckpointOptions out;
    out.directory = dir_.file(name);
    out.training_state = "{}";
    out.remove_redundancy = name.back() % 2 == 0;
    out.ckpt_prefix = GetParam().ckpt_prefix;
    out.max_shard_bytes = GetParam().max_part;
    return out;
  }
  // Loads a checkpoint in a layout, and saves it again.
  std::string rewrite(const RankLayout& layout, const std::string& from, const std::string& name) {
    std::string saved;
    run_thread_ranks(layout.ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
      const AllConfig config = small_config(joined(GetParam().overrides, layout.overrides));
      initialize_ranks(config, world);
      const auto model = get_model(config);
      load_weights(*model, config.model_config, from);
      const auto data_parallel = get_data_parallel(config, *model);
      const auto optimizer = get_optimizer(config, *model, data_parallel.get());
      load_optimizer_state(from, *model, *optimizer);
      StateHash hash(*model, optimizer.get(), HashedState::kWeightsAndStates);
      EXPECT_EQ(hash(), hashes_);
      const std::string folder =
          write_checkpoint(*model, config.model_config, 3, options(name), optimizer.get());
      if (world->rank() == 0) {
        saved = folder;
      }
    });
    return saved;
  }

  TempDir dir_;
  TensorHashes hashes_;  // of what was trained
};

TEST_P(LayoutsOnDisk, FilesStayTheSame) {
  std::string from = train();
  const TempDir& dir = dir_;
  const auto read = [&](const std::string& path) {
    return dir.read(path.substr(dir.path().size() + 1));
  };
  int number = 0;
  for (const RankLayout& layout : layouts()) {
    SCOPED_TRACE(::testing::PrintToString(layout.overrides));
    const std::string to = rewrite(layout, from, concat("rewritten_", ++number));
    for (const std::string& name : joined(binaries(), {"training_state.json"})) {
      EXPECT_EQ(std::filesystem::exists(from + "/" + name),
                std::filesystem::exists(to + "/" + name))
          << name;
      EXPECT_EQ(read(from + "/" + name), read(to + "/" + name)) << name;
    }
    EXPECT_EQ(fault_of_checkpoint(to, /*checksums=*/true), "");
    from = to;
  }
}

const Overrides kHalves = {"training_config.bf16=True", "model_config.params_dtype=bfloat16",
                           "optimizer_config.store_param_remainders=True",
                           "optimizer_config.exp_avg_dtype=bfloat16",
                           "optimizer_config.exp_avg_sq_dtype=bfloat16"};

// Statistics of rows and columns; states that differ from parameter to parameter.
const Overrides kCame = {"model_config.num_layers=4", "optimizer_config.optimizer_type=Came"};
const Overrides kMuon = {"model_config.num_layers=4", "optimizer_config.optimizer_type=Muon"};
// No states at all, and so no file of them; one that halves with their missing bits need.
const Overrides kPlainSgd = {"model_config.num_layers=4", "optimizer_config.optimizer_type=SGD",
                             "optimizer_config.momentum=0"};
const Overrides kSgdOfHalves = {"training_config.bf16=True", "model_config.params_dtype=bfloat16"};

const Overrides kStreams = {"model_config.enable_hyper_connections=True"};

INSTANTIATE_TEST_SUITE_P(
    Models,
    LayoutsOnDisk,
    ::testing::Values(
        SavedModel{{"model_config.num_layers=4"}},
        SavedModel{testing::llama({"model_config.num_layers=4", testing::kUntied})},
        SavedModel{joined({"model_config.num_layers=4"}, kHalves)},
        // Parts of 24 bytes: no row of a matrix lies together.
        SavedModel{testing::llama({"model_config.num_layers=4", testing::kUntied}), "mine", 24},
        SavedModel{joined({"model_config.num_layers=4"}, kHalves), "mine"},
        SavedModel{kPlainSgd},
        SavedModel{kPlainSgd, "mine"},
        SavedModel{joined(kPlainSgd, kSgdOfHalves)},
        SavedModel{kCame},
        SavedModel{testing::llama(kMuon)},
        SavedModel{testing::llama({"model_config.num_layers=4", testing::kUntied,
                                   "model_config.mtp_num_layers=2"})},
        SavedModel{testing::llama({"model_config.num_layers=4", "model_config.mtp_num_layers=1"}),
                   "mine"},
        SavedModel{testing::llama(joined(kMuon, kStreams))},
        SavedModel{joined(kStreams, {"model_config.num_layers=4"}), "mine"}));

TEST(StateHash, TellsOfCopiesWithOtherBits) {
  run_thread_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    const AllConfig config = small_config();
    initialize_ranks(config, world);
    const auto model = get_model(config);
    StateHash hash(*model, nullptr);
    const TensorHashes clean = hash();
    EXPECT_TRUE(hash.differing_copies().empty());
    const nn::Parameter& last = *model->named_parameters().back().parameter;
    if (world->rank() == 1) {
      auto* words = static_cast<uint32_t*>(last.raw());
      words[last.numel() - 1] ^= 1U;
    }
    const TensorHashes found = hash();
    const std::string& name = last.logical().back().name;
    EXPECT_EQ(hash.differing_copies(), std::vector<std::string>{name + " on rank 1"});
    EXPECT_NE(found.at(name), clean.at(name));
    EXPECT_NE(combined_hash(found), combined_hash(clean));
  });
}

TEST(StoredHashes, TellWhichTensorIsNotWhatWasSaved) {
  const TempDir dir;
  const StoredHashes stored = {.bit_class = "float32-fma",
                               .tensors = {{"a", {.low = 1, .high = 2}},
                                           {"b", {.low = 3, .high = 4}},
                                           {"b.exp_avg", {.low = 5, .high = 6}}}};
  EXPECT_FALSE(read_stored_hashes(dir.path()).has_value());
  std::ofstream(dir.file("hashes.json")) << stored_hashes_text(stored);
  const std::optional<StoredHashes> read = read_stored_hashes(dir.path());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->bit_class, "float32-fma");
  EXPECT_EQ(read->tensors, stored.tensors);

  TensorHashes found = stored.tensors;
  found.erase("b.exp_avg");  // not loaded
  check_stored_hashes(*read, found, dir.path());
  found["b"].low ^= 1;
  const std::string message =
      message_of<RuntimeError>([&] { check_stored_hashes(*read, found, dir.path()); });
  EXPECT_THAT(message, Says("hashes.json has other hashes than b as loaded"));

  std::ofstream(dir.file("hashes.json")) << R"({"class": "float32-fma", "tensors": {"a": "12"}})";
  EXPECT_THAT(message_of<IoError>([&] { read_stored_hashes(dir.path()); }),
              Says("hashes.json ... '12' is no hash"));
}

class StoredState : public ::testing::Test {
 protected:
  StoredState() {
    trainer_.cell({testing::make_batch(trainer_.config, 2)});
    CheckpointOptions options;
    options.directory = dir_.file("checkpoint");
    options.training_state = R"({"mine": [1, 2]})";
    options.max_shard_bytes = 4000;
    options.resolved_config = "seed: 7\n";
    folder_ = write_checkpoint(*trainer_.model, trainer_.config.model_config, 1, options,
                               trainer_.optimizer.get());
  }
  std::string relative(const std::string& name) const { return "checkpoint/step_00000001/" + name; }
  void expect_fault(const std::string& name, const std::string& what) {
    const std::string fault = fault_of_checkpoint(folder_, true);
    EXPECT_NE(fault.find(name), std::string::npos) << fault;
    EXPECT_NE(fault.find(what), std::string::npos) << fault;
  }

  TempDir dir_;
  Trainer trainer_;
  std::string folder_;
};

TEST_F(StoredState, ShardsReadAsOne) {
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/model.safetensors.index.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/model.safetensors"));
  Trainer other(Overrides{"training_config.seed=8"});
  load_weights(*other.model, other.config.model_config, folder_);
  load_optimizer_state(folder_, *other.model, *other.optimizer);
  testing::expect_states_equal(get_logical_state(*other.model), get_logical_state(*trainer_.model));
  testing::expect_states_equal(other.optimizer->state_dict(), trainer_.optimizer->state_dict());
  EXPECT_EQ(read_training_state(folder_), R"({"mine":[1,2]})");
}

// Before the first update an optimizer has no states; what needs them later has to find them.
TEST_F(StoredState, StatesMayBeAbsentWhereNoneAreNeeded) {
  const Overrides sgd = {"optimizer_config.optimizer_type=SGD"};
  Trainer plain(sgd);
  CheckpointOptions options;
  options.directory = dir_.file("plain");
  options.training_state = "{}";
  const auto save = [&](int64_t step) {
    return write_checkpoint(*plain.model, plain.config.model_config, step, options,
                            plain.optimizer.get());
  };
  const std::string before = save(0);
  plain.cell({testing::make_batch(plain.config, 2)});
  const std::string after = save(1);
  for (const std::string& folder : {before, after}) {
    EXPECT_FALSE(std::filesystem::exists(folder + "/training_state.safetensors"));
    Trainer other(sgd);
    load_optimizer_state(folder, *other.model, *other.optimizer);
    const std::string name = other.model->named_parameters().front().name;
    EXPECT_EQ(other.optimizer->steps_done(name), folder == before ? 0 : 1);
  }
  Trainer with_momentum(joined(sgd, {"optimizer_config.momentum=0.9"}));
  load_optimizer_state(before, *with_momentum.model, *with_momentum.optimizer);
  const std::string message = message_of<IoError>(
      [&] { load_optimizer_state(after, *with_momentum.model, *with_momentum.optimizer); });
  for (const char* part : {"step_00000001/training_state.safetensors: is missing", ".momentum",
                           "no_load_optim: True"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST_F(StoredState, EveryBitOfEveryFileCounts) {
  EXPECT_EQ(fault_of_checkpoint(folder_, true), "");
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (name == kManifestFile) {
      continue;
    }
    const std::string bytes = dir_.read(relative(name));
    for (const size_t at : {size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
      std::string altered = bytes;
      altered[at] = static_cast<char>(altered[at] ^ 4);
      dir_.write(relative(name), altered);
      expect_fault(name, "altered");
      EXPECT_EQ(fault_of_checkpoint(folder_, /*checksums=*/false), "");
    }
    dir_.write(relative(name), bytes.substr(0, bytes.size() - 1));
    expect_fault(name, "truncated");
    dir_.write(relative(name), bytes + "x");
    expect_fault(name, "not the file of this checkpoint");
    std::filesystem::remove(entry.path());
    expect_fault(name, "is missing");
    dir_.write(relative(name), bytes);
  }
  EXPECT_EQ(fault_of_checkpoint(folder_, true), "");
}

TEST_F(StoredState, BrokenManifests) {
  const std::string good = dir_.read(relative(kManifestFile));
  for (size_t bytes = 0; bytes + 2 < good.size(); bytes += 7) {
    dir_.write(relative(kManifestFile), good.substr(0, bytes));
    expect_fault(kManifestFile, "");
  }
  // What the manifest says of itself would be the first thing that is wrong.
  auto unsigned_manifest = nlohmann::ordered_json::parse(good);
  unsigned_manifest.erase("manifest_crc32c");
  const std::string trusted = unsigned_manifest.dump(1);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = trusted;
    text.replace(text.find(from), from.size(), to);
    dir_.write(relative(kManifestFile), text);
  };
  with("\"format_version\": 1", "\"format_version\": 9");
  expect_fault(kManifestFile, "format_version is 9");
  with("config.json", "../config.json");
  expect_fault(kManifestFile, "is not a size and a checksum");
  with("\"bytes\": ", "\"bytes\": -");
  expect_fault(kManifestFile, "is not a size and a checksum");
  with("\"step\": 1", "\"step\": 1, \"step\": 2");
  expect_fault(kManifestFile, "twice");
  std::string altered = good;
  altered.replace(altered.find("\"step\": 1"), 9, "\"step\": 2");
  dir_.write(relative(kManifestFile), altered);
  expect_fault(kManifestFile, "it has been altered");
}

TEST_F(StoredState, OfAnotherOptimizerOrModel) {
  Trainer sgd(Overrides{"optimizer_config.optimizer_type=SGD"});
  EXPECT_ERROR(load_optimizer_state(folder_, *sgd.model, *sgd.optimizer), ValueError,
               "the state is that of \"AdamW\", the run has SGD");
  Trainer deep(Overrides{"model_config.num_layers=3"});
  EXPECT_ERROR(load_optimizer_state(folder_, *deep.model, *deep.optimizer), ValueError,
               "layers.2.attention.wq.weight");
  Trainer shallow(Overrides{"model_config.num_layers=1"});
  EXPECT_ERROR(load_optimizer_state(folder_, *shallow.model, *shallow.optimizer), ValueError,
               "unexpected: layers.1.");
  Trainer wide(Overrides{"model_config.ffn_hidden_size=64"});
  EXPECT_ERROR(load_optimizer_state(folder_, *wide.model, *wide.optimizer), ValueError,
               "wrong shape: layers.0.feed_forward");
  EXPECT_EQ(wide.optimizer->state_dict().size(), 0U);
}

TEST_F(StoredState, AFailureOfOneRankIsOneOfAll) {
  const std::string model_folder = dir_.file("ranks");
  run_thread_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
    const AllConfig config = small_config(tp(2));
    initialize_ranks(config, world);
    const auto model = get_model(config);
    CheckpointOptions options;
    options.directory = model_folder;
    write_checkpoint(*model, config.model_config, 1, options);
    if (world->rank() == 1) {
      model->named_parameters().front().parameter->data<float>()[0] = std::nanf("");
    }
    EXPECT_ERROR(write_checkpoint(*model, config.model_config, 2, options), RuntimeError,
                 "tok_embeddings.weight holds values that are not finite");
  });
  EXPECT_EQ(checkpoints_in(model_folder), std::vector{model_folder + "/step_00000001"});
  EXPECT_FALSE(std::filesystem::exists(model_folder + "/.step_00000002.tmp"));
}

}  // namespace
}  // namespace tapestry
