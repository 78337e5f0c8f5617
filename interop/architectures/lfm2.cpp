// LFM2, LFM2.5. Sources: Lfm2Config and its model in transformers.
#include <algorithm>

#include "interop/architectures/common_tables.h"
#include "interop/architectures/lfm2_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture lfm2();

namespace {

// The width of the MLP, which older files mean to be adjusted: two thirds of it, times a factor,
// rounded up.
class AdjustedWidth final : public Rule {
 public:
  void read(hf::Fields& file) const override {
    const char* const older = "block_ff_dim";
    const bool has_older = file.find("intermediate_size") == nullptr && file.find(older) != nullptr;
    const char* const name = has_older ? older : "intermediate_size";
    const hf::Found<int64_t> width = file.size(name, 12288);
    if (!file.boolean("block_auto_adjust_ff_dim", true).value) {
      file.set("ffn_hidden_size", width, name);
      return;
    }
    const double factor = file.number("block_ffn_dim_multiplier", 1.0).value;
    const int64_t multiple = file.size("block_multiple_of", 256).value;
    const auto scaled = static_cast<int64_t>(factor * static_cast<double>(2 * width.value / 3));
    const int64_t adjusted = (scaled + multiple - 1) / multiple * multiple;
    file.set_value("ffn_hidden_size", Value(std::max<int64_t>(adjusted, 1)), name, width.text,
                   width.written);
  }
  void write(const AllConfig& config, hf::Json& json) const override {
    json["intermediate_size"] = config.model_config.ffn_hidden_size;
    json["block_auto_adjust_ff_dim"] = false;
  }
  std::vector<std::string> keys() const override { return {"ffn_hidden_size"}; }
  RuleText text() const override {
    return {.read =
                "`intermediate_size` or `block_ff_dim`, `block_auto_adjust_ff_dim`, "
                "`block_ffn_dim_multiplier`, `block_multiple_of`"};
  }
};

}  // namespace

Architecture lfm2() {
  static const TensorNames kNames = lfm2_names(false);
  return {
      .model_type = "lfm2",
      .title = "LFM2, LFM2.5",
      .classes = {"Lfm2ForCausalLM", "Lfm2Model"},
      .token_ids = {.bos = 1, .eos = {2}, .pad = 0},
      .tied = true,
      .rules = joined(lfm2_rules(65536, 2560, 32),
                      mixer_layers({.kind = "conv",
                                    .words = {"conv"},
                                    .attention_list = "full_attn_idxs",
                                    .attends_by_default = true}),
                      std::make_shared<AdjustedWidth>(), dense()),
      .names = &kNames,
      .no_gguf = "llama.cpp's form of these layers is not written yet",
  };
}

}  // namespace tapestry::architectures
