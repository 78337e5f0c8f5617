// Mistakes that parallel training is prone to, made on purpose: the comparison of a layout with one
// process finds each and names the tensor where it begins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/random.h"
#include "tests/parallel_core/layouts/faulty_group.h"
#include "tests/parallel_core/layouts/layout_testing.h"

namespace tapestry {
namespace {

using testing::CollectiveCall;
using testing::CommunicationFault;
using testing::Overrides;

// What a sound layout does, and then what goes wrong.
struct SeededFault {
  std::string name;
  std::string layout;
  Overrides overrides;
  std::function<void(LayoutParts&)> seed;
  // What has to be found first.
  Compared what;
  int64_t step;
  std::string tensor;
  std::string where;  // "" for any rank
};
std::ostream& operator<<(std::ostream& out, const SeededFault& fault) { return out << fault.name; }

const std::string kModel = "model_config.";
constexpr int64_t kRows = 2;
constexpr int64_t kHiddenElements = kRows * 8 * 32;  // of a micro-batch's hidden states
constexpr int64_t kTokens = kRows * 8;
constexpr int64_t kLayers = 2;

bool is_hidden(const CollectiveCall& call) { return call.input.numel() == kHiddenElements; }
bool is_for_parameters(const CollectiveCall& call) {
  return call.input.dtype() == kFloat32 && call.input.numel() > kTokens && !is_hidden(call);
}

void scale_values(const Tensor& x, float factor) {
  auto* v = x.data<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    v[i] *= factor;
  }
}

// The call with this number is not made: each rank keeps what it has.
std::function<bool(const CollectiveCall&)> left_out(int64_t number) {
  return [number](const CollectiveCall& call) { return call.number == number; };
}
bool always_left_out(const CollectiveCall& /*call*/) { return true; }

std::function<void(LayoutParts&)> communication(CommunicationFault fault) {
  return [shared =
              std::make_shared<const CommunicationFault>(std::move(fault))](LayoutParts& parts) {
    parts.world = [shared](std::shared_ptr<ProcessGroup> world) {
      return testing::with_fault(std::move(world), shared);
    };
    parts.before_step = [](ParallelModel& /*model*/, int64_t step) { testing::start_step(step); };
  };
}

std::function<void(LayoutParts&)> at_start(const std::function<void(ParallelModel&)>& started) {
  return [started](LayoutParts& parts) { parts.started = started; };
}

nn::Parameter& parameter_of(ParallelModel& model, const std::string& path) {
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (entry.name == path) {
      return *entry.parameter;
    }
  }
  throw ValueError("no parameter " + path);
}

// Data of which some ranks get other labels.
class ShiftedLabels final : public data::DataSource {
 public:
  explicit ShiftedLabels(const AllConfig& config)
      : inner_(config), vocabulary_(config.model_config.vocab_size) {}
  data::Batch micro_batch(data::BatchPosition position,
                          int64_t micro_index,
                          int64_t micro_batch_num,
                          int64_t micro_batch_size,
                          int64_t dp_rank,
                          int64_t dp_size) override {
    data::Batch batch = inner_.micro_batch(position, micro_index, micro_batch_num, micro_batch_size,
                                           dp_rank, dp_size);
    if (get_tensor_model_parallel_rank() == 1) {
      for (int64_t& label : batch.labels) {
        label = (label + 1) % vocabulary_;
      }
    }
    return batch;
  }
  int64_t seq_length() const override { return inner_.seq_length(); }
  int64_t size_in_samples() const override { return inner_.size_in_samples(); }
  int64_t epoch(int64_t sample) const override { return inner_.epoch(sample); }

 private:
  testing::MadeUpSamples inner_;
  int64_t vocabulary_;
};

const Overrides kDropout = {kModel + "attention_dropout=0.2"};
const Overrides kGrouped = {kModel + "group_query_attention=True", kModel + "num_query_groups=2",
                            kModel + "position_embedding_type=rope"};
const Overrides kFourLayers = {kModel + "num_layers=4"};
const Overrides kTwoParts = {"dataset_config.micro_batch_num=2"};

