#include "parallel_core/inference/generation.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/random.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "parallel_core/inference/cached_pass.h"
#include "parallel_core/inference/training_log_probs.h"
#include "parallel_core/training/step/forward_step.h"

namespace tapestry {

namespace generation {

// A text under way. What the model sees of it are the tokens from `start` on, of which the slot
// has keys of the first `cached`.
struct Text {
  size_t request = 0;
  const GenerationOptions* options = nullptr;
  std::vector<int32_t> tokens;  // the prompt and what has been added
  size_t start = 0;
  size_t cached = 0;
  GenerationResult result;
  bool done = false;

  size_t pending() const { return tokens.size() - start - cached; }
};

}  // namespace generation

namespace {

using generation::Text;

// Numbers that a chosen token is passed on as: id, log-probability, and the likeliest ones' both.
size_t width_of(const GenerationOptions& options) {
  return 2 + 2 * static_cast<size_t>(std::max<int64_t>(options.top_log_probs, 0));
}

// The next token of a text, from the logits at its last position.
void choose(const Text& text, std::span<float> logits, std::span<double> out) {
  const GenerationOptions& options = *text.options;
  std::vector<TokenLogProb> likeliest;
  std::vector<float> own;  // before the penalty
  if (options.top_log_probs >= 0 && options.repetition_penalty != 1) {
    own.assign(logits.begin(), logits.end());
  }
  penalize_repetition(logits, text.tokens, options.repetition_penalty);
  const RandomKey key{options.seed, stream_of("generate"), text.result.tokens.size()};
  const double draw = options.temperature == 0 ? 0.0 : rand({1}, kFloat64, key).item();
  const int64_t id = sample_token(logits, options, draw);
  out[0] = static_cast<double>(id);
  if (options.top_log_probs < 0) {
    return;
  }
  likeliest =
      log_probabilities(own.empty() ? std::span<const float>(logits) : own, options.vocab_size,
                        static_cast<int32_t>(id), options.top_log_probs);
  out[1] = likeliest[0].log_prob;
  for (size_t i = 1; i < out.size() / 2; ++i) {
    // Fewer than were asked for where the vocabulary has no more.
    out[2 * i] = i < likeliest.size() ? likeliest[i].id : -1;
    out[2 * i + 1] = i < likeliest.size() ? likeliest[i].log_prob : 0;
  }
}

// Puts the log-probabilities of the chosen ids that training has in place of the distribution's
// own. `logits` as the model gave them.
void put_training_log_probs(std::span<Text* const> texts,
                            const Tensor& logits,
                            std::span<const size_t> begins,
                            std::span<double> values) {
  std::vector<int64_t> ids;
  for (size_t first = 0; first < texts.size(); first += ids.size()) {
    // Those of one temperature at once.
    const auto temperature = [&](size_t i) { return texts[i]->options->temperature; };
    ids.clear();
    for (size_t i = first; i < texts.size() && temperature(i) == temperature(first); ++i) {
      ids.push_back(static_cast<int64_t>(values[begins[i]]));
    }
    if (!texts[first]->options->training_log_probs) {
      continue;
    }
    const auto begin = static_cast<int64_t>(first);
    const std::vector<double> found =
        training_log_probs(logits.slice(0, begin, begin + std::ssize(ids)), ids,
                           temperature(first) == 0 ? 1.0 : temperature(first));
    for (size_t i = 0; i < found.size(); ++i) {
      values[begins[first + i] + 1] = found[i];
    }
  }
}

GeneratedToken unpacked(std::span<const double> values, bool with_log_prob) {
  GeneratedToken out;
  out.id = static_cast<int32_t>(values[0]);
  out.log_prob = with_log_prob ? values[1] : 0;
  for (size_t i = 1; i < values.size() / 2 && values[2 * i] >= 0; ++i) {
    out.likeliest.push_back({static_cast<int32_t>(values[2 * i]), values[2 * i + 1]});
  }
  return out;
}

// Adds the tokens that logits [texts, V] give to the texts; `logits` is undefined on all stages but
// the last, from which they come.
void advance(std::span<Text* const> texts, const Tensor& logits, const TokenCallback& on_token) {
  std::vector<size_t> begins = {0};
  for (const Text* text : texts) {
    begins.push_back(begins.back() + width_of(*text->options));
  }
  std::vector<double> values(begins.back());
  const auto part = [&](size_t i) {
    return std::span<double>(values).subspan(begins[i], begins[i + 1] - begins[i]);
  };
  if (logits.defined()) {
    const bool is_trained = std::any_of(texts.begin(), texts.end(), [](const Text* text) {
      return text->options->training_log_probs;
    });
    const bool is_penalized = std::any_of(texts.begin(), texts.end(), [](const Text* text) {
      return text->options->repetition_penalty != 1;
    });
    const Tensor own = is_trained && is_penalized ? logits.clone() : logits;
    const auto vocabulary = static_cast<size_t>(logits.size(1));
    auto* first = logits.data<float>();
    kernels::parallel_for(std::ssize(texts), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        choose(*texts[i], {first + i * vocabulary, vocabulary}, part(i));
      }
    });
    if (is_trained) {
      put_training_log_probs(texts, own, begins, values);
    }
  }
  take_from_last_stage(values);
  for (size_t i = 0; i < texts.size(); ++i) {
    Text& text = *texts[i];
    const GenerationOptions& options = *text.options;
    GeneratedToken token =
        unpacked(part(i), options.top_log_probs >= 0 || options.training_log_probs);
    if (token.id == options.eod_id || std::find(options.stop_ids.begin(), options.stop_ids.end(),
                                                token.id) != options.stop_ids.end()) {
      text.result.finish = FinishReason::kStopId;
      text.result.stop_id = token.id;
      text.result.stop_log_prob = token.log_prob;
      text.done = true;
      continue;
    }
    text.tokens.push_back(token.id);
    text.result.tokens.push_back(std::move(token));
    if (on_token && !on_token(text.request, text.result.tokens.back())) {
      text.result.finish = FinishReason::kStopped;
      text.done = true;
    } else if (std::ssize(text.result.tokens) == options.max_new_tokens) {
      text.result.finish = FinishReason::kLength;
      text.done = true;
    } else if (options.stops_at_context && options.max_context > 0 &&
               std::ssize(text.tokens) >= options.max_context) {
      text.result.finish = FinishReason::kContext;
      text.done = true;
    }
  }
}

