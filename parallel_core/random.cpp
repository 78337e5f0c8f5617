#include "parallel_core/random.h"

#include <memory>
#include <utility>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/random.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/checkpoint.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

// A function that runs again in backward draws for the samples of its first run.
class ReplayedContext final : public ReplayedState {
 public:
  void swap() override { std::swap(context_, random_context()); }

 private:
  RandomContext context_ = random_context();
};

[[maybe_unused]] const bool context_is_replayed = register_replayed_state(
    +[]() -> std::unique_ptr<ReplayedState> { return std::make_unique<ReplayedContext>(); });

// Tokens of one sequence that follow one another, in x and in the sequence.
struct TokenRun {
  uint64_t sample = 0;
  int64_t position = 0;
  int64_t count = 0;
};

// Where the numbers of a run's first token begin, of `width` for each token.
RandomKey key_of(const RandomKey& site, const TokenRun& run, int64_t width) {
  return {site.seed, combine(site.stream, run.sample),
          site.offset + static_cast<uint64_t>(run.position * width)};
}

// Linear in x, so its own derivative; keeps no noise but makes it again.
struct InputJitter {
  static constexpr OpName name = "input_jitter";
  double eps;
  RandomKey key;
  std::vector<TokenRun> runs;

  Tensor forward(const Tensor& x) {
    const int64_t width = x.size(1);
    TensorList noise;
    for (const TokenRun& run : runs) {
      noise.push_back(
          uniform(1 - eps, 1 + eps, {run.count, width}, kFloat32, key_of(key, run, width)));
    }
    return noise.empty() ? x : (x * cat(noise, 0)).to(x.dtype());
  }
  Tensor backward(const Tensor& dy) const { return apply_op(InputJitter{eps, key, runs}, dy); }
};

struct RandomLogits {
  static constexpr OpName name = "random_logits";
  RandomKey key;
  std::vector<TokenRun> runs;

  Tensor forward(const Tensor& logits) {
    TensorList values;
    for (const TokenRun& run : runs) {
      values.push_back(normal(0, 1, {run.count, logits.size(1)}, logits.dtype(),
                              key_of(key, run, logits.size(1))));
    }
    return values.empty() ? logits.detach() : cat(values, 0);
  }
  Tensor backward(const Tensor& dy) const { return dy; }
};

// `op` names the caller in errors.
std::vector<TokenRun> token_runs(const char* op,
                                 const Tensor& x,
                                 std::span<const int64_t> numbers,
                                 int64_t seq_length) {
  check<ValueError>(x.dim() == 2 && x.size(0) == std::ssize(numbers), op, ": there are ",
                    numbers.size(), " numbers for the tokens of ", describe(x));
  const std::vector<int64_t>& samples = random_context().sample_ids;
  std::vector<TokenRun> runs;
  int64_t last = -1;
  for (const int64_t number : numbers) {
    check<ValueError>(number >= 0 && number < std::ssize(samples) * seq_length, op,
                      ": a token has number ", number, ", but the micro-batch has ", samples.size(),
                      " samples of ", seq_length, " tokens");
    if (!runs.empty() && number == last + 1 && number % seq_length != 0) {
      ++runs.back().count;
    } else {
      runs.push_back({static_cast<uint64_t>(samples[static_cast<size_t>(number / seq_length)]),
                      number % seq_length, 1});
    }
    last = number;
  }
  return runs;
}

}  // namespace

RandomContext& random_context() { return RankContext::current().slot<RandomContext>(); }

RandomKey initialization_key(std::string_view logical_name) {
  return {random_context().seed, stream_of(logical_name), 0};
}

RandomKey dropout_key(int64_t layer, DropoutSite site) {
  const RandomContext& context = random_context();
  uint64_t stream = stream_of("dropout");
  stream = combine(stream, static_cast<uint64_t>(context.step));
  stream = combine(stream, static_cast<uint64_t>(layer));
  stream = combine(stream, static_cast<uint64_t>(site));
  return {context.seed, stream, 0};
}