std::vector<SeededFault> seeded_faults() {
  return {
      {"row_linear_without_all_reduce",
       "tp=2",
       {},
       // Forward: the embedding, then attention and MLP of each layer.
       communication({"tp-", Collective::kAllReduce, is_hidden, left_out(3)}),
       Compared::kActivation,
       1,
       "layers.1.attention",
       ""},
      {"mlp_without_all_reduce",
       "tp=2",
       {},
       communication({"tp-", Collective::kAllReduce, is_hidden, left_out(2)}),
       Compared::kActivation,
       1,
       "layers.0.mlp",
       ""},
      {"column_linear_without_all_reduce_of_dx",
       "tp=2",
       {},
       // Backward: the head, then MLP and attention of each layer.
       communication({"tp-", Collective::kAllReduce, is_hidden, left_out(1 + 2 * kLayers + 1)}),
       Compared::kGradient,
       1,
       "layers.1.ffn_norm.bias",
       ""},
      {"vocabulary_embedding_without_all_reduce",
       "tp=2",
       {},
       communication({"tp-", Collective::kAllReduce, is_hidden, left_out(0)}),
       Compared::kActivation,
       1,
       "embedding",
       ""},
      {"sequence_gathered_in_wrong_order",
       "tp=2,sp",
       {},
       communication(
           {"tp-", Collective::kAllGather,
            [](const CollectiveCall& call) { return call.output.numel() == kHiddenElements; },
            [](const CollectiveCall& call) {
              if (call.number != 0) {
                return false;
              }
              call.group.all_gather(call.output, call.input);
              auto* v = call.output.data<float>();
              std::swap_ranges(v, v + kHiddenElements / 2, v + kHiddenElements / 2);
              return true;
            }}),
       Compared::kActivation,
       1,
       "layers.0.attention.query",
       ""},
      {"loss_not_divided_by_dp",
       "dp=2",
       {},
       communication({"dp-", Collective::kAllReduce, is_for_parameters,
                      [](const CollectiveCall& call) {
                        call.group.all_reduce(call.input);
                        scale_values(call.input, 2);
                        return true;
                      }}),
       Compared::kGradient,
       1,
       "final_norm.bias",
       ""},
      {"gradients_not_summed_over_dp",
       "dp=2",
       {},
       communication({"dp-", Collective::kAllReduce, is_for_parameters, always_left_out}),
       Compared::kGradient,
       1,
       "final_norm.bias",
       ""},
      {"keys_and_values_swapped",
       "tp=2",
       {},
       at_start([](ParallelModel& model) {
         if (get_tensor_model_parallel_rank() == 1) {
           nn::Parameter& weight =
               parameter_of(model, "language_model.encoder.layers.1.attention.qkv_proj.weight");
           const NoGradGuard guard;
           const Tensor key = weight.logical()[1].view_of(weight);
           const Tensor value = weight.logical()[2].view_of(weight);
           const Tensor kept = dense_copy(key);
           copy_values(value, key);
           copy_values(kept, value);
         }
       }),
       Compared::kActivation,
       1,
       "layers.1.attention.key",
       "rank 1 (tp 1)"},
      {"replicas_of_keys_and_values_not_summed", "tp=4", kGrouped,
       communication({"tp-", Collective::kAllReduce, is_for_parameters, always_left_out}),
       Compared::kGradient, 1, "layers.1.attention.wv.bias", ""},
      {"norm_gradients_not_summed_under_sp",
       "tp=2,sp",
       {},
       communication({"tp-", Collective::kAllReduce, is_for_parameters, always_left_out}),
       Compared::kGradient,
       1,
       "final_norm.bias",
       ""},
      {"dropout_of_another_stream_on_one_rank", "tp=2", kDropout,
       at_start([](ParallelModel& /*model*/) {
         if (get_tensor_model_parallel_rank() == 1) {
           ++random_context().seed;
         }
       }),
       Compared::kActivation, 1, "layers.0.attention.context", "rank 1 (tp 1)"},
      {"vocabulary_offset_wrong_in_the_loss",
       "tp=2",
       {},
       [](LayoutParts& parts) {
         // What one rank sees as label + 1 is what an offset that is too small by one looks like.
         parts.data = [](const AllConfig& config) -> std::unique_ptr<data::DataSource> {
           return std::make_unique<ShiftedLabels>(config);
         };
       },
       Compared::kLoss,
       1,
       "loss",
       ""},
      {"tied_embedding_not_summed_over_stages",
       "pp=2",
       {},
       communication({"embedding", Collective::kAllReduce, is_for_parameters, always_left_out}),
       Compared::kGradient,
       1,
       "tok_embeddings.weight",
       ""},
      {"virtual_chunks_in_wrong_order", "pp=2,vpp=2", kFourLayers,
       [](LayoutParts& parts) {
         parts.model = [](const AllConfig& config) {
           random_context().seed = static_cast<uint64_t>(config.training_config.seed);
           PipelineStage stage = get_pipeline_stage(config);
           std::swap(stage.chunks[0], stage.chunks[1]);
           return std::make_unique<GPTModel>(config.model_config, config.dataset_config.data_layout,
                                             stage);
         };
       },
       Compared::kActivation, 1, "layers.0.attention_norm", ""},
      {"message_of_another_micro_batch", "pp=2", kTwoParts,
       communication({"pp-", Collective::kSend, is_hidden,
                      [last = std::make_shared<Tensor>()](const CollectiveCall& call) {
                        // Only the first stage's forward messages: it sends no others.
                        if (call.group.rank() == 0 && call.number == 0) {
                          *last = dense_copy(call.input);
                        } else if (call.group.rank() == 0 && last->defined()) {
                          copy_values(*last, call.input);
                        }
                        return false;
                      }}),
       Compared::kActivation, 1, "layers.1.attention_norm", "rank 1 (pp 1)"},
      {"gradient_message_scaled",
       "pp=2",
       {},
       communication({"pp-", Collective::kSend, is_hidden,
                      [](const CollectiveCall& call) {
                        if (call.group.rank() == 1) {
                          scale_values(call.input, 0.5F);
                        }
                        return false;
                      }}),
       Compared::kGradient,
       1,
       "layers.0.feed_forward.w_down.bias",
       "rank 0 (pp 0)"},
      {"norm_counts_replicated_parameters_twice",
       "tp=2",
       {},
       at_start([](ParallelModel& model) {
         nn::Parameter& gain = parameter_of(model, "language_model.encoder.final_norm.gamma");
         nn::ParameterFlags flags = gain.flags();
         flags.tp = nn::TensorParallel::kSharded;
         gain.set_flags(flags);
       }),
       Compared::kGradNorm,
       1,
       "grad_norm",
       ""},
      {"shard_updated_with_unreduced_gradient",
       "dp=2,dist_opt",
       {},
       communication({"dp-", Collective::kReduceScatter, is_for_parameters,
                      [](const CollectiveCall& call) {
                        if (call.step != 2) {
                          return false;
                        }
                        const int64_t size = call.output.numel();
                        copy_values(call.input.view({-1}).slice(0, call.group.rank() * size,
                                                                (call.group.rank() + 1) * size),
                                    call.output.view({-1}));
                        return true;
                      }}),
       Compared::kGradient,
       2,
       "final_norm.bias",
       ""},
      {"updated_parameters_not_gathered",
       "dp=2,dist_opt",
       {},
       // Gradients are gathered first, to be looked at.
       communication({"dp-", Collective::kAllGather, is_for_parameters, left_out(1)}),
       Compared::kWeights,
       1,
       "",
       ""},
      {"own_keys_in_place_of_those_of_other_context_parallel_ranks",
       "cp=2",
       {},
       communication({"cp-", Collective::kAllGather, [](const CollectiveCall&) { return true; },
                      [](const CollectiveCall& call) {
                        // The first one is that of layer 0's keys and values.
                        if (call.number == 0) {
                          const int64_t size = call.input.numel();
                          for (int64_t i = 0; i < call.group.size(); ++i) {
                            copy_values(call.input.view({-1}),
                                        call.output.view({-1}).slice(0, i * size, (i + 1) * size));
                          }
                        }
                        return call.number == 0;
                      }}),
       Compared::kActivation,
       1,
       "layers.0.attention.context",
       ""},
      {"gradients_not_summed_over_cp",
       "cp=2",
       {},
       communication({"dp-cp-", Collective::kAllReduce, is_for_parameters, always_left_out}),
       Compared::kGradient,
       1,
       "final_norm.bias",
       ""},
      // Little more than rounding.
      {"weight_of_one_rank_off_by_a_four_thousandth",
       "tp=2",
       {},
       at_start([](ParallelModel& model) {
         for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
           if (get_tensor_model_parallel_rank() == 1 &&
               entry.parameter->logical()[0].name == "layers.0.feed_forward.w_down.weight") {
             const NoGradGuard guard;
             scale_values(*entry.parameter, 1 + 0x1p-12F);
           }
         }
       }),
       Compared::kActivation,
       1,
       "layers.0.mlp",
       ""},
      {"initial_weights_depend_on_the_rank",
       "tp=2",
       {},
       [](LayoutParts& parts) {
         parts.model = [](const AllConfig& config) {
           random_context().seed = static_cast<uint64_t>(config.training_config.seed +
                                                         get_tensor_model_parallel_rank());
           return std::make_unique<GPTModel>(config.model_config, config.dataset_config.data_layout,
                                             get_pipeline_stage(config));
         };
       },
       Compared::kInitialWeights,
       0,
       "tok_embeddings.weight",
       "rank 1 (tp 1)"},
  };
}

