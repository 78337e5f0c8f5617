#include "parallel_core/distributed/distributed_data_parallel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/generator.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/distributed/finalize_model_grads.h"
#include "parallel_core/frozen_parameters.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_ranks.h"

namespace tapestry {

namespace {

// Buckets whose reduction may be under way at once where their memory goes afterwards.
constexpr size_t kReductionsUnderWay = 2;
// Paged parameters that no op uses any more and that stay when another one has come, that one
// among them: backward begins with what forward has ended with.
constexpr size_t kPagesInReserve = 2;

}  // namespace

struct DistributedDataParallel::State final : optim::ParameterShards {
  struct Place {
    size_t bucket = 0;
    size_t index = 0;  // in the bucket
    int64_t received = 0;
  };

  State(DataParallelOptions options_, ProcessGroup& group_, ProcessGroup* expert_group_)
      : options(std::move(options_)), group(group_), expert_group(expert_group_) {}

  bool is_expert(const nn::Parameter& parameter) const {
    return expert_group != nullptr && parameter.flags().expert;
  }

  void make_buckets(const std::vector<nn::Module::NamedParameter>& parameters);
  void add_bucket(std::vector<ParamAndGradBucket::Placed> placed, DType dtype, bool paged);
  void opened(ParamAndGradBucket& bucket);
  void received(size_t number);
  void reduce(size_t number);
  void measure(const ParamAndGradBucket::Placed& placed);
  const ParamAndGradBucket::Placed& placed_of(const std::string& name) const;
  const Place& place_of(const std::string& name) const;

  Shape shape(const std::string& name) const override { return placed_of(name).parameter->shape(); }
  int64_t first_element(const std::string& name) const override {
    const ParamAndGradBucket& bucket = bucket_of(name);
    return bucket.range_of(placed_of(name), bucket.group().rank()).first;
  }
  Tensor piece_of(const std::string& name, const Tensor& whole) const override;
  Tensor whole_of(const std::string& name, const Tensor& piece) const override;
  const ParamAndGradBucket& bucket_of(const std::string& name) const {
    return *buckets[place_of(name).bucket];
  }

  DataParallelOptions options;
  ProcessGroup& group;
  ProcessGroup* expert_group;  // null: experts are like all others
  std::vector<std::unique_ptr<ParamAndGradBucket>> buckets;
  std::vector<std::string> names;  // of the parameters in the order of their making
  std::vector<Place> places;       // of the same
  std::map<std::string, size_t> numbers;

  bool hooks_are_active = false;
  int64_t passes = 0;
  std::vector<int64_t> missing;  // gradients, by bucket
  std::vector<bool> reduced;     // in this step, by bucket
  std::vector<bool> is_late;     // reduced after all backward passes, by bucket
  std::deque<size_t> under_way;
  std::deque<ParamAndGradBucket*> open_pages;

  // of local gradients; the owner's
  std::function<bool(const std::string&)> is_measured;
  std::map<std::string, double>* local_squares = nullptr;
  std::map<std::string, Tensor> local_sums;  // over the passes of a step that free their gradients
};

namespace {

// Parameters on their way into buckets of one dtype.
struct OpenBucket {
  std::vector<ParamAndGradBucket::Placed> placed;
  int64_t size = 0;
};

bool is_paged(const nn::Parameter& parameter) { return parameter.dim() >= 2; }

}  // namespace

void DistributedDataParallel::State::add_bucket(std::vector<ParamAndGradBucket::Placed> placed,
                                                DType dtype,
                                                bool paged) {
  ProcessGroup& ranks = is_expert(*placed.front().parameter) ? *expert_group : group;
  // Alone, a rank keeps its pieces where the parameters are: there is nothing to be shared.
  const bool alone = expert_group != nullptr && ranks.size() == 1;
  buckets.push_back(std::make_unique<ParamAndGradBucket>(
      std::move(placed),
      ParamAndGradBucket::Options{
          .sharding = alone ? std::min(options.sharding, Sharding::kOptimizer) : options.sharding,
          .paged = paged && !alone,
          .param_dtype = dtype,
          .compute_dtype = options.compute_dtype,
          .grad_dtype = options.grad_dtype,
          .exact = options.exact,
          .seed = options.seed,
          .on_open = [this](ParamAndGradBucket& page) { opened(page); }},
      ranks));
  is_late.push_back(false);
  const size_t bucket = buckets.size() - 1;
  const auto& parameters = buckets.back()->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    Place& place = places[numbers.at(parameters[i].name)];
    place.bucket = bucket;
    place.index = i;
  }
}

