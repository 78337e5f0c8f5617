#include "parallel_core/distributed/distributed_data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "tests/message_of.h"
#include "tests/parallel_core/distributed/data_parallel_testing.h"
#include "tests/parallel_core/distributed/three_parameters.h"
#include "tests/parallel_core/made_up_samples.h"

namespace tapestry {
namespace {

using testing::expect_same_bits;
using testing::expect_same_training;
using testing::joined;
using testing::make_batch;
using testing::Overrides;
using testing::Reference;
using testing::RunSettings;
using testing::State;
using testing::train_ranks;
using testing::train_reference;
using testing::Trainer;
using testing::Training;
using testing::TrainingDistances;

const std::string kTraining = "training_config.";
const std::string kOptimizer = "optimizer_config.";
const std::string kParallel = "parallel_config.";

// Without a bias of the keys no gradient is mere rounding, of which AdamW would make whole steps.
Overrides with(const Overrides& more) {
  return joined({"model_config.position_embedding_type=rope", "model_config.qkv_has_bias=False",
                 kOptimizer + "clip_grad=1", kOptimizer + "weight_decay=0.1"},
                more);
}

const Overrides kSharded = {kTraining + "use_distributed_optimizer=True"};
const Overrides kLevel2 = {kParallel + "zero_level=z2"};
const Overrides kLevel3 = {kParallel + "zero_level=z3"};
const Overrides kOverlapReduce = {kTraining + "wrap_with_ddp=True",
                                  kTraining + "overlap_grad_reduce=True"};
const Overrides kOverlapGather = {kOptimizer + "overlap_param_gather=True"};
const Overrides kSmallBuckets = {kTraining + "wrap_with_ddp=True", kTraining + "bucket_size=1500"};

void expect_ranks_agree(const std::vector<Training>& runs) {
  for (size_t rank = 1; rank < runs.size(); ++rank) {
    expect_same_bits(runs[rank], runs[0]);
    for (size_t i = 0; i < runs[0].steps.size(); ++i) {
      EXPECT_EQ(runs[rank].steps[i].grad_norm, runs[0].steps[i].grad_norm);
    }
  }
}

TEST(DistributedDataParallel, TrainsLikeOneProcess) {
  for (const int ranks : {2, 4}) {
    for (const int64_t micro_batches : {1, 3, 4}) {
      const RunSettings s{.ranks = ranks, .micro_batches = micro_batches};
      const Reference alone = train_reference(with({}), s);
      const std::vector<Training> runs = train_ranks(with({}), s);
      expect_same_training(runs[0], alone);
      expect_ranks_agree(runs);
    }
  }
}

TEST(DistributedDataParallel, TrainsLikeOneProcessHoweverTheLossIsReduced) {
  const RunSettings s{.ranks = 2, .micro_batches = 2, .rows = 2};
  for (const Overrides& more :
       {Overrides{kTraining + "calculate_per_token_loss=True"},
        Overrides{kTraining + "loss_reduction=sum"},
        Overrides{"model_config.hidden_dropout=0.1", "model_config.attention_dropout=0.1"},
        Overrides{"model_config.untie_embeddings_and_output_weights=True"},
        Overrides{
            kTraining + "grad_clip_kwargs={grad_clip_type: GradClipByValue, clip_value: 0.01}",
            kOptimizer + "clip_grad=0"}}) {
    SCOPED_TRACE(more.front());
    const Reference alone = train_reference(with(more), s);
    for (const Overrides& level : {Overrides{}, kSharded, kLevel3}) {
      expect_same_training(train_ranks(with(joined({more, level})), s)[0], alone);
    }
  }
}

TEST(DistributedDataParallel, EveryLevelOfShardingAndOverlapGivesTheSameBits) {
  for (const int ranks : {2, 3}) {  // nothing is divisible by 3
    const RunSettings s{.ranks = ranks};
    const Training plain = train_ranks(with({}), s)[0];
    for (const Overrides& more :
         {kOverlapReduce, kSmallBuckets, joined({kSmallBuckets, kOverlapReduce}), kSharded,
          joined({kSharded, kOverlapReduce}), joined({kSharded, kSmallBuckets}),
          joined({kSharded, kOverlapGather, kOverlapReduce, kSmallBuckets}),
          joined({kSharded, {kTraining + "bucket_size=1"}, kOverlapReduce, kOverlapGather}),
          joined({kSharded, {kTraining + "bucket_size=100000000"}, kOverlapReduce}), kLevel2,
          joined({kLevel2, kOverlapReduce, kSmallBuckets, kOverlapGather}), kLevel3,
          joined({kLevel3, kOverlapReduce, kSmallBuckets, kOverlapGather})}) {
      SCOPED_TRACE(::testing::PrintToString(more));
      const std::vector<Training> runs = train_ranks(with(more), s);
      expect_same_bits(runs[0], plain);
      expect_ranks_agree(runs);
    }
  }
}

TEST(DistributedDataParallel, WithMicroBatchesTheLevelsAgreeAndRepeat) {
  const RunSettings s{.ranks = 2, .micro_batches = 3};
  const Training plain = train_ranks(with({}), s)[0];
  const TrainingDistances bounds = train_reference(with({}), s).bounds;
  expect_same_bits(train_ranks(with(joined({kSharded, kOverlapReduce, kSmallBuckets})), s)[0],
                   plain);
  for (const Overrides& level : {kLevel2, kLevel3}) {
    // These sum over the ranks first and over the micro-batches then.
    const Overrides overrides = with(joined({level, kOverlapReduce, kSmallBuckets}));
    const Training run = train_ranks(overrides, s)[0];
    expect_same_training(run, plain, bounds);
    expect_same_bits(train_ranks(overrides, s)[0], run);
    expect_same_bits(train_ranks(with(level), s)[0], run);
  }
}

TEST(DistributedDataParallel, EveryOptimizerCanBeSharded) {
  const RunSettings s{.ranks = 2, .steps = 4};
  const Overrides bf16 = {kTraining + "bf16=True"};
  for (const Overrides& more :
       {Overrides{kOptimizer + "optimizer_type=SGD", kOptimizer + "momentum=0.9"},
        Overrides{kOptimizer + "optimizer_type=SGD"}, Overrides{kOptimizer + "optimizer_type=Adam"},
        Overrides{kOptimizer + "exp_avg_dtype=bfloat16", kOptimizer + "exp_avg_sq_dtype=bfloat16"},
        bf16, joined({bf16, {"model_config.params_dtype=bfloat16"}}),
        joined({bf16, {kOptimizer + "store_param_remainders=True"}}),
        joined({bf16,
                {kOptimizer + "store_param_remainders=True", kOptimizer + "exp_avg_dtype=bfloat16",
                 kOptimizer + "exp_avg_sq_dtype=bfloat16"}}),
        joined({bf16, {kOptimizer + "main_grads_dtype=bfloat16"}})}) {
    SCOPED_TRACE(::testing::PrintToString(more));
    const Training plain = train_ranks(with(more), s)[0];
    for (const Overrides& level :
         {kSharded, joined({kSharded, kSmallBuckets, kOverlapGather, kOverlapReduce}), kLevel2,
          kLevel3}) {
      SCOPED_TRACE(::testing::PrintToString(level));
      expect_same_bits(train_ranks(with(joined({more, level})), s)[0], plain);
    }
  }
}

TEST(DistributedDataParallel, ComputesInBFloat16LikeOneProcess) {
  const RunSettings s{.ranks = 2, .micro_batches = 2};
  const Overrides bf16 = {kTraining + "bf16=True"};
  const Reference alone = train_reference(with(bf16), s);
  for (const Overrides& level : {Overrides{}, kSharded, kLevel3}) {
    expect_same_training(train_ranks(with(joined({bf16, level})), s)[0], alone);
  }
}

TEST(DistributedDataParallel, AnOverflowOnOneRankSkipsTheStepOnAll) {
  for (const Overrides& level : {Overrides{}, kSharded, kLevel2, kLevel3}) {
    SCOPED_TRACE(::testing::PrintToString(level));
    run_thread_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
      initialize_model_parallel({}, world);
      {
        Trainer trainer(with(
            joined({level,
                    {kTraining + "fp16=True", kTraining + "loss_scale_value=1024",
                     kTraining + "loss_scale_factor=2", kTraining + "loss_scale_window=100"}})));
        data::Batch batch = make_batch(trainer.config, 2, 2 * world->rank());
        EXPECT_TRUE(trainer.cell({batch}).finite);
        State before;
        testing::copy_into(before, get_logical_state(*trainer.model, trainer.optimizer.get()));
        if (world->rank() == 1) {
          batch.loss_mask[3] = std::numeric_limits<float>::infinity();
        }
        const StepResult result = trainer.cell({batch});
        EXPECT_FALSE(result.finite);
        EXPECT_EQ(result.loss_scale, 1024);
        EXPECT_EQ(trainer.cell.grad_scaler().scale(), 512);
        EXPECT_EQ(trainer.cell.position().applied, 1);
        testing::expect_states_equal(get_logical_state(*trainer.model, trainer.optimizer.get()),
                                     before);
        batch.loss_mask[3] = 1;
        EXPECT_TRUE(trainer.cell({batch}).finite);
      }
      destroy_model_parallel();
    });
  }
}