class SeededFaults : public ::testing::TestWithParam<SeededFault> {
 protected:
  static LayoutPair pair() {
    Overrides overrides = GetParam().overrides;
    overrides.push_back(concat("dataset_config.batch_size=", kRows));
    return testing::small_pair(GetParam().layout, overrides);
  }
};

TEST_P(SeededFaults, AreFoundWhereTheyBegin) {
  const SeededFault& fault = GetParam();
  const LayoutPair layouts = pair();
  LayoutParts parts = testing::made_up_data();
  fault.seed(parts);
  const LayoutReport report = compare_layout(
      layouts, {.steps = 2, .timeout_seconds = testing::kTestTimeout, .parts = parts});
  ASSERT_FALSE(report.agrees());
  const Finding first = *report.findings->first();
  std::cout << LayoutFindings::sentence(first) << "\n";
  EXPECT_EQ(name_of(first.what), name_of(fault.what));
  EXPECT_EQ(first.step, fault.step);
  if (!fault.tensor.empty()) {
    EXPECT_EQ(first.name, fault.tensor);
  }
  EXPECT_THAT(first.where, ::testing::HasSubstr(fault.where));
}

TEST_P(SeededFaults, WithoutThemNothingIsFound) {
  const LayoutPair layouts = pair();
  const LayoutReport report = compare_layout(
      layouts,
      {.steps = 2, .timeout_seconds = testing::kTestTimeout, .parts = testing::made_up_data()});
  EXPECT_TRUE(report.agrees()) << report_text(report, layouts);
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         SeededFaults,
                         ::testing::ValuesIn(seeded_faults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tapestry
