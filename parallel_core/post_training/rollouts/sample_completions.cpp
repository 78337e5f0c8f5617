#include "parallel_core/post_training/rollouts/sample_completions.h"

#include <cstring>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"

namespace tapestry::post_training {

namespace {

// Ranks are the same program: what one writes the others read as it is.
template <class T>
void append_bytes(std::string& out, const std::vector<T>& values) {
  const auto count = static_cast<int64_t>(values.size());
  out.append(reinterpret_cast<const char*>(&count), sizeof(count));
  out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <class T>
std::vector<T> take_bytes(std::string_view& in) {
  int64_t count = 0;
  std::memcpy(&count, in.data(), sizeof(count));
  in.remove_prefix(sizeof(count));
  std::vector<T> values(static_cast<size_t>(count));
  std::memcpy(values.data(), in.data(), values.size() * sizeof(T));
  in.remove_prefix(values.size() * sizeof(T));
  return values;
}

std::vector<SampledCompletion> sampled(ParallelModel& model,
                                       std::span<const GenerationRequest> requests) {
  // One of its own each time: what is kept of earlier texts belongs to other weights.
  const std::vector<GenerationResult> results = TextGenerator(model).generate(requests);
  std::vector<SampledCompletion> out;
  for (const GenerationResult& result : results) {
    SampledCompletion& one = out.emplace_back();
    for (const GeneratedToken& token : result.tokens) {
      one.ids.push_back(token.id);
      one.log_probs.push_back(token.log_prob);
    }
    one.truncated = result.finish != FinishReason::kStopId;
    if (!one.truncated) {
      one.ids.push_back(result.stop_id);
      one.log_probs.push_back(result.stop_log_prob);
    }
  }
  return out;
}

// Whether ranks with different data make the same passes of the model together.
bool is_touched_together(const ParallelModel& model, const AllConfig& config) {
  return zero_level(config) == 3 || get_expert_model_parallel_world_size() > 1 ||
         (get_context_parallel_world_size() > 1 && !model.takes_cache());
}

}  // namespace

CompletionRange part_of_completions(int64_t count, int64_t part, int64_t parts) {
  return {.begin = count * part / parts, .end = count * (part + 1) / parts};
}

ProcessGroup& sharing_group() { return get_data_parallel_group(/*with_context_parallel=*/true); }

std::vector<SampledCompletion> sample_completions(ParallelModel& model,
                                                  const AllConfig& config,
                                                  std::span<const GenerationRequest> requests) {
  ProcessGroup& group = sharing_group();
  if (group.size() == 1 || is_touched_together(model, config)) {
    return sampled(model, requests);
  }
  const CompletionRange own = part_of_completions(std::ssize(requests), group.rank(), group.size());
  std::string packed;
  for (const SampledCompletion& one :
       sampled(model,
               requests.subspan(static_cast<size_t>(own.begin), static_cast<size_t>(own.size())))) {
    append_bytes(packed, one.ids);
    append_bytes(packed, one.log_probs);
    packed.push_back(one.truncated ? 1 : 0);
  }
  std::vector<SampledCompletion> all;
  for (const std::string& text : all_gather_text(group, packed)) {
    for (std::string_view left = text; !left.empty(); left.remove_prefix(1)) {
      SampledCompletion& one = all.emplace_back();
      one.ids = take_bytes<int32_t>(left);
      one.log_probs = take_bytes<double>(left);
      one.truncated = left.front() != 0;
    }
  }
  return all;
}

}  // namespace tapestry::post_training