TEST(DistributedDataParallel, GradientNormsOfLogicalTensors) {
  const RunSettings s{.ranks = 2, .steps = 1};
  const Overrides log = {kTraining + "log_param_grad_norms=True"};
  const Reference alone = train_reference(with(log), s);
  EXPECT_FALSE(alone.run.steps[0].grad_norms.empty());
  for (const Overrides& level : {Overrides{}, kSharded, kLevel2, kLevel3}) {
    expect_same_training(train_ranks(with(joined({log, level})), s)[0], alone);
  }
}

// The optimizer's state speaks of whole parameters, whatever each rank holds.
TEST(DistributedDataParallel, OptimizerStateHasNoLayout) {
  const RunSettings s{.ranks = 3};
  for (const Overrides& more :
       {Overrides{},
        Overrides{kTraining + "bf16=True", kOptimizer + "store_param_remainders=True"}}) {
    const auto states_of = [&](const Overrides& level) {
      State states;
      train_ranks(with(joined({more, level})), s, [&](Trainer& trainer) {
        const nn::StateDict own = trainer.optimizer->state_dict();  // collective
        if (get_data_parallel_rank() == 1) {
          testing::copy_into(states, own);
        }
      });
      return states;
    };
    const State plain = states_of({});
    for (const Overrides& level : {kSharded, kLevel2, kLevel3}) {
      testing::expect_states_equal(states_of(level), plain);
    }
    train_ranks(with(joined({more, kSharded, kSmallBuckets})), {.ranks = 2, .steps = 1},
                [&](Trainer& trainer) {
                  trainer.optimizer->load_state_dict(plain);
                  testing::expect_states_equal(trainer.optimizer->state_dict(), plain);
                  nn::StateDict wrong = plain;
                  wrong.begin()->second = zeros({1, 2, 3});
                  EXPECT_THROW(trainer.optimizer->load_state_dict(wrong), ValueError);
                  testing::expect_states_equal(trainer.optimizer->state_dict(), plain);
                });
  }
}

