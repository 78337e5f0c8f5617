// Runs that train adapters beside the folder of a Hugging Face model.
#pragma once

#include <filesystem>
#include <string>

#include "autograd/io/tensor_io.h"
#include "tests/examples/gpt/hf_folders.h"

namespace tapestry::hf_test {

/// Six steps with checkpoints after three and six.
inline constexpr const char* kAdapterRun =
    "training_config:\n"
    "  training_iters: 6\n"
    "  save_interval: 3\n"
    "  seed: 7\n"
    "  num_threads: 1\n"
    "dataset_config:\n"
    "  data_path: text_text_document\n"
    "  tokenizer_type: byte\n"
    "  batch_size: 2\n"
    "  micro_batch_num: 2\n"
    "  split: 90,10,0\n"
    "model_config:\n"
    "  seq_length: 16\n"
    "optimizer_config:\n"
    "  learning_rate: 1e-2\n"
    "lora_config:\n"
    "  use_lora: True\n"
    "  lora_rank: 3\n"
    "  lora_alpha: 6\n"
    "  lora_dropout: 0.1\n";

class AdapterRunTest : public HfTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(HfTest::SetUp());
    dir_.write("run.yaml", kAdapterRun);
  }

  static std::string to(const std::string& output) {
    return " --set training_config.output_dir=" + output + " ";
  }
  static std::string step(const std::string& output, int step) {
    return output + "/checkpoint/step_0000000" + std::to_string(step);
  }
  void copy(const std::string& from, const std::string& into) const {
    std::filesystem::remove_all(dir_.file(into));
    std::filesystem::copy(dir_.file(from), dir_.file(into),
                          std::filesystem::copy_options::recursive);
  }
  testing::State load_adapter_tensors(const std::string& folder) const {
    return load_safetensors(dir_.file(folder + "/adapter_model.safetensors"));
  }
  /// What a checkpoint holds of tensors, and what it says of the adapter.
  void expect_same_checkpoint(const std::string& found, const std::string& expected) const {
    for (const char* file :
         {"adapter_model.safetensors", "training_state.safetensors", "adapter_config.json"}) {
      EXPECT_TRUE(dir_.read(found + "/" + file) == dir_.read(expected + "/" + file))
          << found << "/" << file;
    }
  }
};

}  // namespace tapestry::hf_test
