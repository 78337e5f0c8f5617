// Text from a trained model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "parallel_core/inference/sampling.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"

namespace tapestry {

/// A prompt, and what is wanted of its continuation.
struct GenerationRequest {
  std::vector<int32_t> prompt;
  GenerationOptions options;
};

enum class FinishReason : uint8_t {
  kLength,   ///< max_new_tokens
  kStopId,   ///< eod_id or one of stop_ids came; it is not among the tokens
  kStopped,  ///< the callback has ended the text
  kContext,  ///< max_context is full (stops_at_context)
};
/// "length", "stop_id", "stopped", "context".
std::string_view name_of(FinishReason reason);

struct GeneratedToken {
  int32_t id = 0;
  double log_prob = 0;  ///< of the id; 0 unless top_log_probs >= 0 or training_log_probs
  std::vector<TokenLogProb> likeliest;  ///< top_log_probs of them
};

struct GenerationResult {
  std::vector<GeneratedToken> tokens;
  FinishReason finish = FinishReason::kLength;
  int32_t stop_id = -1;      ///< the one that came, for kStopId
  double stop_log_prob = 0;  ///< of that, as of the tokens

  std::vector<int32_t> ids() const;
};

/// Called with each new token of request number `request`, in the order in which they come; false
/// ends that text with this token. On every rank, which all decide alike.
using TokenCallback = std::function<bool(size_t request, const GeneratedToken& token)>;

/// Called when request number `request` has its result, which is returned as well.
using ResultCallback = std::function<void(size_t request, const GenerationResult& result)>;

/// How requests are computed; nothing here changes what comes out but for rounding.
struct GenerationBatch {
  int64_t batch_size = 16;       ///< texts that are continued at the same time
  int64_t prefill_tokens = 512;  ///< tokens of prompts that go through the model at once, at most
  bool use_cache = true;         ///< false: the whole text goes through the model for each token
  /// In exact mode (kernels/machine/exact.h), as also where the caller is in it: nothing here, nor
  /// other requests, nor the layout then changes a bit of what comes out, and the logits are those
  /// of training's forward pass.
  bool exact = false;
};

/// Continues texts with keys and values kept between tokens, and between calls: what a prompt has
/// in common with the text that a slot still holds is not computed again (the turns of a chat).
///
/// Prompts may have any lengths: up to batch_size texts are under way, each at its own position,
/// and one that is done makes room for the next. Each text's tokens are a function of its request
/// alone. Models that keep no keys (ParallelModel::takes_cache), one's own for example, see the
/// whole text for each token.
class TextGenerator {
 public:
  explicit TextGenerator(ParallelModel& model, const GenerationBatch& batch = {});
  TextGenerator(const TextGenerator&) = delete;
  TextGenerator& operator=(const TextGenerator&) = delete;
  ~TextGenerator();

  /// The continuation of each request. Token number i (from 0) of a text uses number i of the
  /// stream "generate" of its seed. The model is left in the mode that it was in. All ranks of a
  /// tensor-parallel group and of a pipeline make the call and get the same. ValueError for an
  /// empty prompt or options outside their range, IndexError for ids outside the vocabulary.
  std::vector<GenerationResult> generate(std::span<const GenerationRequest> requests,
                                         const TokenCallback& on_token = {},
                                         const ResultCallback& on_result = {});

  /// Tokens that went through the model since it was made: of prompts, and of continuations.
  int64_t prefilled_tokens() const;
  int64_t decoded_tokens() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// TextGenerator(model, batch).generate(requests, on_token).
std::vector<GenerationResult> generate_batch(ParallelModel& model,
                                             std::span<const GenerationRequest> requests,
                                             const GenerationBatch& batch = {},
                                             const TokenCallback& on_token = {});

/// The same for one prompt: the new ids. `on_token` is called with each.
std::vector<int32_t> generate(ParallelModel& model,
                              std::span<const int32_t> prompt,
                              const GenerationOptions& options,
                              const std::function<void(int32_t)>& on_token = {});

}  // namespace tapestry