TEST(DistributedDataParallel, LaysParametersOutFromTheLast) {
  const auto alone = single_process_group();
  const testing::ThreeParameters module;
  const DistributedDataParallel data_parallel(module.named_parameters(), {}, *alone);
  EXPECT_EQ(data_parallel.num_buckets(), 1U);
  EXPECT_EQ(data_parallel.size(), 3 * 64);
  EXPECT_EQ(module.c().main_grad().offset(), 0);
  EXPECT_EQ(module.b().main_grad().offset(), 64);
  EXPECT_EQ(module.a().main_grad().offset(), 128);
}

TEST(DistributedDataParallel, TiedWeightsHaveOnePlace) {
  const auto alone = single_process_group();
  const auto tied = get_model(testing::small_config());
  const auto untied =
      get_model(testing::small_config({"model_config.untie_embeddings_and_output_weights=True"}));
  const DistributedDataParallel one(tied->named_parameters(), {}, *alone);
  const DistributedDataParallel two(untied->named_parameters(), {}, *alone);
  EXPECT_EQ(two.size() - one.size(), 1024);  // 31 * 32 elements, filled up
}

TEST(DistributedDataParallel, EvaluatesOnAllRanksTogether) {
  double expected = 0;
  run_thread_ranks(1, [&](const std::shared_ptr<ProcessGroup>& world) {
    initialize_model_parallel({}, world);
    Trainer alone(with({"dataset_config.batch_size=4"}));
    testing::MadeUpSamples all(alone.config);
    expected = evaluate(*alone.model, all, alone.config, 3);
    destroy_model_parallel();
  });
  for (const Overrides& level : {Overrides{}, kLevel3}) {
    run_thread_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
      initialize_model_parallel({}, world);
      {
        Trainer trainer(with(joined({{"dataset_config.batch_size=2"}, level})));
        testing::MadeUpSamples own(trainer.config);
        EXPECT_NEAR(evaluate(*trainer.model, own, trainer.config, 3), expected, 1e-6 * expected);
      }
      destroy_model_parallel();
    });
  }
}

