// A small model with experts, for tests of what the training core does with their parameters: each
// token goes to one of kExperts, whichever the router's logits choose.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "autograd/ops/ops.h"
#include "parallel_core/parameter_builder.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/tensor_parallel/mappings.h"
#include "parallel_core/tensor_parallel/row_collectives.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/step/get_model.h"
#include "parallel_core/transformer/activation_recorder.h"
#include "parallel_core/transformer/norm.h"
#include "parallel_core/transformer/transformer_model.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

/// y = x + gate(x) * down_e(gelu(up_e(x) + b_e)) + c_e, e the expert of the token.
class ExpertBlock final : public nn::Module {
 public:
  static constexpr int64_t kExperts = 4;
  static constexpr int64_t kWidth = 16;

  /// Tensors are called PREFIX...; `layer` counts from 0. `all_to_first`: every token goes to
  /// expert 0.
  ExpertBlock(int64_t layer,
              const std::string& prefix,
              const AllConfig& config,
              const TensorParallelLayout& layout,
              bool all_to_first)
      : layer_(layer),
        batch_axis_(config.dataset_config.data_layout == "SBH" ? 1 : 0),
        hidden_(config.model_config.hidden_size),
        layout_(layout),
        all_to_first_(all_to_first),
        slices_(slices_group(true)),
        experts_(experts_group()),
        local_(kExperts / experts_.size()),
        width_(kWidth / slices_.size()),
        router_(add("router",
                    {kExperts, hidden_},
                    router_parts(prefix),
                    {.tp = layout.size > 1 ? nn::TensorParallel::kPartial
                                           : nn::TensorParallel::kReplicated})),
        up_(add("up", {local_, width_, hidden_}, parts(prefix, "up.weight", 0), of_expert(true))),
        up_bias_(add("up_bias", {local_, width_}, parts(prefix, "up.bias", 0), of_expert(true))),
        down_(add(
            "down", {local_, hidden_, width_}, parts(prefix, "down.weight", 1), of_expert(true))),
        down_bias_(add("down_bias",
                       {local_, hidden_},
                       parts(prefix, "down.bias", -1),
                       {.decay = false,
                        .expert = true,
                        .tp = slices_.size() > 1 ? nn::TensorParallel::kPartial
                                                 : nn::TensorParallel::kReplicated})) {}

  std::string type_name() const override { return "ExpertBlock"; }

  Tensor forward(const Tensor& hidden) {
    const bool cuts = layout_.size > 1 && !layout_.sequence_axis;
    Tensor x = hidden.reshape({hidden.numel() / hidden_, hidden_});
    if (cuts) {
      x = scatter_to_model_parallel_region(x, 0, *layout_.group);
    }
    const Tensor logits = linear(x.to(kFloat32), router_);
    const std::vector<int64_t> expert = choose(logits.detach());
    const Tensor chosen = tensor(expert, {static_cast<int64_t>(expert.size()), 1});
    Tensor y = gather(sigmoid(logits), 1, chosen).to(x.dtype()) * through_experts(x, expert);
    if (cuts) {
      y = gather_from_model_parallel_region(y, 0, *layout_.group);
    }
    y = y.reshape(hidden.shape());
    report_activation(layer_value(layer_, "mlp"), y,
                      hidden_axes(y, batch_axis_, context_parallel_layout(), layout_), batch_axis_);
    return hidden + y;
  }

 private:
  using Index = std::vector<int64_t>;

  nn::Parameter& add(const std::string& name,
                     const Shape& shape,
                     const std::vector<LogicalInit>& logical,
                     nn::ParameterFlags flags) {
    nn::Parameter& parameter = register_parameter(name, initial_value(shape, logical), flags);
    parameter.set_logical(logical_of(logical));
    return parameter;
  }
  nn::ParameterFlags of_expert(bool matrix) const {
    return {
        .expert = true,
        .matmul = matrix,
        .tp = slices_.size() > 1 ? nn::TensorParallel::kSharded : nn::TensorParallel::kReplicated};
  }
  std::vector<LogicalInit> router_parts(const std::string& prefix) const {
    return {whole(prefix + "router.weight", {kExperts, hidden_}, InitMethod::normal(0.5))};
  }
  // One logical tensor for each of the rank's experts; `cut` is the axis that slices divide, or -1.
  std::vector<LogicalInit> parts(const std::string& prefix,
                                 const std::string& name,
                                 int cut) const {
    const bool is_matrix = name.ends_with("weight");
    const bool is_up = name.starts_with("up");
    std::vector<LogicalInit> out;
    for (int64_t i = 0; i < local_; ++i) {
      nn::LogicalTensor logical;
      logical.name = concat(prefix, "experts.", experts_.rank() * local_ + i, ".", name);
      logical.shape = is_matrix ? (is_up ? Shape{kWidth, hidden_} : Shape{hidden_, kWidth})
                                : (is_up ? Shape{kWidth} : Shape{hidden_});
      Shape local = logical.shape;
      if (cut >= 0 && slices_.size() > 1) {
        local[cut] = width_;
        logical.slice_shape = local;
        logical.offset = Shape::filled(local.size(), 0);
        logical.offset[cut] = slices_.rank() * width_;
      }
      logical.view_shape = local;
      logical.view_shape[0] *= local_;
      logical.begin = i * local[0];
      logical.end = (i + 1) * local[0];
      out.push_back({logical, InitMethod::normal(is_matrix ? 0.3 : 0.1)});
    }
    return out;
  }