// What the model sees of a text begins so late that it has room for the last token; keys of tokens
// that move to other positions count no more.
void slide(Text& text) {
  const auto most = static_cast<size_t>(text.options->max_context);
  if (most > 0 && text.tokens.size() - text.start > most) {
    text.start = text.tokens.size() - most;
    text.cached = 0;
  }
}

// Positions that a request needs at most.
int64_t positions_of(const GenerationRequest& request) {
  const int64_t all = std::ssize(request.prompt) + request.options.max_new_tokens;
  return request.options.max_context > 0 ? std::min(all, request.options.max_context) : all;
}

void check_requests(std::span<const GenerationRequest> requests) {
  for (const GenerationRequest& request : requests) {
    check_generation_options(request.options);
    check<ValueError>(!request.prompt.empty(), "generate: the prompt has no tokens");
    for (const int32_t id : request.prompt) {
      check<IndexError>(id >= 0, "generate: the prompt has the id ", id,
                        ", which lies outside the vocabulary");
    }
  }
}

}  // namespace

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStopId:
      return "stop_id";
    case FinishReason::kStopped:
      return "stopped";
    case FinishReason::kContext:
      return "context";
    default:
      return "length";
  }
}

std::vector<int32_t> GenerationResult::ids() const {
  std::vector<int32_t> out;
  out.reserve(tokens.size());
  for (const GeneratedToken& token : tokens) {
    out.push_back(token.id);
  }
  return out;
}

class TextGenerator::Impl {
 public:
  Impl(ParallelModel& model, const GenerationBatch& batch) : model_(model), batch_(batch) {
    check<ValueError>(batch.batch_size > 0, "generate: batch_size must be positive, got ",
                      batch.batch_size);
    check<ValueError>(batch.prefill_tokens > 0, "generate: prefill_tokens must be positive, got ",
                      batch.prefill_tokens);
  }

