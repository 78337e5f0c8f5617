// Keys of examples for fine-tuning, and what they say of others.
#include "parallel_core/config/resolve/resolve.h"

namespace tapestry::config {
namespace {

// Keys that only examples give a meaning.
constexpr const char* kExampleKeys[] = {"sft_valid_data_path", "sft_packing", "sft_long_examples",
                                        "sft_loss"};
// These write the examples of a task as well.
constexpr const char* kChatKeys[] = {"chat_template", "chat_date"};

// The mean over a micro-batch weighs a token the more, the fewer answers its micro-batch has.
void resolve_mean_over_tokens(Resolution& r) {
  constexpr const char* kPerToken = "training_config.calculate_per_token_loss";
  auto& training = r.config().training_config;
  if (r.given(kPerToken)) {
    if (!training.calculate_per_token_loss) {
      r.note(kPerToken,
             "is False, so that answers of a micro-batch with few of them weigh more than others; "
             "without the key, examples give the mean over all learned tokens of a step");
    }
    return;
  }
  training.calculate_per_token_loss = true;
  r.derived(kPerToken, "dataset_config.sft_data_path");
}

}  // namespace

void resolve_examples(Resolution& r) {
  const DatasetConfig& data = r.config().dataset_config;
  if (!data.sft_data_path) {
    for (const char* key : kExampleKeys) {
      if (differs_from_default(r.config(), "dataset_config", key)) {
        r.error(concat("dataset_config.", key), "has no effect without sft_data_path beside it");
      }
    }
    for (const char* key : kChatKeys) {
      if (differs_from_default(r.config(), "dataset_config", key) &&
          !r.config().post_training_config.task) {
        r.error(concat("dataset_config.", key),
                "has no effect without sft_data_path or post_training_config.data beside it");
      }
    }
    return;
  }
  resolve_mean_over_tokens(r);
  for (const char* key : {"reset_attention_mask", "reset_position_ids", "eod_mask_loss"}) {
    if (differs_from_default(r.config(), "dataset_config", key)) {
      r.error(concat("dataset_config.", key),
              "has no effect on sft_data_path: its examples never see each other, their positions "
              "count from 0, and what is learned says sft_loss; leave the key out");
    }
  }
  if (data.sft_valid_data_path && differs_from_default(r.config(), "dataset_config", "split")) {
    r.error("dataset_config.split",
            "divides sft_data_path, but there is sft_valid_data_path to evaluate on; leave one of "
            "them out");
  }
}

}  // namespace tapestry::config