// Lets pages go that no op uses, but for the last ones.
void DistributedDataParallel::State::opened(ParamAndGradBucket& bucket) {
  if (options.keeps_gathered_parameters) {
    return;
  }
  if (std::find(open_pages.begin(), open_pages.end(), &bucket) == open_pages.end()) {
    open_pages.push_back(&bucket);
  }
  auto page = open_pages.begin();
  while (open_pages.size() > kPagesInReserve && page != open_pages.end()) {
    if (*page == &bucket || (*page)->is_leased()) {
      ++page;
      continue;
    }
    (*page)->close();
    page = open_pages.erase(page);
  }
}

void DistributedDataParallel::State::make_buckets(
    const std::vector<nn::Module::NamedParameter>& parameters) {
  for (const nn::Module::NamedParameter& entry : parameters) {
    numbers.emplace(entry.name, names.size());
    names.push_back(entry.name);
  }
  places.resize(names.size());
  std::map<std::pair<bool, DType>, OpenBucket> open;  // of experts or not
  for (auto entry = parameters.rbegin(); entry != parameters.rend(); ++entry) {
    nn::Parameter& parameter = *entry->parameter;
    const bool moves = options.sharding != Sharding::kNone && options.param_dtype;
    const DType dtype = moves ? options.param_dtype(parameter) : parameter.dtype();
    const bool paged = options.sharding == Sharding::kParameters && is_paged(parameter);
    const bool isolated = options.isolated && options.isolated(parameter);
    if (paged || isolated) {
      add_bucket({{entry->name, &parameter}}, dtype, paged);
      is_late.back() = isolated;
      continue;
    }
    OpenBucket& bucket = open[{is_expert(parameter), dtype}];
    bucket.placed.push_back({entry->name, &parameter});
    bucket.size += parameter.numel();
    if (options.bucket_size > 0 && bucket.size >= options.bucket_size) {
      add_bucket(std::move(bucket.placed), dtype, false);
      bucket = {};
    }
  }
  for (auto& [kind, bucket] : open) {
    if (!bucket.placed.empty()) {
      add_bucket(std::move(bucket.placed), kind.second, false);
    }
  }
}

const DistributedDataParallel::State::Place& DistributedDataParallel::State::place_of(
    const std::string& name) const {
  const auto found = numbers.find(name);
  check<ValueError>(found != numbers.end(), "data parallel: there is no parameter '", name, "'");
  return places[found->second];
}

const ParamAndGradBucket::Placed& DistributedDataParallel::State::placed_of(
    const std::string& name) const {
  const Place& place = place_of(name);
  return buckets[place.bucket]->parameters()[place.index];
}

Tensor DistributedDataParallel::State::piece_of(const std::string& name,
                                                const Tensor& whole) const {
  const auto& placed = placed_of(name);
  check<ValueError>(whole.defined() && whole.shape() == placed.parameter->shape(),
                    "data parallel: the values for '", name, "' are ", describe(whole),
                    ", the parameter has the shape ", placed.parameter->shape());
  const ParamAndGradBucket& bucket = bucket_of(name);
  const auto [begin, end] = bucket.range_of(placed, bucket.group().rank());
  const Tensor values = dense(whole);
  return dense_copy(alias(values, {end - begin}, {1}, values.offset() + (begin < end ? begin : 0)));
}

Tensor DistributedDataParallel::State::whole_of(const std::string& name,
                                                const Tensor& piece) const {
  const auto& placed = placed_of(name);
  const ParamAndGradBucket& bucket = bucket_of(name);
  ProcessGroup& ranks = bucket.group();
  std::vector<std::pair<int64_t, int64_t>> ranges;
  int64_t longest = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    ranges.push_back(bucket.range_of(placed, rank));
    longest = std::max(longest, ranges.back().second - ranges.back().first);
  }
  const MemoryKindGuard kind(MemoryKind::kWorkspace);
  const Tensor own = zeros({longest}, piece.dtype());
  copy_values(piece, alias(own, {piece.numel()}, {1}, 0));
  const Tensor all = empty({longest * ranks.size()}, piece.dtype());
  ranks.all_gather(all, own);
  Tensor whole = empty(placed.parameter->shape(), piece.dtype());
  for (size_t rank = 0; rank < ranges.size(); ++rank) {
    const auto [begin, end] = ranges[rank];
    if (begin < end) {
      copy_values(alias(all, {end - begin}, {1}, static_cast<int64_t>(rank) * longest),
                  alias(whole, {end - begin}, {1}, begin));
    }
  }
  return whole;
}