  std::vector<GenerationResult> generate(std::span<const GenerationRequest> requests,
                                         const TokenCallback& on_token,
                                         const ResultCallback& on_result) {
    check_requests(requests);
    const ExactScope exact(batch_.exact || in_exact());
    const NoGradGuard guard;
    const EvaluationMode evaluation(model_);
    std::vector<GenerationResult> results(requests.size());
    std::deque<size_t> waiting;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].options.max_new_tokens > 0) {
        waiting.push_back(i);
      } else if (on_result) {
        on_result(i, results[i]);
      }
    }
    if (!batch_.use_cache || !model_.takes_cache()) {
      for (const size_t i : waiting) {
        results[i] = recomputed(requests[i], i, on_token);
        if (on_result) {
          on_result(i, results[i]);
        }
      }
      return results;
    }
    make_room(requests, waiting.size());
    while (!waiting.empty() || !texts_.empty()) {
      while (!waiting.empty() && std::ssize(texts_) < cache_->slots()) {
        begin(requests[waiting.front()], waiting.front());
        waiting.pop_front();
      }
      step(on_token);
      collect(results, on_result);
    }
    return results;
  }

  int64_t prefilled = 0;
  int64_t decoded = 0;

 private:
  // The whole of what the model sees goes through it for each token.
  GenerationResult recomputed(const GenerationRequest& request,
                              size_t number,
                              const TokenCallback& on_token) {
    Text text = text_of(request, number);
    while (!text.done) {
      slide(text);
      data::Batch batch;
      batch.batch = 1;
      batch.seq = static_cast<int64_t>(text.tokens.size() - text.start);
      batch.tokens.assign(text.tokens.begin() + static_cast<std::ptrdiff_t>(text.start),
                          text.tokens.end());
      const Tensor logits = pipeline_logits(model_, batch);
      Tensor last;
      if (logits.defined()) {
        // The last position stands last in either data layout, since there is one row.
        last = logits.reshape({batch.seq, logits.size(2)})
                   .slice(0, batch.seq - 1, batch.seq)
                   .to(kFloat32)
                   .clone();
      }
      (text.result.tokens.empty() ? prefilled : decoded) += batch.seq;
      Text* const one = &text;
      advance({&one, 1}, last, on_token);
    }
    return std::move(text.result);
  }

  static Text text_of(const GenerationRequest& request, size_t number) {
    Text text;
    text.request = number;
    text.options = &request.options;
    text.tokens = request.prompt;
    return text;
  }

  // A cache with a slot for each text that may be under way, of as many positions as any needs.
  void make_room(std::span<const GenerationRequest> requests, size_t count) {
    const int64_t slots = std::clamp<int64_t>(static_cast<int64_t>(count), 1, batch_.batch_size);
    int64_t positions = 1;
    for (const GenerationRequest& request : requests) {
      positions = std::max(positions, positions_of(request));
    }
    if (!cache_ || cache_->slots() < slots) {
      cache_.emplace(slots, batch_.prefill_tokens);
      held_.clear();
    }
    cache_->reserve(positions);
    texts_.clear();
    held_.resize(static_cast<size_t>(cache_->slots()));
  }

  // The text takes the next slot. What its prompt begins with may be there already.
  void begin(const GenerationRequest& request, size_t number) {
    const size_t slot = texts_.size();
    texts_.push_back(text_of(request, number));
    Text& text = texts_.back();
    slide(text);
    const std::vector<int32_t>& held = held_[slot];
    if (text.start == 0) {
      size_t same = 0;
      while (same < held.size() && same + 1 < text.tokens.size() &&
             held[same] == text.tokens[same]) {
        ++same;
      }
      // Stages have other layers, which keep other things of a text.
      if (all_stages_can(cache_->can_rewind(std::ssize(held), static_cast<int64_t>(same)))) {
        text.cached = same;
      }
    }
    held_[slot].clear();
  }

  // New tokens of prompts, up to prefill_tokens of them; or one of each text.
  void step(const TokenCallback& on_token) {
    const bool prefills = std::any_of(texts_.begin(), texts_.end(),
                                      [](const Text& text) { return text.pending() > 1; });
    CachedStep step;
    step.cache = &*cache_;
    std::vector<int64_t> ids;
    std::vector<Text*> advanced;
    auto room =
        static_cast<size_t>(prefills ? batch_.prefill_tokens : std::numeric_limits<int64_t>::max());
    for (size_t slot = 0; slot < texts_.size() && room > 0; ++slot) {
      Text& text = texts_[slot];
      // A prompt that begins in a pass with others ends in it if it can.
      const size_t count = std::min(text.pending(), room);
      if (prefills && !text.result.tokens.empty() && text.pending() == 1) {
        continue;  // has been started, and waits for those that have not
      }
      step.segments.push_back({.slot = static_cast<int64_t>(slot),
                               .position = static_cast<int64_t>(text.cached),
                               .count = static_cast<int64_t>(count)});
      const auto first =
          text.tokens.begin() + static_cast<std::ptrdiff_t>(text.start + text.cached);
      ids.insert(ids.end(), first, first + static_cast<std::ptrdiff_t>(count));
      text.cached += count;
      room -= count;
      if (text.pending() == 0) {
        step.logits_of.push_back(std::ssize(ids) - 1);
        advanced.push_back(&text);
      }
    }
    (prefills ? prefilled : decoded) += std::ssize(ids);
    const Tensor logits = cached_logits(model_, ids, step);
    if (!advanced.empty()) {
      advance(advanced, logits, on_token);
    }
    for (Text& text : texts_) {
      slide(text);
    }
  }

  // Takes texts that are done out of the batch, whose slots stay together.
  void collect(std::vector<GenerationResult>& results, const ResultCallback& on_result) {
    for (size_t slot = texts_.size(); slot-- > 0;) {
      Text& text = texts_[slot];
      if (!text.done) {
        continue;
      }
      results[text.request] = std::move(text.result);
      if (on_result) {
        on_result(text.request, results[text.request]);
      }
      held_[slot].clear();
      if (text.start == 0) {
        held_[slot].assign(text.tokens.begin(),
                           text.tokens.begin() + static_cast<std::ptrdiff_t>(text.cached));
      }
      const size_t last = texts_.size() - 1;
      if (slot != last) {
        cache_->move(static_cast<int64_t>(last), static_cast<int64_t>(slot),
                     static_cast<int64_t>(texts_[last].cached));
        texts_[slot] = std::move(texts_[last]);
        held_[slot].clear();
      }
      texts_.pop_back();
    }
  }

  ParallelModel& model_;
  GenerationBatch batch_;
  std::optional<KeyValueCache> cache_;
  std::vector<generation::Text> texts_;     // by slot
  std::vector<std::vector<int32_t>> held_;  // of free slots: tokens whose keys are there
};