RandomKey dropout_key(std::string_view logical_name) {
  const RandomContext& context = random_context();
  const uint64_t stream =
      combine(stream_of("adapter_dropout"), static_cast<uint64_t>(context.step));
  return {context.seed, combine(stream, stream_of(logical_name)), 0};
}

std::vector<SampleRun> sample_runs(int64_t rows) {
  const std::vector<int64_t>& ids = random_context().sample_ids;
  check<ValueError>(rows == static_cast<int64_t>(ids.size()), "dropout: the tensor has ", rows,
                    " rows, but the micro-batch has ", ids.size(), " samples");
  std::vector<SampleRun> runs;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t id = ids[static_cast<size_t>(row)];
    if (!runs.empty() && id == runs.back().first_sample + row - runs.back().begin) {
      runs.back().end = row + 1;
    } else {
      runs.push_back({row, row + 1, id});
    }
  }
  return runs;
}

Tensor hidden_dropout(const Tensor& x,
                      double p,
                      int64_t layer,
                      DropoutSite site,
                      int64_t batch_axis,
                      const SequencePart& part) {
  return hidden_dropout(x, p, dropout_key(layer, site), {.batch_axis = batch_axis, .part = part});
}

Tensor hidden_dropout(const Tensor& x, double p, const RandomKey& key, const DropoutPlace& where) {
  check<ValueError>(p >= 0 && p < 1, "dropout: the probability must lie in [0, 1), got ", p);
  if (p == 0) {
    return x;
  }
  const int64_t batch_axis = where.batch_axis;
  const SequencePart& part = where.part;
  const int64_t sequence_axis = 1 - batch_axis;
  const int64_t tokens = x.size(sequence_axis);
  const int64_t length = part.length > 0 ? part.length : tokens;
  const std::vector<PositionRun> positions =
      part.length > 0 ? part.runs : std::vector<PositionRun>{{0, tokens}};
  TensorList parts;
  for (const SampleRun& run : sample_runs(x.size(batch_axis))) {
    const Tensor rows = x.slice(batch_axis, run.begin, run.end);
    TensorList pieces;
    int64_t begin = 0;
    for (const PositionRun& run_of_tokens : positions) {
      const Tensor piece = rows.slice(sequence_axis, begin, begin + run_of_tokens.count);
      begin += run_of_tokens.count;
      LogicalPlace place{.shape = x.shape(), .start = {0, 0, 0}, .sample_axis = batch_axis};
      place.shape[batch_axis] = run.first_sample + run.end - run.begin;
      place.start[batch_axis] = run.first_sample;
      place.shape[sequence_axis] = length;
      place.start[sequence_axis] = run_of_tokens.first;
      place.shape[2] = where.features > 0 ? where.features : x.size(2);
      place.start[2] = where.first_feature;
      pieces.push_back(dropout(piece, p, key, place));
    }
    parts.push_back(pieces.size() == 1 ? pieces[0] : cat(pieces, sequence_axis));
  }
  return parts.size() == 1 ? parts[0] : cat(parts, batch_axis);
}

Tensor input_jitter(const Tensor& x,
                    double eps,
                    int64_t layer,
                    std::span<const int64_t> numbers,
                    int64_t seq_length) {
  check<ValueError>(eps >= 0 && eps < 1, "input_jitter: eps must lie in [0, 1), got ", eps);
  if (eps == 0) {
    return x;
  }
  const RandomKey key = dropout_key(layer, DropoutSite::kRouterInput);
  return apply_op(InputJitter{eps, key, token_runs("input_jitter", x, numbers, seq_length)}, x);
}

Tensor random_logits(const Tensor& logits,
                     int64_t layer,
                     std::span<const int64_t> numbers,
                     int64_t seq_length) {
  const RandomKey key = dropout_key(layer, DropoutSite::kRouterLogits);
  return apply_op(RandomLogits{key, token_runs("random_logits", logits, numbers, seq_length)},
                  logits);
}

}  // namespace tapestry
