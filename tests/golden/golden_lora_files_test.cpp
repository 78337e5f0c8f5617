// Folders of PEFT adapters against stored cases: what is read is written again bit for bit, and
// merged with its base it is what PEFT would merge.
//
// Reads the directory in TAPESTRY_GOLDEN_LORA, else the project's own small set. A case is a folder
// with base/, adapter_start/, adapter_final/ and merged/.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/io/safetensors.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/factory.h"
#include "interop/export/merge_adapter.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/peft_plan.h"
#include "parallel_core/training/step/get_model.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;

constexpr double kMergedBound = 1e-6;  // of the largest, by the README of the cases

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

std::vector<double> values_of(const SafetensorsReader& reader, const std::string& name) {
  const Tensor stored = empty(reader.entry(name).shape, reader.dtype(name));
  reader.read(name, stored.raw());
  const Tensor wide = empty(stored.shape(), kFloat64);
  copy_values(stored, wide);
  return {wide.data<double>(), wide.data<double>() + wide.numel()};
}

struct GoldenFolder {
  fs::path path;
  std::string name() const { return path.filename().string(); }
  std::string part(const char* which) const { return (path / which).string(); }
};

class GoldenLoraFiles : public ::testing::Test {
 protected:
  GoldenLoraFiles() {
    const char* given = std::getenv("TAPESTRY_GOLDEN_LORA");
    directory_ = given != nullptr ? given : "tests/data/golden_lora_files";
    for (const auto& entry : fs::directory_iterator(directory_)) {
      if (fs::is_directory(entry.path() / "base")) {
        cases_.push_back({entry.path()});
      }
    }
    std::sort(cases_.begin(), cases_.end(),
              [](const GoldenFolder& a, const GoldenFolder& b) { return a.path < b.path; });
    scratch_ = fs::temp_directory_path() / ("tapestry_golden_lora_" + std::to_string(getpid()));
    fs::remove_all(scratch_);
    fs::create_directories(scratch_);
  }
  ~GoldenLoraFiles() override { fs::remove_all(scratch_); }
  void SetUp() override { ASSERT_FALSE(cases_.empty()) << directory_ << " holds no cases"; }

  std::string directory_;
  std::vector<GoldenFolder> cases_;
  fs::path scratch_;
};

AllConfig config_of(const std::string& base) {
  return init_configs_from_dict({{"training_config", {{"training_iters", 1}}},
                                 {"model_config", {{"from_hf", base}, {"seq_length", 8}}},
                                 {"optimizer_config", {{"learning_rate", 1.0}}}});
}

TEST_F(GoldenLoraFiles, PassThroughAModelBitForBit) {
  for (const GoldenFolder& golden : cases_) {
    for (const char* which : {"adapter_start", "adapter_final"}) {
      SCOPED_TRACE(golden.name() + "/" + which);
      const std::string folder = golden.part(which);
      AllConfig config = config_of(golden.part("base"));
      configure_adapter(config, folder);
      const auto model = get_model(config);
      load_weights(*model, config.model_config, golden.part("base"));
      load_adapter(*model, config.model_config, folder);
      const PeftConfig came = read_peft_config(folder);
      CheckpointOptions options;
      options.directory = (scratch_ / golden.name() / which).string();
      options.adapter_config =
          peft_config_text(peft_config_of(config.model_config, golden.part("base"), &came));
      options.base_model = adapter_base_text({.path = golden.part("base"), .fingerprint = ""});
      const fs::path saved = save_checkpoint(*model, config.model_config, 1, options);
      EXPECT_EQ(bytes_of(saved / kAdapterWeightsFile),
                bytes_of(fs::path(folder) / kAdapterWeightsFile));
      EXPECT_EQ(bytes_of(saved / kAdapterConfigFile),
                bytes_of(fs::path(folder) / kAdapterConfigFile));
      EXPECT_FALSE(fs::exists(saved / "model.safetensors"));

      // A file that is made anew means the same adapter.
      PeftConfig made = peft_config_of(config.model_config, came.base);
      std::ofstream(saved / kAdapterConfigFile, std::ios::trunc) << peft_config_text(made);
      EXPECT_NO_THROW(check_adapter_config(config.model_config, saved.string()));
      EXPECT_EQ(read_peft_config(saved.string()).modules_to_save.empty(),
                came.modules_to_save.empty());
    }
  }
}

TEST_F(GoldenLoraFiles, MergeAsPeftDoes) {
  double worst = 0;
  for (const GoldenFolder& golden : cases_) {
    SCOPED_TRACE(golden.name());
    const fs::path output = scratch_ / "merged" / golden.name();
    const MergeSummary summary = merge_adapter({.base = golden.part("base"),
                                                .adapter = golden.part("adapter_final"),
                                                .output = output.string()});
    EXPECT_GT(summary.modules, 0);
    EXPECT_EQ(bytes_of(output / "config.json"), bytes_of(golden.path / "base/config.json"));
    const SafetensorsReader ours((output / "model.safetensors").string());
    const SafetensorsReader theirs(golden.part("merged") + "/model.safetensors");
    const SafetensorsReader base(golden.part("base") + "/model.safetensors");
    ASSERT_EQ(ours.entries().size(), theirs.entries().size());
    int64_t changed = 0;
    for (const auto& [name, entry] : theirs.entries()) {
      ASSERT_TRUE(ours.contains(name)) << name;
      ASSERT_EQ(ours.entry(name).shape, entry.shape) << name;
      const std::vector<double> found = values_of(ours, name);
      const std::vector<double> expected = values_of(theirs, name);
      double largest = 0;
      double difference = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        largest = std::max(largest, std::abs(expected[i]));
        difference = std::max(difference, std::abs(found[i] - expected[i]));
      }
      EXPECT_LE(difference, kMergedBound * largest) << name;
      worst = std::max(worst, largest > 0 ? difference / largest : 0);
      changed += found == values_of(base, name) ? 0 : 1;
    }
    EXPECT_GE(changed, summary.modules);
  }
  std::cout << cases_.size() << " cases, merged weights: worst difference " << worst
            << " of the largest, bound " << kMergedBound << "\n";
}

}  // namespace
}  // namespace tapestry