TextGenerator::TextGenerator(ParallelModel& model, const GenerationBatch& batch)
    : impl_(std::make_unique<Impl>(model, batch)) {}
TextGenerator::~TextGenerator() = default;

std::vector<GenerationResult> TextGenerator::generate(std::span<const GenerationRequest> requests,
                                                      const TokenCallback& on_token,
                                                      const ResultCallback& on_result) {
  return impl_->generate(requests, on_token, on_result);
}

int64_t TextGenerator::prefilled_tokens() const { return impl_->prefilled; }
int64_t TextGenerator::decoded_tokens() const { return impl_->decoded; }

std::vector<GenerationResult> generate_batch(ParallelModel& model,
                                             std::span<const GenerationRequest> requests,
                                             const GenerationBatch& batch,
                                             const TokenCallback& on_token) {
  return TextGenerator(model, batch).generate(requests, on_token);
}

std::vector<int32_t> generate(ParallelModel& model,
                              std::span<const int32_t> prompt,
                              const GenerationOptions& options,
                              const std::function<void(int32_t)>& on_token) {
  const GenerationRequest request = {{prompt.begin(), prompt.end()}, options};
  return generate_batch(model, {&request, 1}, {.batch_size = 1},
                        [&](size_t /*request*/, const GeneratedToken& token) {
                          if (on_token) {
                            on_token(token.id);
                          }
                          return true;
                        })
      .front()
      .ids();
}

}  // namespace tapestry