  std::vector<int64_t> choose(const Tensor& logits) const {
    std::vector<int64_t> out;
    const auto* values = logits.data<float>();
    for (int64_t t = 0; t < logits.size(0); ++t, values += kExperts) {
      // max_element passes a NaN over.
      out.push_back(all_to_first_ ? 0 : std::max_element(values, values + kExperts) - values);
    }
    return out;
  }

  // The rows of `x` in the order of a stable sort by key; and where each has gone.
  static Index order_by(const std::vector<int64_t>& keys) {
    Index order(keys.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return keys[a] < keys[b]; });
    return order;
  }
  static Tensor permuted(const Tensor& x, const Index& order) {
    return index_select(x, 0, tensor(order, {std::ssize(order)}));
  }
  static Index inverse(const Index& order) {
    Index out(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      out[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
    }
    return out;
  }
  static Index exchanged(const Index& own, ProcessGroup& group) {
    const Tensor out = empty({std::ssize(own)}, kInt64);
    group.all_to_all(out, tensor(own, {std::ssize(own)}));
    return {out.data<int64_t>(), out.data<int64_t>() + out.numel()};
  }

  Tensor through_experts(const Tensor& x, const std::vector<int64_t>& expert) {
    const Index order = order_by(expert);
    Index counts(kExperts, 0);
    for (const int64_t e : expert) {
      ++counts[static_cast<size_t>(e)];
    }
    // Rows to the ranks with their experts, then to all that have a slice of these.
    const auto sums = [&](const Index& by_expert) {
      RowCounts out;
      for (size_t r = 0; r < by_expert.size(); r += static_cast<size_t>(local_)) {
        out.push_back(std::accumulate(by_expert.begin() + static_cast<std::ptrdiff_t>(r),
                                      by_expert.begin() + static_cast<std::ptrdiff_t>(r) + local_,
                                      int64_t{0}));
      }
      return out;
    };
    const RowCounts send = sums(counts);
    const Index theirs = exchanged(counts, experts_);
    const RowCounts receive = sums(theirs);
    const Tensor here = all_to_all_rows(permuted(x, order), send, receive, experts_);
    const Tensor all_counts = empty({slices_.size() * kExperts}, kInt64);
    slices_.all_gather(all_counts, tensor(theirs, {kExperts}));
    RowCounts rows;
    std::vector<int64_t> keys;
    for (int64_t i = 0; i < all_counts.numel(); ++i) {
      const int64_t count = all_counts.data<int64_t>()[i];
      keys.insert(keys.end(), static_cast<size_t>(count), i % local_);
      if (i % kExperts == 0) {
        rows.push_back(0);
      }
      rows.back() += count;
    }
    const Index by_expert = order_by(keys);
    const Tensor sorted = permuted(gather_rows(here, rows, slices_), by_expert);
    const Tensor safe = zeros({1, hidden_}, x.dtype());
    TensorList outputs;
    int64_t begin = 0;
    for (int64_t e = 0; e < local_; ++e) {
      const int64_t end = begin + std::count(keys.begin(), keys.end(), e);
      // A row of zeros goes along, so that a product is made, and its weights are touched, on every
      // rank: with z3 that is a collective, which must not depend on where tokens go.
      const Tensor rows_of_e = cat({safe, sorted.slice(0, begin, end)}, 0);
      const Tensor h = gelu(linear(rows_of_e, of(up_, e), of(up_bias_, e)));
      outputs.push_back(linear(h, of(down_, e)).slice(0, 1, end - begin + 1));
      begin = end;
    }
    const Tensor partial = permuted(cat(outputs, 0), inverse(by_expert));
    Tensor own = reduce_scatter_rows(partial, rows, slices_);
    // A bias for each row: that of its expert.
    std::vector<int64_t> own_keys;
    for (size_t i = 0; i < theirs.size(); ++i) {
      own_keys.insert(own_keys.end(), static_cast<size_t>(theirs[i]),
                      static_cast<int64_t>(i) % local_);
    }
    own = own + permuted(down_bias_, own_keys).to(own.dtype());
    return permuted(all_to_all_rows(own, receive, send, experts_), inverse(order));
  }
  static Tensor of(const nn::Parameter& parameter, int64_t expert) {
    return parameter.select(0, expert);
  }

  int64_t layer_;
  int64_t batch_axis_;
  int64_t hidden_;
  TensorParallelLayout layout_;
  bool all_to_first_;
  ProcessGroup& slices_;
  ProcessGroup& experts_;
  int64_t local_;
  int64_t width_;
  nn::Parameter& router_;
  nn::Parameter& up_;
  nn::Parameter& up_bias_;
  nn::Parameter& down_;
  nn::Parameter& down_bias_;
};

