#include "diagnosis/verify/faults/known_models.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "autograd/tensor/error.h"
#include "diagnosis/verify/faults/known_rules.h"
#include "diagnosis/verify/layout_text.h"
#include "parallel_core/training/data/run_data.h"

namespace tapestry {

namespace {

struct ModelChange {
  std::string text;
  std::vector<std::string> overrides;
  bool shifts_labels = false;
};

class ModelChanges {
 public:
  void set(const std::string& key, const std::string& value) {
    all.push_back({concat("as if ", key, " were ", value), {concat(key, "=", value)}});
  }
  std::vector<ModelChange> all;
};

void add_rotations(const TransformerConfig& c, ModelChanges& changes) {
  const std::string rotary = "model_config.rotary_config.";
  if (c.position_embedding_type != "rope") {
    return;
  }
  for (const double base : {1e3, 1e4, 1e5, 5e5, 1e6, 5e6, 1e7}) {
    if (base != c.rotary_config.rotary_base) {
      changes.set(rotary + "rotary_base", short_text(base));
    }
  }
  changes.set(rotary + "rotary_interleaved", c.rotary_config.rotary_interleaved ? "False" : "True");
  for (const double share : {0.25, 0.5, 1.0}) {
    if (share != c.rotary_config.rotary_percent) {
      changes.set(rotary + "rotary_percent", short_text(share));
    }
  }
  for (const double factor : {1.0, 2.0, 4.0, 8.0}) {
    if (factor != c.rotary_config.seq_len_interpolation_factor.value_or(1)) {
      changes.set(rotary + "seq_len_interpolation_factor", short_text(factor));
    }
  }
  changes.set("model_config.position_embedding_type", "none");
}

void add_experts(const MoEConfig& moe, ModelChanges& changes) {
  if (moe.num_experts < 2) {
    return;
  }
  const bool sums = moe.norm_topk_prob.value_or(!moe.moe_router_pre_softmax);
  if (moe.moe_router_score_function == "softmax") {
    changes.all.push_back(
        {concat("as if moe_config.norm_topk_prob were ", sums ? "False" : "True"),
         {concat("moe_config.norm_topk_prob=", sums ? "False" : "True"),
          concat("moe_config.moe_router_pre_softmax=", sums ? "True" : "False")}});
  } else {
    changes.set("moe_config.norm_topk_prob", sums ? "False" : "True");
  }
  for (int64_t k = 1; k <= std::min<int64_t>(moe.num_experts, 8); ++k) {
    if (k != moe.moe_router_topk) {
      changes.set("moe_config.moe_router_topk", std::to_string(k));
    }
  }
  for (const double factor : {1.0, 2.5}) {
    if (factor != moe.moe_router_topk_scaling_factor) {
      changes.set("moe_config.moe_router_topk_scaling_factor", short_text(factor));
    }
  }
  for (const double weight : {0.0, 0.001, 0.01, 0.02}) {
    changes.set("moe_config.moe_aux_loss_coeff", short_text(weight));
  }
}

std::vector<ModelChange> changes_of(const AllConfig& config) {
  const TransformerConfig& c = config.model_config;
  ModelChanges changes;
  for (const double eps : {0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2}) {
    if (eps != c.norm_epsilon) {
      changes.set("model_config.norm_epsilon", short_text(eps));
    }
  }
  for (const std::string act : {"gelu", "fast_gelu", "relu", "silu", "squared_relu"}) {
    if (act != c.hidden_act && c.hidden_act.find("swiglu") == std::string::npos) {
      changes.set("model_config.hidden_act", act);
    }
  }
  add_rotations(c, changes);
  add_experts(c.moe, changes);
  changes.set("model_config.apply_residual_connection_post_norm",
              c.apply_residual_connection_post_norm ? "False" : "True");
  changes.set("training_config.calculate_per_token_loss",
              config.training_config.calculate_per_token_loss ? "False" : "True");
  changes.all.push_back(
      {"as if labels were shifted once more: each token predicts the one after "
       "the next",
       {},
       true});
  return changes.all;
}

// Batches of another source, whose labels are those of the next position; the last has none.
class ShiftedLabels final : public data::DataSource {
 public:
  explicit ShiftedLabels(std::unique_ptr<data::DataSource> source) : source_(std::move(source)) {}

  data::Batch micro_batch(data::BatchPosition position,
                          int64_t micro_index,
                          int64_t micro_batch_num,
                          int64_t micro_batch_size,
                          int64_t dp_rank,
                          int64_t dp_size) override {
    data::Batch batch = source_->micro_batch(position, micro_index, micro_batch_num,
                                             micro_batch_size, dp_rank, dp_size);
    for (int64_t row = 0; row < batch.batch; ++row) {
      const int64_t end = (row + 1) * batch.seq - 1;
      for (int64_t i = row * batch.seq; i < end; ++i) {
        batch.labels[static_cast<size_t>(i)] = batch.labels[static_cast<size_t>(i) + 1];
        batch.loss_mask[static_cast<size_t>(i)] = batch.loss_mask[static_cast<size_t>(i) + 1];
      }
      batch.loss_mask[static_cast<size_t>(end)] = 0;
    }
    return batch;
  }
  int64_t seq_length() const override { return source_->seq_length(); }
  int64_t size_in_samples() const override { return source_->size_in_samples(); }
  int64_t epoch(int64_t first_sample) const override { return source_->epoch(first_sample); }

 private:
  std::unique_ptr<data::DataSource> source_;
};

// Whether the steps up to `step` have the reference's numbers, and any of them.
bool agrees(const OwnRun& run, int64_t step, const StepComparison& measured) {
  const StepComparison comparison(measured, run);
  bool any = false;
  for (int64_t at = 1; at <= step; ++at) {
    for (const ComparedQuantity& each : comparison.compare(at)) {
      const bool of_update = each.stage == "optimizer" || each.stage == "schedule";
      // Of values and gradients; how many tokens count a change of the loss changes, too.
      if (of_update || each.finding.what == Compared::kTokens) {
        continue;
      }
      any = true;
      if (!each.finding.agrees()) {
        return false;
      }
    }
  }
  return any;
}

}  // namespace

std::vector<std::string> models_that_agree(FaultSearch& search,
                                           int64_t step,
                                           const StepComparison& measured) {
  constexpr size_t kMost = 3;
  std::vector<std::string> texts;
  const std::vector<std::string> one_process =
      single_process_overrides(search.config, search.ranks);
  for (const ModelChange& change : changes_of(search.single)) {
    std::vector<std::string> overrides = one_process;
    overrides.insert(overrides.end(), change.overrides.begin(), change.overrides.end());
    VerifyOptions options = search.training;
    options.start_weights = [&](const ParallelModel& /*model*/) { return search.start; };
    if (change.shifts_labels) {
      const auto data = options.parts.data;
      options.parts.data = [data](const AllConfig& config) -> std::unique_ptr<data::DataSource> {
        return std::make_unique<ShiftedLabels>(data ? data(config) : open_data(config).train);
      };
    }
    try {
      const AllConfig config = search.load(overrides);
      OwnTraining process(config, options);
      if (texts.size() < kMost && agrees(process.train(step), step, measured)) {
        texts.push_back(change.text);
      }
    } catch (const Error&) {  // no such model, or not with these weights
      continue;
    }
  }
  return texts;
}

}  // namespace tapestry
