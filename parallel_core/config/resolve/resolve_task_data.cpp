// What the data of a task mean together with other keys.
#include <string>

#include "autograd/tensor/error.h"
#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config {

namespace {

constexpr const char* kTaskData = "post_training_config.data";
constexpr const char* kMaxLength = "post_training_config.max_length";
constexpr const char* kReference = "post_training_config.reference";

// Keys that name other data, or say what becomes of them.
void refuse_other_data(Resolution& r, const std::string& task) {
  const DatasetConfig& d = r.config().dataset_config;
  for (const auto& [key, is_given] : {std::pair{"data_path", d.data_path.has_value()},
                                      std::pair{"train_data_path", d.train_data_path.has_value()},
                                      std::pair{"text", d.text.has_value()},
                                      std::pair{"sft_data_path", d.sft_data_path.has_value()},
                                      std::pair{"step_data_dir", d.step_data_dir.has_value()},
                                      std::pair{"data_source", d.data_source.has_value()}}) {
    if (is_given) {
      r.error(concat("dataset_config.", key),
              concat("names data of another kind: task ", task,
                     " reads the examples of post_training_config.data; leave the key out"));
    }
  }
  for (const char* key : {"split", "eod_mask_loss", "reset_attention_mask", "reset_position_ids"}) {
    if (differs_from_default(r.config(), "dataset_config", key)) {
      r.error(concat("dataset_config.", key),
              concat("has no effect on the examples of task ", task,
                     ", which never see each other, and are evaluated on "
                     "post_training_config.validation_data; leave the key out"));
    }
  }
  if (r.config().training_config.rampup_batch_size) {
    r.error("training_config.rampup_batch_size",
            concat("does not go with task ", task,
                   ", whose loss is made of all examples of a step; give "
                   "dataset_config.micro_batch_num the batch that is meant"));
  }
}

void require_data(Resolution& r, const std::string& task) {
  const PostTrainingConfig& p = r.config().post_training_config;
  const bool has_others = p.rollouts.has_value() || p.teacher_log_probs.has_value();
  if (!r.sound({kTaskData})) {
    return;
  }
  if (!p.data && !has_others) {
    r.error(kTaskData, concat("is not given; name the files of examples for task ", task));
  } else if (p.data && p.data->empty()) {
    r.error(kTaskData, "is empty; name files, or leave the key out");
  }
  constexpr const char* kValidation = "post_training_config.validation_data";
  if (p.validation_data && p.validation_data->empty()) {
    r.error(kValidation, "is empty; name files, or leave the key out");
  }
  const bool evaluates = r.config().training_config.eval_interval.has_value();
  if (evaluates && !p.validation_data && p.data) {
    r.error("training_config.eval_interval",
            concat("is set, but there is no ", kValidation,
                   " to evaluate on; name its files, or set eval_interval to null"));
  } else if (!evaluates && p.validation_data) {
    r.note(kValidation, "is not read: training_config.eval_interval is null");
  }
}

// TRL's default fits no smaller row; a length that somebody wants is not made smaller.
void resolve_max_length(Resolution& r, const std::string& task) {
  PostTrainingConfig& p = r.config().post_training_config;
  const int64_t row = r.config().model_config.seq_length;
  if (!r.sound({kMaxLength, "model_config.seq_length"})) {
    return;
  }
  if (task == "grpo") {
    r.idle(kMaxLength, "with task grpo: see max_completion_length");
    return;
  }
  if (!p.max_length || (*p.max_length > row && !r.given(kMaxLength))) {
    p.max_length = row;
    r.derived(kMaxLength, "model_config.seq_length");
  } else if (*p.max_length > row) {
    r.error(kMaxLength, concat("is ", *p.max_length, ", but a row has room for ", row,
                               " tokens; raise model_config.seq_length, lower max_length, or leave "
                               "it out"));
  }
}

void resolve_truncation(Resolution& r, const std::string& task) {
  const PostTrainingConfig& p = r.config().post_training_config;
  if (p.truncation_mode == "keep_end" && task != "dpo" && task != "distil") {
    const bool drops = task == "reward";
    r.error("post_training_config.truncation_mode",
            concat("is keep_end, but task ", task,
                   drops ? " leaves longer pairs out whole" : " loses the end of longer examples",
                   ", as TRL's trainer does; leave the key out"));
  }
}

void resolve_reference(Resolution& r, const std::string& task) {
  const AllConfig& config = r.config();
  if (!r.sound({kReference}) || config.post_training_config.reference != "adapter_off") {
    return;
  }
  const LoraConfig& lora = config.lora_config;
  if (!lora.use_lora) {
    r.error(kReference,
            "is adapter_off, but the run has no adapter; name a folder, leave the key out for the "
            "model as it was at the start, or set lora_config.use_lora: True");
  } else if (task != "grpo" && (!lora.modules_to_save.empty() || lora.bias != "none")) {
    r.error(kReference, concat("is adapter_off, but lora_config.",
                               lora.modules_to_save.empty() ? "bias" : "modules_to_save",
                               " trains weights of the model itself; name the folder of the base"));
  }
}

}  // namespace

void resolve_task_data(Resolution& r) {
  const std::string& task = *r.config().post_training_config.task;
  refuse_other_data(r, task);
  require_data(r, task);
  resolve_max_length(r, task);
  resolve_truncation(r, task);
  resolve_reference(r, task);
}

}  // namespace tapestry::config