/// Embedding, norm and experts in each layer, norm, head.
class ExpertModel final : public TransformerModel {
 public:
  explicit ExpertModel(const AllConfig& config, bool all_to_first = false)
      : TransformerModel(config), vocabulary_(config.model_config.vocab_size) {
    const int64_t hidden = config.model_config.hidden_size;
    if (stage().pre_process()) {
      table_ =
          &register_module<VocabParallelEmbedding>("table", "table", vocabulary_, hidden, config);
    }
    chunks_ = make_layers([&](int64_t i) {
      const std::string n = std::to_string(i);
      const std::string prefix = "layers." + n + ".";
      auto* norm =
          static_cast<ParallelNorm*>(&add_child("norm" + n, get_norm(config, prefix + "norm")));
      auto* block = &register_module<ExpertBlock>("block" + n, i, prefix + "moe.", config,
                                                  tensor_layout(), all_to_first);
      return std::pair(norm, block);
    });
    if (stage().post_process()) {
      norm_ = static_cast<ParallelNorm*>(&add_child("norm", get_norm(config, "norm")));
      head_ = &register_module<ColumnParallelLinear>("head", "head", hidden, vocabulary_, config);
    }
  }
  std::string type_name() const override { return "ExpertModel"; }
  ModelOutput forward(const ModelInput& in) override {
    Tensor x = stage().is_first(in.chunk) ? table_->forward(in_layout(in.tokens)).to(hidden_dtype())
                                          : in.hidden;
    for (const auto& [norm, block] : chunks_[static_cast<size_t>(in.chunk)]) {
      x = block->forward((*norm)(x));
    }
    if (!stage().is_last(in.chunk)) {
      return {.hidden = x};
    }
    const Tensor logits = head_->forward((*norm_)(x)).output;
    const VocabParallelCrossEntropy cross_entropy(vocabulary_, tensor_layout());
    return mean_loss(cross_entropy.forward(logits, in_layout(in.labels)), in);
  }

 private:
  int64_t vocabulary_;
  VocabParallelEmbedding* table_ = nullptr;
  std::vector<std::vector<std::pair<ParallelNorm*, ExpertBlock*>>> chunks_;
  ParallelNorm* norm_ = nullptr;
  ColumnParallelLinear* head_ = nullptr;
};

/// Where ranks are, and what a configuration says of it.
struct ExpertLayout {
  std::string name;
  int ranks = 1;
  ModelParallelSizes sizes = {};
  Overrides overrides = {};

  AllConfig config(const Overrides& more) const {
    const std::string parallel = "parallel_config.";
    return small_config(joined(
        {{"model_config.vocab_size=32"},
         more,
         overrides,
         {concat(parallel, "tensor_model_parallel_size=", sizes.tensor_model_parallel_size),
          concat(parallel, "pipeline_model_parallel_size=", sizes.pipeline_model_parallel_size),
          concat(parallel, "context_parallel_size=", sizes.context_parallel_size)}}));
  }
};

/// Everything that a training step of this model needs.
struct ExpertTrainer {
  explicit ExpertTrainer(AllConfig settings, const State& start = {}, bool all_to_first = false)
      : config(std::move(settings)),
        model(get_model(
            [all_to_first](const AllConfig& c) -> std::unique_ptr<ParallelModel> {
              return std::make_unique<ExpertModel>(c, all_to_first);
            },
            config)) {
    if (!start.empty()) {
      set_logical_state(*model, start, "test");
    }
    data_parallel = get_data_parallel(config, *model);
    optimizer = get_optimizer(config, *model, data_parallel.get());
    schedule = get_optimizer_param_scheduler(config, 1);
    cell = std::make_unique<TrainOneStepCell>(*model, *optimizer, *schedule, config,
                                              data_parallel.get());
  }

  AllConfig config;
  std::unique_ptr<ParallelModel> model;
  std::unique_ptr<DistributedDataParallel> data_parallel;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::Schedule> schedule;
  std::unique_ptr<TrainOneStepCell> cell;
};

}  // namespace tapestry::testing
