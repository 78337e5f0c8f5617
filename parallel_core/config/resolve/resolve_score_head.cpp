// When a model ends in a score head.
#include "autograd/tensor/error.h"
#include "parallel_core/config/lora_keys.h"
#include "parallel_core/config/resolve/resolve.h"

namespace tapestry::config {

namespace {

constexpr const char* kScoreHead = "model_config.score_head";

// A new head beside adapters would stay what it is: PEFT trains it whole.
void save_score_head(Resolution& r) {
  constexpr const char* kSave = "lora_config.modules_to_save";
  LoraConfig& lora = r.config().lora_config;
  if (!lora.use_lora || !r.sound({"lora_config.use_lora", kSave})) {
    return;
  }
  try {
    for (const std::string& text : lora.modules_to_save) {
      if (NamePattern(text, kSave).matches_end("score")) {
        return;
      }
    }
    lora.modules_to_save.emplace_back("score");
    r.derived(kSave, kScoreHead);
  } catch (const ValueError& error) {
    r.error(kSave, error.what());
  }
}

}  // namespace

void resolve_score_head(Resolution& r) {
  constexpr const char* kTask = "post_training_config.task";
  AllConfig& config = r.config();
  if (!r.sound({kTask, kScoreHead})) {
    return;
  }
  bool& score_head = config.model_config.score_head;
  const std::string task = config.post_training_config.task.value_or("");
  if (task == "reward" && !score_head) {
    score_head = true;
    r.derived(kScoreHead, kTask);
  }
  if (!score_head) {
    return;
  }
  if (!task.empty() && task != "reward") {
    r.error(kScoreHead, concat("is True: a reward model, which predicts no tokens, and task ", task,
                               " needs a model that does; start from a language model"));
    return;
  }
  if (config.moe_config.upcycle_from && r.sound({"moe_config.upcycle_from"})) {
    r.error("moe_config.upcycle_from",
            "makes a mixture of a dense language model, which has no score head; make the mixture "
            "first, and a reward model of that");
  }
  save_score_head(r);
}

}  // namespace tapestry::config
