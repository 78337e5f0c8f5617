#include <algorithm>
#include <utility>

#include "autograd/ops/loss.h"
#include "autograd/ops/ops.h"
#include "parallel_core/training/data/run_data.h"
#include "parallel_core/training/step/get_model.h"
#include "tests/parallel_core/drill/op_fault.h"
#include "tests/parallel_core/drill/planted_faults.h"

namespace tapestry::testing {

namespace {

// Gets what it has from another source, and the position in the run with it.
using BatchChange = std::function<void(data::Batch& batch, const data::BatchPosition& position)>;

class ChangedData final : public data::DataSource {
 public:
  ChangedData(std::unique_ptr<data::DataSource> inner, BatchChange change, bool swaps_micro_batches)
      : inner_(std::move(inner)),
        change_(std::move(change)),
        swaps_micro_batches_(swaps_micro_batches) {}

  data::Batch micro_batch(data::BatchPosition position,
                          int64_t micro_index,
                          int64_t micro_batch_num,
                          int64_t micro_batch_size,
                          int64_t dp_rank,
                          int64_t dp_size) override {
    const int64_t index = swaps_micro_batches_ ? micro_batch_num - 1 - micro_index : micro_index;
    data::Batch batch =
        inner_->micro_batch(position, index, micro_batch_num, micro_batch_size, dp_rank, dp_size);
    if (change_) {
      change_(batch, position);
    }
    return batch;
  }
  int64_t seq_length() const override { return inner_->seq_length(); }
  int64_t size_in_samples() const override { return inner_->size_in_samples(); }
  int64_t epoch(int64_t sample) const override { return inner_->epoch(sample); }

 private:
  std::unique_ptr<data::DataSource> inner_;
  BatchChange change_;
  bool swaps_micro_batches_;
};

std::function<void(FindFaultOptions&)> changed_data(const BatchChange& change,
                                                    bool swaps_micro_batches = false) {
  return [=](FindFaultOptions& options) {
    options.training.parts.data =
        [=](const AllConfig& config) -> std::unique_ptr<data::DataSource> {
      return std::make_unique<ChangedData>(open_data(config).train, change, swaps_micro_batches);
    };
  };
}

std::function<void(FindFaultOptions&)> other_loss(const TokenLoss& loss) {
  return [loss](FindFaultOptions& options) {
    options.training.parts.model = [loss](const AllConfig& config) {
      return get_model(config, loss);
    };
  };
}

std::function<void(FindFaultOptions&)> step_with(const std::function<void(TrainingConfig&)>& set) {
  return [set](FindFaultOptions& options) {
    options.training.parts.step_config = [set](const AllConfig& config) {
      AllConfig changed = config;
      set(changed.training_config);
      return changed;
    };
  };
}

}  // namespace

std::vector<PlantedFault> data_faults() {
  return {
      {"order_of_micro_batches", {}, changed_data({}, true), {"data"}, "tokens"},
      {"labels_not_shifted",
       {},
       changed_data([](data::Batch& b, const data::BatchPosition&) { b.labels = b.tokens; }),
       {"data"},
       "labels"},
      {"loss_mask_off_by_one",
       {},
       changed_data([](data::Batch& b, const data::BatchPosition&) {
         std::rotate(b.loss_mask.begin(), b.loss_mask.begin() + 1, b.loss_mask.end());
       }),
       {"data"},
       "loss_mask"},
      {"row_repeated",
       {},
       changed_data([](data::Batch& b, const data::BatchPosition& position) {
         if (position.step == 1) {
           std::copy_n(b.tokens.begin(), b.seq, b.tokens.begin() + b.seq);
           std::copy_n(b.labels.begin(), b.seq, b.labels.begin() + b.seq);
         }
       }),
       {"data"},
       "tokens"},
      {"one_wrong_token",
       {.stored = "gpt2_tiny"},
       changed_data([](data::Batch& b, const data::BatchPosition& position) {
         if (position.step == 2) {
           b.tokens.back() = (b.tokens.back() + 1) % 36;
         }
       }),
       {"data"},
       "tokens"},
      {"positions_from_one",
       {},
       changed_data([](data::Batch& b, const data::BatchPosition&) {
         for (int64_t i = 0; i < b.batch * b.seq; ++i) {
           b.position_ids.push_back(std::min(i % b.seq + 1, b.seq - 1));
         }
       }),
       {"data"},
       "position_ids"},
      {"mean_of_tokens_for_mean_of_means",
       {},
       step_with([](TrainingConfig& t) { t.calculate_per_token_loss = true; }),
       // Its micro-batches have as many tokens each in step 1, of which alone values are stored.
       {"loss", "forward"},
       "loss"},
      {"sum_over_micro_batches",
       {},
       step_with([](TrainingConfig& t) { t.loss_reduction = "sum"; }),
       {"loss"},
       "loss"},
      {"label_smoothing",
       {},
       other_loss([](const Tensor& logits, const Tensor& labels) {
         return cross_entropy(logits, labels, {.label_smoothing = 0.01});
       }),
       {"loss"},
       "loss"},
      {"loss_ignores_its_mask",
       {},
       // The only product outside of the modules puts mask and ignored labels together.
       mistake_in({"mul", ""}, result_changed(0, [](double, int64_t) { return 1.0; })),
       {"loss"},
       "loss"},
  };
}

}  // namespace tapestry::testing
