#include "parallel_core/post_training/rollouts/policy_sampler.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "autograd/kernels/machine/one_order.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/generator.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/post_training/grpo/advantages.h"
#include "parallel_core/post_training/rewards/reward_error.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/step/train_options.h"
#include "text/util/numbers.h"
#include "text/util/utf8.h"

namespace tapestry::post_training {

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_from(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

bool draws_in_own_order(const AllConfig& config) {
  return config.post_training_config.shuffle_dataset &&
         config.dataset_config.shuffle.value_or(true);
}

// Batches that can be asked for again.
constexpr size_t kKeptBatches = 2;

}  // namespace

// What the sampler adds to a step, and to a checkpoint.
class PolicySampler::Watch final : public StepObserver {
 public:
  explicit Watch(PolicySampler& sampler) : sampler_(sampler) {}
  StepPhase phase() const override { return StepPhase::kMonitors; }
  void before(int64_t step) override {
    sampler_.step_ = step;
    sampler_.effort_.reset();
  }
  void after(FinishedStep& step) override {
    next_step_ = step.next.step;
    if (!sampler_.effort_) {
      return;
    }
    const Effort& effort = *sampler_.effort_;
    step.result.task.emplace_back("step_time/generation_ms", effort.generation_ms);
    step.result.task.emplace_back("step_time/rewards_ms", effort.rewards_ms);
    const int64_t interval = sampler_.config_.training_config.log_interval.value_or(0);
    if (step.record.step == 1 || step.is_last ||
        (interval > 0 && step.record.step % interval == 0)) {
      step.lines.push_back(
          concat("rollouts: ", sampler_.plan_.generation_batch, " completions, ",
                 with_thousands(effort.tokens), " tokens in ",
                 duration_text(effort.generation_ms / 1000), ", ",
                 with_thousands(static_cast<int64_t>(1000.0 * static_cast<double>(effort.tokens) /
                                                     std::max(effort.generation_ms, 1e-3))),
                 " tokens/s; rewards in ", duration_text(effort.rewards_ms / 1000)));
    }
  }
  void flush() override {
    if (sampler_.samples_) {
      sampler_.samples_->sync();
    }
  }
  void save_past(TrainerState& state) const override {
    const bool goes_on = next_step_ % sampler_.plan_.steps() != 0;
    if (goes_on && !sampler_.made_.empty()) {
      state.task = rollout_state_json(sampler_.made_.back()->state);
    }
  }
  void load_past(const TrainerState& state) override {
    if (!state.task.empty()) {
      sampler_.restore(state.task);
    }
  }