// Called after the backward pass that is running has added all it has to a parameter's gradient.
void DistributedDataParallel::State::received(size_t number) {
  if (!hooks_are_active) {
    return;
  }
  Place& place = places[number];
  const bool frees = buckets[place.bucket]->frees_gradients();
  if (is_late[place.bucket] || !(frees || options.overlap_grad_reduce)) {
    return;
  }
  ++place.received;
  if (frees) {
    if (place.received == 1 && --missing[place.bucket] == 0) {
      reduce(place.bucket);
    }
    return;
  }
  check<RuntimeError>(!reduced[place.bucket], "data parallel: '", names[number],
                      "' got a gradient after its bucket was reduced; the model uses it in a part "
                      "that is run backwards by itself (recomputation), which overlap_grad_reduce "
                      "does not allow");
  if (place.received == passes && --missing[place.bucket] == 0) {
    reduce(place.bucket);
  }
}

void DistributedDataParallel::State::measure(const ParamAndGradBucket::Placed& placed) {
  Tensor gradient = placed.parameter->main_grad();
  if (passes > 1 && bucket_of(placed.name).frees_gradients()) {
    const MemoryKindGuard kind(MemoryKind::kGradient);
    const DType dtype = options.exact ? kFloat64 : kFloat32;
    gradient = gradient.dtype() == dtype ? gradient : gradient.to(dtype);
    Tensor& sum = local_sums[placed.name];
    if (sum.defined()) {
      kernels::axpy(dtype, gradient.numel(), 1, gradient.raw(), sum.raw());
    } else {
      sum = dense_copy(gradient);
    }
    gradient = sum;
  }
  (*local_squares)[placed.name] =
      kernels::sum_of_squares(gradient.dtype(), gradient.numel(), gradient.raw()) *
      (options.exact ? std::ldexp(1.0, 2 * kernels::kExactUnitExponent) : 1.0);
}

void DistributedDataParallel::State::reduce(size_t number) {
  ParamAndGradBucket& bucket = *buckets[number];
  if (options.complete_gradients) {
    std::vector<const nn::Parameter*> parameters;
    for (const auto& placed : bucket.parameters()) {
      parameters.push_back(placed.parameter);
    }
    options.complete_gradients(parameters);
  }
  for (const auto& placed : bucket.parameters()) {
    if (is_measured(placed.name)) {
      measure(placed);
    }
  }
  bucket.start_reduce();
  reduced[number] = true;
  if (!bucket.frees_gradients()) {
    return;
  }
  for (const auto& placed : bucket.parameters()) {
    places[numbers.at(placed.name)].received = 0;
  }
  missing[number] = static_cast<int64_t>(bucket.parameters().size());
  if (!options.overlap_grad_reduce) {
    bucket.finish_reduce();
    return;
  }
  under_way.push_back(number);
  if (under_way.size() > kReductionsUnderWay) {
    buckets[under_way.front()]->finish_reduce();
    under_way.pop_front();
  }
}

DistributedDataParallel::DistributedDataParallel(
    const std::vector<nn::Module::NamedParameter>& parameters,
    const DataParallelOptions& options,
    ProcessGroup& group,
    ProcessGroup* expert_group)
    : state_(std::make_shared<State>(options, group, expert_group)) {
  state_->is_measured = [this](const std::string& name) { return is_measured(name); };
  state_->local_squares = &squares_of_step();
  state_->make_buckets(parameters);
  state_->options.param_dtype = nullptr;
  state_->options.isolated = nullptr;
  if (!options.overlap_grad_reduce && options.sharding < Sharding::kGradients) {
    return;
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    // Hooks outlive this object.
    parameters[i].parameter->register_post_accumulate_grad_hook(
        [state = std::weak_ptr(state_), i](const Tensor&) {
          if (const auto alive = state.lock()) {
            alive->received(i);
          }
        });
  }
}

DistributedDataParallel::~DistributedDataParallel() { state_->hooks_are_active = false; }

ProcessGroup& DistributedDataParallel::group() const { return state_->group; }
ProcessGroup& DistributedDataParallel::expert_group() const {
  return state_->expert_group != nullptr ? *state_->expert_group : state_->group;
}
const DataParallelOptions& DistributedDataParallel::options() const { return state_->options; }
size_t DistributedDataParallel::num_buckets() const { return state_->buckets.size(); }

int64_t DistributedDataParallel::size() const {
  int64_t total = 0;
  for (const auto& bucket : state_->buckets) {
    total += bucket->size();
  }
  return total;
}

std::shared_ptr<const optim::ParameterShards> DistributedDataParallel::shards() const {
  return state_;
}

