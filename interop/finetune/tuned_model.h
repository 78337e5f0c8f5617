// The model that a run has tuned, as others get it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interop/finetune/finetune.h"
#include "parallel_core/config/config.h"
#include "parallel_core/data/token_dataset.h"

namespace tapestry {

class TunedModel {
 public:
  /// Of the newest checkpoint in the configuration's output folder; loads nothing yet.
  /// `chat_template`: what wrote the conversations among the examples, if there were any; exported
  /// folders that say otherwise get it.
  explicit TunedModel(const AllConfig& config, std::string chat_template = "");

  /// What it answers to prompts of the data set (validation_prompts), greedily. One rank does it,
  /// whatever the layout of the run, with the whole model in memory.
  std::vector<FinetuneAnswer> answers(const data::TokenDataset& examples,
                                      int64_t count,
                                      int64_t max_tokens) const;

  /// Writes OUTPUT/hf, OUTPUT/model.gguf or OUTPUT/adapter and returns the path. Errors as
  /// those of the exporters; ValueError for an adapter where there is none.
  std::string export_to(FinetuneExport what, const std::string& gguf_type) const;

 private:
  void add_chat_template(const std::string& folder) const;

  AllConfig config_;
  std::string checkpoint_;
  std::string chat_template_;
};

/// Where an export goes.
std::string export_path(const std::string& output_dir, FinetuneExport what);

/// For people: prompt, expected answer, answer.
std::string answer_text(const FinetuneAnswer& answer);

}  // namespace tapestry