 private:
  PolicySampler& sampler_;
  int64_t next_step_ = 0;  // in the data
};

PolicySampler::PolicySampler(const AllConfig& config,
                             const GenerationPlan& plan,
                             const RowRoom& room,
                             SamplerParts parts)
    : config_(config), plan_(plan), room_(room), parts_(std::move(parts)) {
  read_lines();
  order_.emplace(std::ssize(prompts_), draws_in_own_order(config), config.training_config.seed);
}

PolicySampler::~PolicySampler() = default;

// Keeps the prompts that have room, and their lines.
void PolicySampler::read_lines() {
  const int64_t room = room_.seq_length - config_.post_training_config.max_completion_length;
  const TaskExamples& all = *parts_.prompts;
  int64_t longest = 0;
  for (int64_t unit = 0; unit < all.train_units; ++unit) {
    const int64_t tokens = all.sequences.prompt_tokens(unit);
    longest = std::max(longest, tokens);
    if (tokens > room) {
      ++dropped_;
      continue;
    }
    prompts_.push_back(unit);
    lines_.push_back(nlohmann::ordered_json::parse(all.lines[static_cast<size_t>(unit)]));
    for (const auto& function : parts_.rewards) {
      const std::string column(function->column());
      check<ValueError>(column.empty() || lines_.back().contains(column),
                        "post_training_config.reward_funcs: ", function->name(),
                        " compares with the column '", column, "', which line ",
                        all.places[static_cast<size_t>(unit)].line,
                        " of post_training_config.data "
                        "does not have");
    }
  }
  const std::string fit =
      concat("a row has room for ", room_.seq_length, " tokens, of which max_completion_length ",
             config_.post_training_config.max_completion_length,
             " are for completions; raise model_config.seq_length, or lower "
             "post_training_config.max_completion_length");
  check<ValueError>(!prompts_.empty(), "post_training_config.data: none of the ", all.train_units,
                    " prompts is short enough (the longest has ", longest, " tokens): ", fit);
  if (dropped_ > 0) {
    log_warning(concat("data: ", dropped_, " of ", all.train_units,
                       " prompts are left out, the longest has ", longest, " tokens: ", fit));
  }
}

int64_t PolicySampler::prompt(int64_t number, int64_t completion) const {
  return order_->unit(number * prompts_of_batch() + completion / num_generations());
}

int64_t PolicySampler::epoch(int64_t first) const {
  return order_->epoch(first / num_generations());
}

std::string PolicySampler::description() const {
  return concat("completions of ", with_thousands(std::ssize(prompts_)), " prompts, ",
                num_generations(), " of each; ", with_thousands(plan_.generation_batch),
                " are sampled at once");
}

std::string PolicySampler::fingerprint() const {
  return concat("prompts ", parts_.prompts->sequences.checksum(), ", ", std::ssize(prompts_),
                " of them, ", num_generations(), " completions each");
}

void PolicySampler::prepare(const AllConfig& /*config*/, const ModelBeforeTraining& model) {
  if (config_.post_training_config.beta.value_or(0) > 0) {
    reference_.emplace(config_, model);
    log_info("reference: " + reference_->description());
  }
}

std::vector<GenerationRequest> PolicySampler::requests(int64_t number) const {
  const PostTrainingConfig& p = config_.post_training_config;
  GenerationOptions options;
  options.max_new_tokens = p.max_completion_length;
  options.temperature = p.temperature;
  options.top_k = p.top_k;
  options.top_p = p.top_p;
  options.min_p = p.min_p.value_or(0);
  options.repetition_penalty = p.repetition_penalty;
  options.vocab_size = std::min(parts_.tokenizer->vocab_size(), config_.model_config.vocab_size);
  options.stop_ids = parts_.stop_ids;
  options.training_log_probs = true;
  std::vector<GenerationRequest> all;
  const auto seed = static_cast<uint64_t>(config_.training_config.seed);
  const uint64_t of_batch =
      combine(combine(stream_of("rollouts"), seed), static_cast<uint64_t>(number));
  for (int64_t i = 0; i < plan_.generation_batch; ++i) {
    const auto k = static_cast<uint64_t>(i / num_generations());
    const auto j = static_cast<uint64_t>(i % num_generations());
    GenerationRequest& request = all.emplace_back();
    const auto ids =
        parts_.prompts->sequences.ids(prompts_[static_cast<size_t>(prompt(number, i))]);
    request.prompt.assign(ids.begin(), ids.end());
    request.options = options;
    request.options.seed = combine(combine(of_batch, k), j);
  }
  return all;
}

std::vector<JudgedCompletion> PolicySampler::judged(const RolloutState& state) const {
  std::vector<JudgedCompletion> all;
  for (size_t i = 0; i < state.completions.size(); ++i) {
    const SampledCompletion& one = state.completions[i];
    const auto place = static_cast<size_t>(prompt(state.number, static_cast<int64_t>(i)));
    const std::span<const int32_t> ids = one.ids;
    all.push_back({.line = &lines_[place],
                   .text = data::replace_invalid_utf8(
                       parts_.tokenizer->decode(ids.first(ids.size() - (one.truncated ? 0 : 1)))),
                   .prompt_ids = parts_.prompts->sequences.ids(prompts_[place]),
                   .ids = ids});
  }
  return all;
}

// The batch without what follows from it. Its completions are in `state`, which outlives nothing.
RolloutBatch PolicySampler::batch_of(const RolloutState& state) const {
  RolloutBatch batch;
  batch.num_generations = num_generations();
  for (size_t i = 0; i < state.completions.size(); ++i) {
    const SampledCompletion& one = state.completions[i];
    const auto place = static_cast<size_t>(prompt(state.number, static_cast<int64_t>(i)));
    batch.completions.add(parts_.prompts->sequences.ids(prompts_[place]), one.ids);
    batch.truncated.push_back(one.truncated);
    batch.old_log_probs.add(one.log_probs);
  }
  batch.reward_names = state.reward_names;
  batch.rewards = state.rewards;
  batch.ref_log_probs = state.ref_log_probs;
  set_advantages(config_.post_training_config, batch);
  return batch;
}

RolloutState PolicySampler::sample(int64_t number) {
  check<RuntimeError>(model_ != nullptr, "rollouts: there is no model yet");
  RolloutState state;
  state.number = number;
  Effort effort;
  const auto start = Clock::now();
  {
    const OneOrderScope one_order(config_.post_training_config.zero_mismatch);
    state.completions = sample_completions(*model_, config_, requests(number));
  }
  effort.generation_ms = milliseconds_from(start);
  for (const SampledCompletion& one : state.completions) {
    effort.tokens += std::ssize(one.ids);
  }
  const auto rewarded = Clock::now();
  for (const auto& function : parts_.rewards) {
    state.reward_names.push_back(function->name());
  }
  try {
    state.rewards = reward_completions(parts_.rewards, judged(state));
  } catch (const RewardError& error) {
    throw StepNotBegun(error.what());
  }
  effort.rewards_ms = milliseconds_from(rewarded);
  effort_ = effort;
  return state;
}

const RolloutBatch& PolicySampler::batch(int64_t number) {
  for (const auto& made : made_) {
    if (made->state.number == number) {
      return made->batch;
    }
  }
  check<ValueError>(made_.empty() || number > made_.back()->state.number, "rollouts: batch ",
                    number + 1,
                    " was sampled with weights that are gone; the "
                    "last ones alone can be had again");
  auto next = std::make_unique<Made>();
  next->state = sample(number);
  next->batch = batch_of(next->state);
  if (reference_) {
    next->state.ref_log_probs = reference_->log_probs(next->batch.completions, room_);
    next->batch.ref_log_probs = next->state.ref_log_probs;
  }
  all_or_none(get_world_group(), [&] {
    if (samples_) {
      samples_->write(step_, next->batch, judged(next->state));
    }
  });
  if (made_.size() == kKeptBatches) {
    made_.erase(made_.begin());
  }
  return made_.emplace_back(std::move(next))->batch;
}

void PolicySampler::restore(const std::string& text) {
  auto made = std::make_unique<Made>();
  made->state = parse_rollout_state(text, "training state of the checkpoint");
  check<ValueError>(
      std::ssize(made->state.completions) == plan_.generation_batch,
      "the checkpoint lies in the middle of a generation batch of ",
      std::ssize(made->state.completions), " completions, this run samples ",
      plan_.generation_batch,
      " at once; keep batch_size * micro_batch_num * data-parallel ranks * steps_per_generation, "
      "or go on from a checkpoint between two batches");
  made->batch = batch_of(made->state);
  made_.clear();
  made_.push_back(std::move(made));
}

std::vector<std::unique_ptr<StepObserver>> PolicySampler::observers(const AllConfig& config,
                                                                    TrainOneStepCell& cell) {
  all_or_none(get_world_group(), [&] {
    if (RankContext::current().rank() == 0) {
      samples_.emplace(config.training_config.output_dir + "/samples.jsonl", cell.position().seen);
    }
  });
  std::vector<std::unique_ptr<StepObserver>> out;
  out.push_back(std::make_unique<Watch>(*this));
  return out;
}

}  // namespace tapestry::post_training
