#include "parallel_core/dist_checkpointing/misfit.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

// A table of embeddings, by which the rest of the names is known.
constexpr std::array<std::string_view, 6> kTables = {
    "model.embed_tokens.weight", "embed_tokens.weight",
    "transformer.wte.weight",    "wte.weight",
    "tok_embeddings.weight",     "embedding.word_embeddings.weight"};

struct Wrapper {
  std::string_view part;
  const char* made_by;
};
constexpr std::array<Wrapper, 7> kWrappers = {
    {{"_orig_mod.", "torch.compile puts that in front; save model._orig_mod"},
     {"_fsdp_wrapped_module.", "FSDP puts that in front; save the gathered state of the model"},
     {"_checkpoint_wrapped_module.", "activation checkpointing of PyTorch puts that in front"},
     {"module.",
      "DataParallel, DistributedDataParallel and DeepSpeed put that in front; save "
      "model.module"},
     {"base_model.model.",
      "PEFT puts that in front of a model with adapters; merge it "
      "(merge_and_unload) and save the result"},
     {"language_model.",
      "that is the text part of a model of several kinds of input, which is not "
      "read as a whole; save the language model by itself"},
     {"_forward_module.", "Lightning's strategies put that in front"}}};

// What stands before the table's own name; nothing if no tensor is a table, or nothing does.
std::string prefix_of(const std::set<std::string>& names) {
  for (const std::string_view table : kTables) {
    for (const std::string& name : names) {
      if (name.size() > table.size() && name.ends_with(table) &&
          name[name.size() - table.size() - 1] == '.') {
        return name.substr(0, name.size() - table.size());
      }
    }
    if (names.contains(std::string(table))) {
      return {};
    }
  }
  return {};
}

std::optional<std::string> explain_prefix(const std::set<std::string>& names) {
  const std::string prefix = prefix_of(names);
  const auto with = std::count_if(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with(prefix);
  });
  if (prefix.empty() || static_cast<size_t>(with) * 2 < names.size()) {
    return std::nullopt;
  }
  std::string text =
      concat("The names in the file begin with \"", prefix, "\", which those of a model do not");
  const auto wrapper = std::find_if(kWrappers.begin(), kWrappers.end(), [&](const Wrapper& known) {
    return prefix.find(known.part) != std::string::npos;
  });
  if (wrapper != kWrappers.end()) {
    text += concat(": ", wrapper->made_by);
  }
  return text + concat(", or take \"", prefix, "\" out of the names.");
}

bool holds(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

std::string explain_misfit(const nn::LoadReport& report,
                           const std::set<std::string>& names,
                           const MisfitModel& model) {
  std::string text;
  if (const auto prefix = explain_prefix(names); prefix && !model.adapter) {
    return *prefix + "\n";
  }
  if (model.tied && holds(report.unexpected, model.head)) {
    text += model.adapter
                ? concat(
                      "The base has one matrix for its table of embeddings and its output layer "
                      "(tie_word_embeddings), and the adapter has trained the two apart. Merge "
                      "them (export --merge): the result has both, and can be run and trained.\n")
                : concat("config.json says tie_word_embeddings: true, so that the output layer is ",
                         model.table, ", but the file has a matrix ", model.head,
                         " that is another one. If it is the one that was trained, set "
                         "tie_word_embeddings: false.\n");
  }
  const auto joins = [](const std::string& name) { return name.ends_with(".mtp.eh_proj.weight"); };
  if (std::any_of(report.missing.begin(), report.missing.end(), joins)) {
    text +=
        "The file has fewer layers that predict further tokens than model_config.mtp_num_layers "
        "says; lower it, or set it to 0.\n";
  }
  if (!model.adapter && holds(report.unexpected, "score.weight")) {
    text +=
        "The file is of a reward model (sequence classification), which has a score head in place "
        "of an output layer and predicts no tokens; post_training_config.task: reward trains it, "
        "and evaluate --reward asks it.\n";
    return text;
  }
  if (!model.tied && !model.adapter && holds(report.missing, "lm_head.weight")) {
    text += concat(
        "config.json says tie_word_embeddings: false (which is also what it means to leave it out "
        "in a Llama), so that the output layer is a matrix of its own, but the file has none. "
        "Usual reasons: an old or edited config.json of a model that has one matrix for both (set "
        "tie_word_embeddings: true), or a model saved without its output layer (LlamaModel).\n");
  }
  return text;
}

}  // namespace tapestry