std::vector<ParameterPiece> DistributedDataParallel::pieces() const {
  std::vector<ParameterPiece> out;
  for (const State::Place& place : state_->places) {
    out.push_back(state_->buckets[place.bucket]->pieces()[place.index]);
  }
  return out;
}

void DistributedDataParallel::start_step(int64_t step, int64_t backward_passes) {
  State& s = *state_;
  s.hooks_are_active = true;
  s.passes = backward_passes;
  squares_of_step().clear();
  set_largest_sum({});
  s.reduced.assign(s.buckets.size(), false);
  s.missing.clear();
  for (const auto& bucket : s.buckets) {
    bucket->zero(step);
    s.missing.push_back(static_cast<int64_t>(bucket->parameters().size()));
  }
  for (State::Place& place : s.places) {
    place.received = 0;
  }
}

void DistributedDataParallel::finish_reduce() {
  State& s = *state_;
  s.hooks_are_active = false;
  for (size_t i = 0; i < s.buckets.size(); ++i) {
    // What a backward pass did not use is reduced here; from z2 on, also what only some used.
    const bool has_more = s.buckets[i]->frees_gradients() &&
                          s.missing[i] != static_cast<int64_t>(s.buckets[i]->parameters().size());
    if (!s.reduced[i] || has_more) {
      s.reduce(i);
    }
  }
  s.under_way.clear();
  for (const auto& bucket : s.buckets) {
    bucket->finish_reduce();
  }
  s.local_sums.clear();
  if (exact()) {
    round_gradients();
  }
}

void DistributedDataParallel::round_gradients() {
  LargestSum largest;
  for (const auto& bucket : state_->buckets) {
    const double units = bucket->round_gradients();
    if (std::isnan(units)) {
      largest.units = units;
    } else if (units > largest.units) {  // never, once that is NaN
      largest = {units, units > kernels::kExactLimit ? bucket->largest_gradient().name : ""};
    }
  }
  set_largest_sum(std::move(largest));
}

ModelGradients::Held DistributedDataParallel::held_gradient(
    const nn::Module::NamedParameter& entry) const {
  if (!shards_optimizer()) {
    return {entry.parameter->main_grad(), 0};
  }
  const State::Place& place = state_->place_of(entry.name);
  const ParameterPiece& piece = state_->buckets[place.bucket]->pieces()[place.index];
  return {piece.gradient, piece.begin};
}

void DistributedDataParallel::scale(double factor) {
  for (const auto& bucket : state_->buckets) {
    bucket->scale(factor);
  }
}

double DistributedDataParallel::squares(
    const std::function<bool(const nn::Parameter&)>& counts) const {
  double own = 0;
  for (const auto& bucket : state_->buckets) {
    own += bucket->squares(counts);
  }
  return own;
}

double DistributedDataParallel::sum_over_pieces(double value, bool of_experts) const {
  return shards_optimizer() ? sum_over(of_experts ? expert_group() : group(), value) : value;
}

ProcessGroup* DistributedDataParallel::pieces_group(bool of_experts) const {
  if (!shards_optimizer()) {
    return nullptr;
  }
  return of_experts ? &expert_group() : &group();
}

void DistributedDataParallel::gather_gradients() {
  for (const auto& bucket : state_->buckets) {
    bucket->gather_gradients();
  }
}

void DistributedDataParallel::release_gradients() {
  for (const auto& bucket : state_->buckets) {
    bucket->release_gradients();
  }
}

void DistributedDataParallel::parameters_changed() {
  if (!shards_optimizer()) {
    return;
  }
  state_->open_pages.clear();
  auto& buckets = state_->buckets;
  for (auto bucket = buckets.rbegin(); bucket != buckets.rend();
       ++bucket) {  // as forward uses them
    (*bucket)->start_gather();
  }
  if (!options().overlap_param_gather) {
    finish_gather();
  }
}

void DistributedDataParallel::finish_gather() {
  for (const auto& bucket : state_->buckets) {
    bucket->finish_gather();
  }
}

namespace {

// The dtype that get_optimizer stores a float32 parameter in.
DType stored_dtype(const AllConfig& config, const nn::Parameter& parameter) {
  const DType params = trained_dtype(parameter, config.model_config.params_dtype);
  if (parameter.dtype() != kFloat32 || params != kFloat32) {
    return parameter.dtype() == kFloat32 ? params : parameter.dtype();
  }
  const bool split = config.optimizer_config.store_param_remainders && parameter.flags().matmul;
  return split ? kBFloat16 : kFloat32;
}

}  // namespace

