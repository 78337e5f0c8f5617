// Each family: the folder of a model out as GGUF, and the file in again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "interop/architectures/registry.h"
#include "interop/export/gguf_export.h"
#include "interop/export/hf_export.h"
#include "interop/gguf/gguf_weights.h"
#include "tests/interop/gguf/family_model.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

std::vector<std::string> families_with_gguf() {
  std::vector<std::string> names;
  for (const auto& [name, folder] : testing::family_configs().items()) {
    const std::string type = folder.at("config").at("model_type");
    // What a file cannot say: a base that grows with the text, windows of some layers.
    const bool has_form = architectures::find(type)->gguf.has_value();
    if (has_form && name != "llama_dynamic" && name != "qwen3_window") {
      names.push_back(name);
    }
  }
  return names;
}

// What config.json says of the model, but for what only training knows: lines.
std::set<std::string> said_by(const std::string& path) {
  static const std::set<std::string> kOfTraining = {
      "init_method_std", "attention_dropout", "hidden_dropout", "moe_aux_loss_coeff",
      "moe_router_load_balancing_type", "aux_loss_types", "aux_loss_factors",
      // Two ways to say the factor of cosines and sines, which the logits tell.
      "rotary_config.mscale", "rotary_config.mscale_all_dim", "rotary_config.attention_factor"};
  std::set<std::string> out;
  for (const HfSetting& setting : read_hf_config(path).settings) {
    if (!kOfTraining.contains(setting.key)) {
      out.insert(concat(setting.key, ": ", config::to_yaml(setting.value)));
    }
  }
  return out;
}

class GgufFamily : public ::testing::TestWithParam<std::string> {};

TEST_P(GgufFamily, IsReadAsItWasWritten) {
  const data::TempDir dir;
  const std::string folder = dir.file("hf");
  testing::make_folder_for_gguf(testing::config_for_gguf(GetParam()), folder);
  const std::string file = dir.file("model.gguf");
  export_gguf(open_export_source(folder), file, {});
  std::set<std::string> said = said_by(folder);
  if (said.erase("hf_model_type: mistral") > 0) {  // of which a file without windows says nothing
    said.insert("hf_model_type: llama");
  }
  const std::set<std::string> found_said = said_by(file);
  std::vector<std::string> other;
  std::set_symmetric_difference(said.begin(), said.end(), found_said.begin(), found_said.end(),
                                std::back_inserter(other));
  EXPECT_THAT(other, ::testing::IsEmpty());
  // In float32 a gain of about 1 is rounded when its 1 is added; everything else is the same.
  const std::vector<float> wanted = testing::logits_of(folder);
  const std::vector<float> found = testing::logits_of(file);
  ASSERT_EQ(found.size(), wanted.size());
  double largest = 0;
  double worst = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
    worst = std::max(worst, std::abs(static_cast<double>(found[i]) - wanted[i]));
  }
  EXPECT_LE(worst, 1e-5 * std::max(1.0, largest));
  EXPECT_GT(largest, 0.1);
  // Out again, and in again as a folder.
  const std::string again = dir.file("again.gguf");
  export_gguf(open_export_source(file), again, {.type = GgufType::kF32, .name = "hf"});
  EXPECT_EQ(dir.read("again.gguf").substr(64), dir.read("model.gguf").substr(64));
  export_hf(open_export_source(file), dir.file("out"), {});
  EXPECT_EQ(testing::logits_of(dir.file("out")), found);
}

INSTANTIATE_TEST_SUITE_P(Families,
                         GgufFamily,
                         ::testing::ValuesIn(families_with_gguf()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tapestry