TEST(DistributedDataParallel, FindsWeightsThatDiffer) {
  run_thread_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    initialize_model_parallel({}, world);
    {
      Trainer trainer;
      check_equal_parameters(*trainer.model, *world);
      const auto parameters = trainer.model->named_parameters();
      if (world->rank() == 2) {
        parameters[3].parameter->data<float>()[1] += 1e-6F;
      }
      const std::string message =
          message_of<RuntimeError>([&] { check_equal_parameters(*trainer.model, *world); });
      EXPECT_THAT(message, ::testing::HasSubstr("'" + parameters[3].name + "'"));
      EXPECT_THAT(message, ::testing::HasSubstr("ranks 0 and 2"));
    }
    destroy_model_parallel();
  });
}

TEST(DistributedDataParallel, RefusesWhatCannotBe) {
  run_thread_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    initialize_model_parallel({}, world);
    EXPECT_THROW(Trainer({kOptimizer + "optimizer_in_backward=True"}), ValueError);
    const AllConfig config = testing::small_config();
    const auto model = get_model(config);
    const auto optimizer = get_optimizer(config, *model);
    const auto schedule = get_optimizer_param_scheduler(config, 1);
    EXPECT_THROW(TrainOneStepCell(*model, *optimizer, *schedule, config), ValueError);
    destroy_model_parallel();
  });
}

TEST(DistributedDataParallel, ParametersThatLostTheirMemorySaySo) {
  run_thread_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    initialize_model_parallel({}, world);
    const AllConfig config = testing::small_config(kSharded);
    const auto model = get_model(config);
    get_data_parallel(config, *model);
    EXPECT_THROW(model->named_parameters()[0].parameter->to_vector<float>(), RuntimeError);
    destroy_model_parallel();
  });
}

class FourMatrices final : public nn::Module {
 public:
  FourMatrices() {
    for (int i = 0; i < 4; ++i) {
      register_parameter(concat("m", i), full({16, 16}, i + 1));
    }
  }
  std::string type_name() const override { return "FourMatrices"; }
  TensorList all() const {
    TensorList out;
    for (const auto& entry : named_parameters()) {
      out.push_back(*entry.parameter);
    }
    return out;
  }
};

// Looks at all of them at once, forward and backward.
struct FirstElements {
  static constexpr OpName name = "first_elements";
  TensorList matrices;

  static double sum_of(const TensorList& x) {
    std::vector<const float*> places;
    for (const Tensor& matrix : x) {
      places.push_back(matrix.data<float>());
    }
    double sum = 0;
    for (const float* place : places) {
      sum = 10 * sum + *place;
    }
    return sum;
  }
  Tensor forward(const TensorList& x) {
    matrices.clear();
    for (const Tensor& matrix : x) {
      matrices.push_back(matrix.detach());
    }
    return scalar(sum_of(x));
  }
  TensorList backward(const Tensor& /*dy*/, NeedsGrad /*needs*/) const {
    TensorList out;
    for (const Tensor& matrix : matrices) {
      out.push_back(full(matrix.shape(), sum_of(matrices)));
    }
    return out;
  }
};

