// Keys of losses of preferences: what cannot stand together, what has no effect, what follows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/config/init_configs.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry::post_training {
namespace preferences_config_test {
namespace {

using ::testing::Contains;
using ::testing::Not;

using Settings = std::vector<std::string>;

AllConfig load(const std::string& task, const Settings& keys, const Settings& others = {}) {
  Settings settings = others;
  settings.push_back("post_training_config.task=" + task);
  settings.emplace_back("post_training_config.data=[pairs.jsonl]");
  for (const std::string& key : keys) {
    settings.push_back("post_training_config." + key);
  }
  return init_configs_from_text(
      "training_config: {training_iters: 4}\nmodel_config:\n"
      "  vocab_size: 32\n  num_layers: 2\n  num_attention_heads: 4\n  hidden_size: 16\n"
      "  ffn_hidden_size: 24\n  seq_length: 8\n",
      "f.yaml", {.overrides = settings});
}

std::string refusal(const std::string& task, const Settings& keys) {
  return message_of<ValueError>([&] { load(task, keys); });
}

TEST(PreferencesConfig, DefaultsAreThoseOfTheTask) {
  const PostTrainingConfig dpo = load("dpo", {}).post_training_config;
  EXPECT_EQ(dpo.loss_type, Settings{"sigmoid"});
  EXPECT_EQ(dpo.beta, 0.1);
  EXPECT_EQ(load("kto", {}).post_training_config.loss_type, Settings{"kto"});
  EXPECT_EQ(load("cpo", {"loss_type=simpo"}).post_training_config.loss_type, Settings{"simpo"});
}

TEST(PreferencesConfig, RefuseWhatALossCannotHave) {
  EXPECT_THAT(refusal("dpo", {"loss_type=[robust]", "label_smoothing=0.5"}),
              Says("label_smoothing ... 0.5 ... robust ... less than 0.5"));
  EXPECT_THAT(refusal("dpo", {"loss_type=[sigmoid, exo_pair]"}),
              Says("label_smoothing ... is 0 ... exo_pair"));
  EXPECT_THAT(refusal("dpo", {"loss_type=ipo", "beta=0"}), Says("beta ... is 0 ... ipo"));
  EXPECT_THAT(refusal("cpo", {"loss_type=simpo", "beta=0"}), Says("beta ... is 0 ... simpo"));
  EXPECT_THAT(refusal("dpo", {"loss_type=[sigmoid, aot]", "use_weighting=True"}),
              Says("use_weighting ... aot"));
  EXPECT_THAT(refusal("dpo", {"loss_type=kto"}), Says("'kto' is no loss of dpo"));
}

TEST(PreferencesConfig, NoteWhatHasNoEffect) {
  EXPECT_THAT(load("dpo", {"label_smoothing=0.1"}).notes,
              Contains(Says("label_smoothing ... no effect with loss_type sigmoid")));
  EXPECT_THAT(load("dpo", {"f_alpha_divergence_coef=0.7"}).notes,
              Contains(Says("f_alpha_divergence_coef ... reverse_kl")));
  EXPECT_THAT(load("cpo", {"simpo_gamma=0.7"}).notes,
              Contains(Says("simpo_gamma ... no effect with loss_type sigmoid")));
  EXPECT_THAT(load("dpo", {"loss_type=aot", "label_smoothing=0.1"}).notes,
              Not(Contains(Says("label_smoothing"))));
}

TEST(PreferencesConfig, DropoutIsOffUnlessItIsAskedFor) {
  const Settings dropout = {"model_config.hidden_dropout=0.1",
                            "model_config.attention_dropout=0.2"};
  const AllConfig off = load("dpo", {}, dropout);
  EXPECT_EQ(off.model_config.hidden_dropout, 0);
  EXPECT_EQ(off.model_config.attention_dropout, 0);
  EXPECT_THAT(off.notes, Contains(Says("hidden_dropout ... 0.1 ... disable_dropout")));
  const AllConfig on = load("dpo", {"disable_dropout=False"}, dropout);
  EXPECT_EQ(on.model_config.hidden_dropout, 0.1);
  EXPECT_EQ(on.model_config.attention_dropout, 0.2);
  EXPECT_EQ(load("grpo", {"max_completion_length=4"}, dropout).model_config.hidden_dropout, 0.1);
}

}  // namespace
}  // namespace preferences_config_test
}  // namespace tapestry::post_training
