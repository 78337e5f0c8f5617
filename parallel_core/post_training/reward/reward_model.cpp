#include "parallel_core/post_training/reward/reward_model.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "autograd/io/packed_folder.h"
#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/read_hf_config.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/post_training/examples/encode_line.h"
#include "parallel_core/post_training/reward/last_token.h"
#include "parallel_core/post_training/rows/pack_sequences.h"
#include "parallel_core/post_training/rows/sequence_set.h"
#include "parallel_core/training/data/example_format.h"
#include "parallel_core/training/step/forward_step.h"

namespace tapestry::post_training {

namespace {

// The id that the model's values are not taken at: transformers knows the one of config.json, which
// checkpoints have as well.
int64_t pad_id_of(const std::string& folder, const data::Tokenizer& tokenizer) {
  std::optional<int64_t> pad;
  if (path_exists(folder + "/config.json")) {
    pad = read_hf_config(folder).token_ids.pad;
  }
  return pad.value_or(tokenizer.pad_id());
}

// As many on each rank of the groups that work together: a rank that has fewer passes adds empty
// ones.
int64_t most_passes(int64_t own) {
  if (!model_parallel_is_initialized() || get_expert_model_parallel_world_size() == 1) {
    return own;
  }
  ProcessGroup& group = get_data_parallel_group();
  std::vector<double> counts(static_cast<size_t>(group.size()));
  counts[static_cast<size_t>(group.rank())] = static_cast<double>(own);
  sum_over(group, counts);
  return static_cast<int64_t>(*std::max_element(counts.begin(), counts.end()));
}

}  // namespace

RewardModel::RewardModel(const RewardModelOptions& options)
    : opened_(open_model_in_groups({.checkpoint = options.checkpoint,
                                    .adapter = options.adapter,
                                    .dtype = options.dtype,
                                    .checksums = options.checksums})),
      tokens_per_pass_(std::max<int64_t>(options.tokens_per_pass, 1)) {
  const AllConfig& config = opened_.saved.config;
  check<ValueError>(config.model_config.score_head, opened_.folder,
                    ": is no reward model but a language model, which gives texts no value; train "
                    "one of it with post_training_config.task: reward, or name a folder for "
                    "sequence classification");
  pad_id_ = pad_id_of(opened_.folder, tokenizer());
  format_ = chat_format_of_examples(config, tokenizer());
}

std::vector<int32_t> RewardModel::encode(const JudgedText& text, const std::string& place) const {
  ExampleLine line;
  line.is_conversation = text.prompt.is_array();
  if (line.is_conversation) {
    Json whole = text.prompt;
    whole.push_back({{"role", "assistant"}, {"content", text.completion}});
    line.answers = {std::move(whole)};
  } else {
    check<ValueError>(text.prompt.is_string() || text.prompt.is_null(), place,
                      ": the prompt is a text or an array of messages, got ",
                      text.prompt.type_name());
    const std::string prompt =
        text.prompt.is_null() ? std::string() : text.prompt.get<std::string>();
    line.answers = {Json(prompt + text.completion)};
  }
  std::vector<EncodedAnswer> encoded =
      encode_line(line, place,
                  {.tokenizer = &tokenizer(),
                   .format = chat_format(),
                   .without_format = "the model's folder has no chat template",
                   .eod = eod_id()});
  return std::move(encoded.front().completion);
}

std::vector<double> RewardModel::rewards(std::span<const JudgedText> texts) {
  std::vector<std::vector<int32_t>> sequences;
  for (const JudgedText& text : texts) {
    std::vector<int32_t> ids = encode(text, concat("text ", sequences.size() + 1));
    if (std::ssize(ids) > context()) {
      ids.erase(ids.begin(), ids.end() - context());
    }
    sequences.push_back(std::move(ids));
  }
  return rewards(sequences);
}

std::vector<double> RewardModel::rewards(std::span<const std::vector<int32_t>> sequences) {
  const int64_t vocabulary = opened_.saved.config.model_config.vocab_size;
  SequenceSet set;
  for (const std::vector<int32_t>& ids : sequences) {
    check<ValueError>(!ids.empty() && std::ssize(ids) <= context(), "reward model ", folder(),
                      ": sequence ", set.size(), " has ", ids.size(), " tokens, expected 1 to ",
                      context());
    const auto [least, most] = std::minmax_element(ids.begin(), ids.end());
    check<ValueError>(*least >= 0 && *most < vocabulary, "reward model ", folder(), ": sequence ",
                      set.size(), " has the id ", *least < 0 ? *least : *most,
                      ", the vocabulary ends at ", vocabulary);
    set.add({}, ids);
  }
  // Those of like length together, so that rows are full.
  std::vector<int64_t> order(sequences.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto length = [&](int64_t i) { return std::ssize(set.ids(i)); };
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return length(a) > length(b); });
  std::vector<data::Batch> batches;
  const auto pack = [&](const SequenceSet& of, std::span<const int64_t> numbers, int64_t longest) {
    batches.push_back(pack_sequences(
        of, numbers, {.seq_length = longest, .unit = opened_.model->sequence_unit()}));
  };
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    for (int64_t tokens = 0;
         end < order.size() && (end == begin || tokens + length(order[end]) <= tokens_per_pass_);
         ++end) {
      tokens += length(order[end]);
    }
    pack(set, std::span(order).subspan(begin, end - begin), length(order[begin]));
    begin = end;
  }
  std::vector<double> found(sequences.size(), 0);
  SequenceSet nothing;
  nothing.add({}, std::array<int32_t, 1>{0});
  const auto own = std::ssize(batches);
  for (const int64_t passes = most_passes(own); std::ssize(batches) < passes;) {
    pack(nothing, std::array<int64_t, 1>{0}, 1);
  }
  if (batches.empty()) {
    return found;
  }
  const NoGradGuard guard;
  const TokenScoresRequest request = {.values = true, .gradients = false};
  PipelineWork work = pipeline_work(
      *opened_.model, batches,
      [&](int64_t i, ModelOutput& output) {
        const data::Batch& batch = batches[static_cast<size_t>(i)];
        const Tensor values = dense(output.scores.value().values);
        for (size_t row = 0; i < own && row < batch.sequences.size(); ++row) {
          for (const data::RowSequence& sequence : batch.sequences[row]) {
            const int64_t at = static_cast<int64_t>(row) * batch.seq + sequence.first +
                               judged_token(set.ids(sequence.number), pad_id_);
            found[static_cast<size_t>(sequence.number)] = values.data<float>()[at];
          }
        }
        return StageOutput{};
      },
      &request);
  work.forward_only = true;
  get_forward_backward_func(work.chunks)(work);
  sum_over_pipeline(found);  // the last stage alone has any
  return found;
}

}  // namespace tapestry::post_training