// An op may use more parameters at once than would otherwise stay.
TEST(DistributedDataParallel, OpsLeaseThePagesThatTheyPointInto) {
  run_thread_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    const FourMatrices model;
    DistributedDataParallel parallel(model.named_parameters(), {.sharding = Sharding::kParameters},
                                     *world);
    const TensorList matrices = model.all();
    const auto open = [&] {
      return std::count_if(matrices.begin(), matrices.end(),
                           [](const Tensor& m) { return m.storage()->is_open(); });
    };
    parallel.start_step(0, 1);
    const Tensor y = apply_op(FirstElements{}, matrices);
    EXPECT_EQ(y.item(), 1234);
    y.backward();
    parallel.finish_reduce();
    parallel.gather_gradients();
    for (const auto& entry : model.named_parameters()) {
      EXPECT_EQ(entry.parameter->grad().data<float>()[0], 2 * 1234) << entry.name;
      EXPECT_FALSE(entry.parameter->storage()->is_leased());
    }
    parallel.release_gradients();
    parallel.parameters_changed();
    EXPECT_EQ(open(), 0);
    for (const Tensor& matrix : matrices) {  // one op for each: two stay
      EXPECT_EQ(sum(matrix).item(), 256 * matrix.data<float>()[0]);
      EXPECT_LE(open(), 2);
    }
  });
}

// Parameters of experts have buckets of their own, over ranks of their own.
TEST(DistributedDataParallel, ReducesExpertsOverTheirOwnRanks) {
  for (const Sharding sharding :
       {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    for (const int copies : {1, 2, 4}) {
      for (const bool overlap : {false, true}) {
        SCOPED_TRACE(::testing::Message() << static_cast<int>(sharding) << ' ' << copies);
        run_thread_ranks(4, [&](const std::shared_ptr<ProcessGroup>& world) {
          const int rank = world->rank();
          std::vector<int> same;  // ranks with the same experts
          for (int r = rank % (4 / copies); r < 4; r += 4 / copies) {
            same.push_back(r);
          }
          const auto experts = world->new_group(same, concat("edp-", same.front()));
          const FourMatrices model;
          auto parameters = model.named_parameters();
          parameters[2].parameter->set_flags({.expert = true});
          DistributedDataParallel parallel(parameters,
                                           {.sharding = sharding, .overlap_grad_reduce = overlap},
                                           *world, experts.get());
          EXPECT_EQ(&parallel.expert_group(), experts.get());
          EXPECT_GE(parallel.num_buckets(), 2U);
          double squares_of_experts = 0;
          for (int64_t step = 0; step < 2; ++step) {
            parallel.start_step(step, 2);
            for (int pass = 0; pass < 2; ++pass) {
              Tensor loss = scalar(0);
              for (const Tensor& matrix : model.all()) {
                loss = loss + sum(matrix) * static_cast<double>(rank + 1);
              }
              loss.backward();
            }
            parallel.finish_reduce();
            const auto of_experts = [](const nn::Parameter& p) { return p.flags().expert; };
            squares_of_experts = parallel.sum_over_pieces(parallel.squares(of_experts), true);
            parallel.gather_gradients();
            double sum_over_experts = 0;
            for (const int r : same) {
              sum_over_experts += 2 * (r + 1);
            }
            for (const auto& entry : parameters) {
              const double expected = entry.parameter->flags().expert ? sum_over_experts : 20;
              EXPECT_EQ(entry.parameter->grad().data<float>()[255], expected) << entry.name;
            }
            EXPECT_EQ(squares_of_experts, 256 * sum_over_experts * sum_over_experts);
            parallel.release_gradients();
            if (parallel.shards_optimizer()) {
              for (const ParameterPiece& piece : parallel.pieces()) {
                copy_values(piece.values - piece.gradient, piece.values);
              }
            }
            parallel.parameters_changed();
            if (parallel.shards_optimizer()) {
              const double updated = 3 - static_cast<double>(step + 1) * sum_over_experts;
              EXPECT_EQ(parameters[2].parameter->data<float>()[255], updated);
            }
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace tapestry