std::unique_ptr<DistributedDataParallel> get_data_parallel(const AllConfig& config,
                                                           const nn::Module& model) {
  ProcessGroup& group = copies_group(/*of_expert=*/false);
  ProcessGroup* const expert_group =
      has_experts(model) ? &copies_group(/*of_expert=*/true) : nullptr;
  const int ranks = std::max(group.size(), expert_group == nullptr ? 1 : expert_group->size());
  if (ranks == 1) {
    return nullptr;
  }
  const TrainingConfig& t = config.training_config;
  check<ValueError>(!config.optimizer_config.optimizer_in_backward,
                    "optimizer_config.optimizer_in_backward updates a weight before its gradient "
                    "could be summed over ranks; it needs one data- and context-parallel rank",
                    expert_group == nullptr ? "" : ", and one that has the same experts",
                    ", there are ", ranks);
  const auto sharding = static_cast<Sharding>(zero_level(config));
  // Without overlap one message for everything is best, unless memory is to go piece by piece.
  const bool in_buckets = t.overlap_grad_reduce || config.optimizer_config.overlap_param_gather ||
                          t.bucket_size || sharding >= Sharding::kGradients;
  const bool last_stages_wait = t.delay_grad_reduce && !is_pipeline_first_stage();
  const DataParallelOptions options{
      .sharding = sharding,
      .bucket_size = in_buckets ? bucket_size(config, ranks) : 0,
      .overlap_grad_reduce = t.overlap_grad_reduce && !last_stages_wait,
      .overlap_param_gather = config.optimizer_config.overlap_param_gather,
      .grad_dtype = config.optimizer_config.main_grads_dtype,
      .exact = t.exact,
      .compute_dtype = config.model_config.compute_dtype,
      .seed = static_cast<uint64_t>(t.seed),
      .param_dtype =
          [&config](const nn::Parameter& parameter) { return stored_dtype(config, parameter); },
      .complete_gradients =
          [](const ParameterList& parameters) { finalize_model_grads(parameters); },
      // The gradients of tied embeddings are summed over stages, which must cut them alike.
      .isolated =
          [](const nn::Parameter& parameter) {
            return parameter.flags().shared || parameter.flags().has_copy;
          },
      .keeps_gathered_parameters = keeps_gathered_weights(config)};
  return std::make_unique<DistributedDataParallel>(model.trained_parameters(), options, group,
                                                   expert_group);
}

namespace {

uint64_t checksum(const Tensor& values) {
  const Tensor all = dense(values);
  const auto bytes = static_cast<size_t>(all.numel() * size_of(all.dtype()));
  const auto* data = static_cast<const std::byte*>(all.raw());
  uint64_t sum = bytes;
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, data + i, std::min(sizeof(word), bytes - i));
    sum = (sum ^ word) * 0x9e3779b97f4a7c15U;  // odd, so that nothing is lost
    sum ^= sum >> 32U;
  }
  return sum;
}

// Throws unless the sums are the same on all ranks of the group.
void check_equal_sums(const std::vector<std::string>& names,
                      const std::vector<int64_t>& own,
                      const char* ranks,
                      ProcessGroup& group) {
  const auto count = static_cast<int64_t>(own.size());
  const Tensor all = empty({count * group.size()}, kInt64);
  group.all_gather(all, tensor(own, {count}));
  const auto* sums = all.data<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    for (int rank = 1; rank < group.size(); ++rank) {
      check<RuntimeError>(sums[rank * count + i] == sums[i], "the weights '",
                          names[static_cast<size_t>(i)], "' of ", ranks, " ranks 0 and ", rank,
                          " differ before the first step; ranks must start from the same seed and "
                          "checkpoint");
    }
  }
}

}  // namespace

void check_equal_parameters(const nn::Module& model,
                            ProcessGroup& group,
                            ProcessGroup* expert_group) {
  for (const bool of_experts : {false, true}) {
    ProcessGroup& experts = expert_group != nullptr ? *expert_group : copies_group(true);
    ProcessGroup& ranks = of_experts ? experts : group;
    if (ranks.size() == 1) {
      continue;
    }
    std::vector<std::string> names;
    std::vector<int64_t> own;
    for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
      if (entry.parameter->flags().expert == of_experts) {
        names.push_back(entry.name);
        own.push_back(static_cast<int64_t>(checksum(entry.parameter->detach())));
      }
    }
    if (!names.empty()) {
      check_equal_sums(names, own, of_experts ? "data-modulo-expert-parallel" : "data-parallel",
                       ranks);
    }
  }
}

}  // namespace tapestry
