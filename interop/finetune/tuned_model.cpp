#include "interop/finetune/tuned_model.h"

#include <filesystem>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "interop/architectures/read_hf_config.h"
#include "interop/export/gguf_export.h"
#include "interop/export/hf_export.h"
#include "interop/export/merge_adapter.h"
#include "interop/finetune/validation_prompts.h"
#include "parallel_core/inference/generation.h"
#include "parallel_core/inference/open_model.h"
#include "parallel_core/training/checkpoints/resume.h"
#include "parallel_core/training/data/sft_run_data.h"
#include "parallel_core/training/log/terminal.h"
#include "text/chat/chat_format.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

DType stored_dtype(const AllConfig& config) {
  const auto& folder = config.model_config.from_hf;
  return folder ? read_hf_config(*folder).dtype.value_or(kFloat32) : kFloat32;
}

// What of a checkpoint PEFT reads.
void copy_adapter(const std::string& checkpoint, const std::string& path) {
  fs::create_directories(path);
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::copy_file(checkpoint + "/" + name, path + "/" + name);
  }
}

}  // namespace

TunedModel::TunedModel(const AllConfig& config, std::string chat_template)
    : config_(config),
      checkpoint_(resolve_checkpoint(config.training_config.output_dir)),
      chat_template_(std::move(chat_template)) {}

void TunedModel::add_chat_template(const std::string& folder) const {
  if (chat_template_.empty()) {
    return;
  }
  const auto format = chat::read_chat_format(folder);
  if (!format || format->chat_template->source() != chat_template_) {
    write_file_atomically(folder + "/chat_template.jinja", chat_template_);
  }
}

std::vector<FinetuneAnswer> TunedModel::answers(const data::TokenDataset& examples,
                                                int64_t count,
                                                int64_t max_tokens) const {
  RankContext alone(0, 1);  // the run's groups of ranks are not this model's
  const RankContextGuard guard(alone);
  const OpenModel opened = open_model({.checkpoint = checkpoint_});
  const auto format = chat_format_of_examples(config_, *opened.saved.tokenizer);
  const std::vector<ValidationPrompt> prompts =
      validation_prompts(examples, *opened.saved.tokenizer, format ? &*format : nullptr, count);
  std::vector<GenerationRequest> requests;
  for (const ValidationPrompt& prompt : prompts) {
    requests.push_back({.prompt = prompt.ids,
                        .options = {.max_new_tokens = max_tokens,
                                    .temperature = 0,
                                    .vocab_size = opened.saved.tokenizer->vocab_size(),
                                    .eod_id = static_cast<int64_t>(opened.saved.eod_id),
                                    .max_context = opened.saved.config.model_config.seq_length,
                                    .stop_ids = opened.stop_ids,
                                    .stops_at_context = true}});
  }
  const std::vector<GenerationResult> results = generate_batch(*opened.model, requests);
  std::vector<FinetuneAnswer> answers;
  for (size_t i = 0; i < prompts.size(); ++i) {
    answers.push_back(
        {prompts[i].text, prompts[i].expected, opened.saved.tokenizer->decode(results[i].ids())});
  }
  return answers;
}

std::string TunedModel::export_to(FinetuneExport what, const std::string& gguf_type_name) const {
  const std::string path = export_path(config_.training_config.output_dir, what);
  const bool has_adapter = config_.lora_config.use_lora;
  switch (what) {
    case FinetuneExport::kAdapter:
      check<ValueError>(has_adapter, path, ": all weights were trained, there is no adapter");
      copy_adapter(checkpoint_, path);
      add_chat_template(path);
      break;
    case FinetuneExport::kHf:
      if (has_adapter) {
        merge_adapter({.adapter = checkpoint_, .output = path});
      } else {
        // In the dtype of the folder that the weights came from.
        export_hf(open_export_source(checkpoint_), path, {.dtype = stored_dtype(config_)});
      }
      add_chat_template(path);
      break;
    case FinetuneExport::kGguf: {
      const GgufOptions options{.type = gguf_type(gguf_type_name)};
      if (!has_adapter) {
        export_gguf(open_export_source(checkpoint_), path, options);
        break;
      }
      // GGUF is made of a merged folder: the one that is wanted besides, or one for now.
      const std::string wanted =
          export_path(config_.training_config.output_dir, FinetuneExport::kHf);
      if (fs::exists(wanted + "/config.json")) {
        export_gguf(open_export_source(wanted), path, options);
        break;
      }
      const std::string merged = path + ".merged";
      fs::remove_all(merged);
      merge_adapter({.adapter = checkpoint_, .output = merged});
      add_chat_template(merged);
      export_gguf(open_export_source(merged), path, options);
      fs::remove_all(merged);
      break;
    }
  }
  return path;
}

std::string export_path(const std::string& output_dir, FinetuneExport what) {
  switch (what) {
    case FinetuneExport::kHf:
      return output_dir + "/hf";
    case FinetuneExport::kGguf:
      return output_dir + "/model.gguf";
    case FinetuneExport::kAdapter:
      break;
  }
  return output_dir + "/adapter";
}

std::string answer_text(const FinetuneAnswer& answer) {
  return concat("prompt:   ", harmless_text(answer.prompt),
                "\nexample:  ", harmless_text(answer.expected),
                "\nanswer:   ", harmless_text(answer.answer));
}

}  // namespace tapestry
