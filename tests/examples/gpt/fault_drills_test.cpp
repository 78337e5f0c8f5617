// What happens to files, folders and disks in a month: nothing is lost, and the answer says what it
// is, which file, and what to do.
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/examples/gpt/drill_test.h"
#include "tests/says.h"

namespace tapestry::drills {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kOffered =
    "The latest one before it that is whole is ./output/checkpoint/step_00000006: to go on with "
    "it, set training_config.resume_training: step_00000006";

class FaultDrills : public DrillTest {
 protected:
  void flip_bit(const std::string& name, size_t at) const {
    std::string bytes = dir_.read(name);
    ASSERT_LT(at, bytes.size()) << name;
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    dir_.write(name, bytes);
  }
  // Going on is refused in words that hold all of these and the checkpoint before, and leaves
  // everything as it is.
  void expect_refused(const std::vector<std::string>& fragments) {
    const auto before = tree();
    EXPECT_EQ(train(kResume + set_training("training_iters", "10")), 2) << said();
    for (const std::string& fragment : fragments) {
      EXPECT_THAT(err_, Says(fragment));
    }
    EXPECT_THAT(err_, Says(kOffered));
    EXPECT_EQ(tree(), before);
  }
  // Puts the folder of the newest checkpoint back to what it was.
  void keep_newest() const {
    fs::copy(dir_.file(checkpoint(8)), dir_.file("kept"), fs::copy_options::recursive);
  }
  void restore_newest() const {
    fs::remove_all(dir_.file(checkpoint(8)));
    fs::copy(dir_.file("kept"), dir_.file(checkpoint(8)), fs::copy_options::recursive);
  }
};

TEST_F(FaultDrills, AFlippedBitInAnyFileIsFound) {
  ASSERT_EQ(train(set_training("max_shard_size", "20000")), 0) << said();
  keep_newest();
  for (const char* name :
       {"config.json", "config.yaml", "generation_config.json", "model.safetensors.index.json",
        "model-00001-of-00002.safetensors", "training_state.json",
        "training_state.safetensors.index.json", "training_state-00003-of-00003.safetensors"}) {
    const std::string file = checkpoint(8) + "/" + name;
    ASSERT_TRUE(exists(file)) << file;
    flip_bit(file, dir_.read(file).size() / 2);
    expect_refused({name, "it has been altered"});
    restore_newest();
  }
  const std::string manifest = checkpoint(8) + "/manifest.json";
  const size_t bytes = dir_.read(manifest).size();
  for (const size_t at : {size_t{3}, dir_.read(manifest).find("\"step\": ") + 8, bytes / 2}) {
    flip_bit(manifest, at);
    expect_refused({"step_00000008/manifest.json: "});
    restore_newest();
  }
  // Who starts from the weights alone hears of it, too, and so does who generates.
  flip_bit(checkpoint(8) + "/model-00001-of-00002.safetensors", 10000);
  const std::string next =
      set_training("output_dir", "next") + set_training("load_checkpoint", "output");
  EXPECT_EQ(train(next), 2) << said();
  const auto says_so = AllOf(Says("model-00001-of-00002.safetensors: ... not what"),
                             HasSubstr("whole is output/checkpoint/step_00000006"));
  EXPECT_THAT(err_, says_so);
  EXPECT_EQ(generate("--checkpoint output --prompt And --max_new_tokens 2"), 2) << said();
  EXPECT_THAT(err_, says_so);
  restore_newest();
  EXPECT_EQ(train(next), 0) << said();
  EXPECT_EQ(train(kResume + set_training("training_iters", "10")), 0) << said();
}

// What is offered is what helps, to the last bit.
TEST_F(FaultDrills, TheCheckpointBeforeGoesOnAsIfNothingHadBeen) {
  ASSERT_EQ(train(set_training("training_iters", "10") + set_training("output_dir", "whole")), 0);
  ASSERT_EQ(train(), 0) << said();
  flip_bit(checkpoint(8) + "/model.safetensors", 20000);
  expect_refused({"model.safetensors"});
  ASSERT_EQ(train(set_training("resume_training", "step_00000006") +
                  set_training("training_iters", "10")),
            0)
      << said();
  expect_same_end(10, "output", "whole");
  EXPECT_TRUE(exists("output/old/run_1/checkpoint/step_00000008/model.safetensors"));
}

TEST_F(FaultDrills, ATruncatedOrMissingManifestIsRefused) {
  ASSERT_EQ(train(), 0) << said();
  keep_newest();
  const std::string manifest = dir_.file(checkpoint(8) + "/manifest.json");
  for (const uintmax_t bytes : {uintmax_t{0}, uintmax_t{1}, fs::file_size(manifest) - 2}) {
    fs::resize_file(manifest, bytes);
    expect_refused({"step_00000008/manifest.json: ", "not valid JSON"});
    restore_newest();
  }
  fs::remove(manifest);
  expect_refused({"step_00000008/manifest.json: is missing", "crc_check: False"});
  EXPECT_EQ(
      train(kResume + set_training("training_iters", "10") + set_training("crc_check", "False")), 0)
      << said();
}

TEST_F(FaultDrills, AMissingOrForeignShardIsRefused) {
  const std::string sharded = set_training("max_shard_size", "10000");
  ASSERT_EQ(train(sharded), 0) << said();
  ASSERT_EQ(train(sharded + set_training("seed", "8") + set_training("output_dir", "other")), 0);
  keep_newest();
  const auto second = [&](const std::string& stem) {
    for (const auto& entry : fs::directory_iterator(dir_.file(checkpoint(8)))) {
      std::string name = entry.path().filename().string();
      if (name.starts_with(stem + "-00002-of-")) {
        return name;
      }
    }
    return std::string("none");
  };
  const std::string second_of_model = second("model");
  std::string first_of_model = second_of_model;
  first_of_model.replace(first_of_model.find("00002"), 5, "00001");
  const std::string second_of_state = second("training_state");
  for (const std::string& name :
       {second_of_model, second_of_state, std::string("model.safetensors.index.json"),
        std::string("training_state.safetensors.index.json"), std::string("training_state.json")}) {
    ASSERT_TRUE(fs::remove(dir_.file(checkpoint(8) + "/" + name))) << name;
    expect_refused({"step_00000008/" + name + ": is missing"});
    restore_newest();
  }
  for (const std::string& name : {second_of_model, second_of_state}) {  // of the same sizes
    const auto overwrite = fs::copy_options::overwrite_existing;
    fs::copy_file(dir_.file(checkpoint(8, "other") + "/" + name),
                  dir_.file(checkpoint(8) + "/" + name), overwrite);
    expect_refused({"step_00000008/" + name + ": ... not what was written"});
    fs::copy_file(dir_.file(checkpoint(8) + "/" + first_of_model),
                  dir_.file(checkpoint(8) + "/" + name), overwrite);
    expect_refused({"step_00000008/" + name + ": has "});
    restore_newest();
  }
}

TEST_F(FaultDrills, AFileThatIsTheWholeModelIsMissed) {
  ASSERT_EQ(train(), 0) << said();
  fs::remove(dir_.file(checkpoint(8) + "/model.safetensors"));
  expect_refused({"step_00000008/model.safetensors: is missing"});
}

TEST_F(FaultDrills, ACheckpointOfAnotherModelIsRefused) {
  ASSERT_EQ(train(), 0) << said();
  const auto before = tree();
  const auto refused = [&](const std::string& key, const std::string& value) {
    EXPECT_EQ(train(kResume + set_training("training_iters", "10") + set(key, value)), 2) << said();
    EXPECT_THAT(err_, HasSubstr("output/checkpoint/step_00000008"));
    EXPECT_THAT(err_, Says(key));
    EXPECT_EQ(tree(), before);
  };
  refused("model_config.num_layers", "2");
  refused("model_config.hidden_size", "32");
  refused("optimizer_config.optimizer_type", "SGD");
  EXPECT_EQ(train(kResume + set_training("training_iters", "10")), 0) << said();
}

TEST_F(FaultDrills, TwoRunsOfOneFolderAreOne) {
  const pid_t first = start(
      "output", {"training_config.training_iters=2000000", "training_config.save_interval=100"});
  wait_until_said("output", "saved ");
  for (const std::string& more : {std::string(), kResume}) {
    EXPECT_EQ(train(more), 2) << said();
    EXPECT_THAT(err_, AllOf(HasSubstr("is in use by process " + std::to_string(first)),
                            HasSubstr("--replace")));
  }
  ASSERT_EQ(::kill(first, SIGTERM), 0);
  EXPECT_EQ(end_of(first), 0) << dir_.read("output.log");
  // Neither has lost anything by it: the first one goes on where it stopped.
  const auto done = static_cast<int64_t>(steps().size());
  EXPECT_EQ(train(kResume + set_training("training_iters", std::to_string(done + 2))), 0) << said();
  EXPECT_THAT(out_, Says(concat("going on after step ", done)));
  EXPECT_EQ(steps().size(), static_cast<size_t>(done + 2));
}

// Which checkpoint is the latest, and which ones go, their steps say.
TEST_F(FaultDrills, AClockThatJumpsChangesNothing) {
  const std::string two = set_training("keep_checkpoint_max", "2");
  ASSERT_EQ(train(two + set_training("training_iters", "14") + set_training("output_dir", "whole")),
            0);
  ASSERT_EQ(train(two), 0) << said();
  // The newest files are of long ago, the oldest of the future.
  const auto now = fs::file_time_type::clock::now();
  const auto set_time = [&](const std::string& folder, std::chrono::hours shift) {
    for (const auto& entry : fs::recursive_directory_iterator(dir_.file(folder))) {
      fs::last_write_time(entry.path(), now + shift);
    }
    fs::last_write_time(dir_.file(folder), now + shift);
  };
  set_time(checkpoint(6), std::chrono::hours(24 * 400));
  set_time(checkpoint(8), -std::chrono::hours(24 * 4000));
  fs::last_write_time(dir_.file("output/metrics.jsonl"), now + std::chrono::hours(24 * 400));
  ASSERT_EQ(train(kResume + two + set_training("training_iters", "14")), 0) << said();
  EXPECT_THAT(out_, HasSubstr("going on after step 8 "));
  expect_same_end(14, "output", "whole");
  EXPECT_THAT(saved(), ElementsAre(name_of_step(12), name_of_step(14)));
}

// The tokenizer is read once, at the start: its folder may go away, a checkpoint has it all the
// same.
TEST_F(FaultDrills, TheFilesBesideTheModelMayGoAwayMeanwhile) {
  fs::create_directory(dir_.file("from"));
  ASSERT_EQ(preprocess("--input text.txt --output_prefix pieces --tokenizer_type sentencepiece "
                       "--tokenizer_model from/pieces.model --train_tokenizer --vocab_size 264 "
                       "--append_eod"),
            0)
      << said();
  dir_.write("run.yaml",
             replaced(replaced(replaced(dir_.read("run.yaml"), "data_path: text_text_document",
                                        "data_path: pieces_text_document\n"
                                        "  tokenizer_model: from/pieces.model"),
                               "tokenizer_type: byte", "tokenizer_type: sentencepiece"),
                      "vocab_size: 260", "vocab_size: 264"));
  const std::string tokenizer = dir_.read("from/pieces.model");
  ASSERT_FALSE(tokenizer.empty());
  const pid_t child = start(
      "output", {"training_config.training_iters=2000000", "training_config.log_interval=1000000"});
  wait_until_said("output", "saved ");
  fs::rename(dir_.file("from"), dir_.file("gone"));
  const std::string before = saved().back();
  wait_until("two more checkpoints", [&] {
    const std::vector<std::string> names = saved();
    return std::count_if(names.begin(), names.end(),
                         [&](const std::string& name) { return name > before; }) >= 2;
  });
  ASSERT_EQ(::kill(child, SIGTERM), 0);
  EXPECT_EQ(end_of(child), 0) << dir_.read("output.log");
  EXPECT_THAT(dir_.read("output.log"), Not(HasSubstr("COULD NOT BE SAVED")));
  EXPECT_TRUE(dir_.read("output/checkpoint/" + saved().back() + "/tokenizer.model") == tokenizer);
  ASSERT_EQ(generate("--checkpoint output --prompt And --max_new_tokens 2"), 0) << said();
}

// Found before anything is trained, and said of the file.
TEST_F(FaultDrills, AFileBesideTheModelThatIsNoneEndsTheStart) {
  ASSERT_EQ(train(set_training("training_iters", "2")), 0) << said();
  fs::remove_all(dir_.file("from"));
  fs::rename(dir_.file(checkpoint(2)), dir_.file("from"));
  fs::remove(dir_.file("from/generation_config.json"));
  ASSERT_EQ(::mkfifo(dir_.file("from/generation_config.json").c_str(), 0600), 0);
  const std::string new_run = set_training("load_checkpoint", "from") +
                              set_training("crc_check", "False") +
                              set_training("output_dir", "fresh");
  EXPECT_EQ(train(new_run), 2) << said();
  EXPECT_THAT(err_, HasSubstr("from/generation_config.json: "));
  EXPECT_FALSE(exists("fresh/config.yaml"));
  // The configuration itself.
  ASSERT_EQ(::mkfifo(dir_.file("pipe.yaml").c_str(), 0600), 0);
  EXPECT_EQ(pretrain("--config_path pipe.yaml"), 2) << said();
  EXPECT_THAT(err_, Says("pipe.yaml: ... give the path of a ... YAML"));
  dir_.write("giant.yaml", "a");
  fs::resize_file(dir_.file("giant.yaml"), uint64_t{1} << 40U);
  EXPECT_EQ(pretrain("--config_path giant.yaml"), 2) << said();
  EXPECT_THAT(err_, Says("giant.yaml: ... 1099511627776 ... bytes, expected at most ... 16777216"));
}

TEST_F(FaultDrills, ALimitOfFileSizesLeavesTheLastCheckpoint) {
  ASSERT_EQ(train(set_training("training_iters", "12") + set_training("output_dir", "whole")), 0);
  ASSERT_EQ(train(), 0) << said();
  // In blocks of 512 bytes for sh: the metrics fit, the weights do not.
  const auto bytes = fs::file_size(dir_.file(checkpoint(8) + "/model.safetensors"));
  const std::string going_on =
      " --config_path run.yaml" + kResume + set_training("training_iters", "12");
  EXPECT_EQ(
      run("ulimit -f " + std::to_string(bytes / 512 - 4) + "; " TAPESTRY_PRETRAIN_GPT, going_on), 1)
      << said();
  EXPECT_THAT(err_, AllOf(HasSubstr("THE CHECKPOINT OF STEP 10 COULD NOT BE SAVED"),
                          HasSubstr("File too large"), HasSubstr("Training goes on"),
                          HasSubstr("the last one is ./output/checkpoint/step_00000008")));
  EXPECT_EQ(steps().size(), 12U);
  EXPECT_EQ(saved().back(), name_of_step(8));
  ASSERT_EQ(pretrain(going_on), 0) << said();
  expect_same_end(12, "output", "whole");
}

// A disk of its own, where a user may have one.
TEST_F(FaultDrills, AFullDiskLeavesTheLastCheckpoint) {
  if (run("unshare", "-rm sh -c 'mkdir -p disk && mount -t tmpfs -o size=64k none disk'") != 0) {
    GTEST_SKIP() << "no mounts for this user: " << err_;
  }
  ASSERT_EQ(train(set_training("output_dir", "whole")), 0) << said();
  // Room for two checkpoints of about 100 KiB; the second one is there when the third begins.
  const std::string command =
      "unshare -rm sh -c 'mkdir -p output/checkpoint && "
      "mount -t tmpfs -o size=260k none output/checkpoint && " TAPESTRY_PRETRAIN_GPT
      " --config_path run.yaml; code=$?; cp -r output/checkpoint kept; exit $code'";
  EXPECT_EQ(run(command, ""), 1) << said();
  EXPECT_THAT(err_, AllOf(HasSubstr("THE CHECKPOINT OF STEP 6 COULD NOT BE SAVED"),
                          AnyOf(HasSubstr("there is no room for"), HasSubstr("No space left")),
                          HasSubstr("the last one is ./output/checkpoint/step_00000004"),
                          HasSubstr(" are free")));
  EXPECT_EQ(steps().size(), 8U);
  // On a disk with room the run goes on from there.
  fs::remove_all(dir_.file("output/checkpoint"));
  fs::rename(dir_.file("kept"), dir_.file("output/checkpoint"));
  EXPECT_THAT(saved(), ElementsAre(name_of_step(2), name_of_step(4)));
  ASSERT_EQ(train(kResume), 0) << said();
  expect_same_end(8, "output", "whole");
}

TEST_F(FaultDrills, AFolderThatMayNotBeWrittenIsNamed) {
  ASSERT_EQ(train(set_training("training_iters", "12") + set_training("output_dir", "whole")), 0);
  ASSERT_EQ(train(), 0) << said();
  const std::string going_on =
      " --config_path run.yaml" + kResume + set_training("training_iters", "12");
  const bool root = ::geteuid() == 0;  // may write whatever a folder's permissions say
  if (root) {
    if (run("unshare", "-m mount --bind output output") != 0) {
      GTEST_SKIP() << "no mounts for this user: " << err_;
    }
    EXPECT_EQ(run("unshare -m sh -c 'mount --bind output/checkpoint output/checkpoint && mount -o "
                  "remount,ro,bind output/checkpoint && exec " TAPESTRY_PRETRAIN_GPT +
                      going_on + "'",
                  ""),
              1)
        << said();
  } else {
    fs::permissions(dir_.file("output/checkpoint"), fs::perms::owner_write,
                    fs::perm_options::remove);
    EXPECT_EQ(pretrain(going_on), 1) << said();
    fs::permissions(dir_.file("output/checkpoint"), fs::perms::owner_write, fs::perm_options::add);
  }
  EXPECT_THAT(err_, AllOf(HasSubstr("THE CHECKPOINT OF STEP 10 COULD NOT BE SAVED"),
                          HasSubstr("output/checkpoint/.step_00000010.tmp: cannot be made"),
                          AnyOf(HasSubstr("Read-only file system"), HasSubstr("Permission denied")),
                          HasSubstr("the last one is ./output/checkpoint/step_00000008")));
  EXPECT_EQ(steps().size(), 12U);
  EXPECT_EQ(saved().back(), name_of_step(8));
  ASSERT_EQ(pretrain(going_on), 0) << said();
  expect_same_end(12, "output", "whole");
}

// A disk that is full for a while: training goes on, and saves as soon as it can.
class FaultThatPasses : public FaultDrills, public ::testing::WithParamInterface<bool> {};

TEST_P(FaultThatPasses, TrainingGoesOnAndTheRetrySucceeds) {
  // Weights of 300 kB, and steps that take long enough for what is logged to stay below the limit.
  std::string text = replaced(dir_.read("run.yaml"), "hidden_size: 16", "hidden_size: 128");
  text = replaced(text, "batch_size: 2", "batch_size: 64");
  dir_.write("run.yaml", replaced(text, "ffn_hidden_size: 32", "ffn_hidden_size: 128"));
  const pid_t child = start(
      "output", {"training_config.training_iters=20000", "training_config.log_interval=1000000",
                 concat("training_config.async_save=", GetParam() ? "True" : "False")});
  wait_until_said("output", "saved ");
  rlimit limit{};
  ASSERT_EQ(::prlimit(child, RLIMIT_FSIZE, nullptr, &limit), 0);
  const rlimit small{.rlim_cur = 200000, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::prlimit(child, RLIMIT_FSIZE, &small, nullptr), 0);
  wait_until_said("output", "COULD NOT BE SAVED");
  ASSERT_EQ(::prlimit(child, RLIMIT_FSIZE, &limit, nullptr), 0);
  wait_until_said("output", "saving works again");
  ASSERT_EQ(::kill(child, SIGTERM), 0);
  EXPECT_EQ(end_of(child), 0) << dir_.read("output.log");
  const std::string log = dir_.read("output.log");
  EXPECT_THAT(log, AllOf(HasSubstr("File too large"), HasSubstr("the last one is output/"),
                         Says("attempt is after step")));
  // The last checkpoint is that of the last step, it is good, and no step is missing.
  const std::vector<nlohmann::json> lines = steps();
  const auto last = static_cast<int64_t>(lines.size());
  EXPECT_EQ(lines.back().at("step"), last);
  EXPECT_EQ(saved().back(), name_of_step(last));
  EXPECT_FALSE(saved().front().starts_with("."));
  ASSERT_EQ(train(kResume + set_training("training_iters", std::to_string(last + 1))), 0) << said();
  EXPECT_THAT(out_, Says(concat("going on after step ", last)));
}

INSTANTIATE_TEST_SUITE_P(Saves, FaultThatPasses, ::testing::Bool(), [](const auto& info) {
  return info.param ? "async" : "sync";
});

}  // namespace
}  // namespace tapestry::drills
