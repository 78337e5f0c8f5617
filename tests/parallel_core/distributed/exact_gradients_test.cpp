// Exact mode: gradients and their norms have the same bits whichever ranks and micro-batches the
// tokens of a step are divided over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/ops/ops.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/distributed/finalize_model_grads.h"
#include "parallel_core/distributed/on_demand_gradients.h"
#include "parallel_core/optimizer/global_norm.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/training/step/train_one_step.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

constexpr int kTokens = 8;

// What a token adds to the gradient of a parameter: numbers of very different magnitudes, other
// ones in each step and for each use of the parameter in a model. `first`: where the parameter
// begins in one that ranks divide.
std::vector<float> terms_of(int64_t size, int token, int use, int64_t step, int64_t first = 0) {
  std::vector<float> terms(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    uint64_t bits =
        static_cast<uint64_t>(((first + i) * 131 + token) * 17 + use * 5 + step * 3 + 1);
    bits = (bits ^ (bits >> 13U)) * 0x9e3779b97f4a7c15U;
    bits ^= bits >> 29U;
    const double mantissa = static_cast<double>(bits >> 40U) * 0x1p-23 - 1;
    terms[static_cast<size_t>(i)] =
        static_cast<float>(std::ldexp(mantissa, -static_cast<int>(bits % 20U)));
  }
  return terms;
}

// An op whose backward adds a token's terms to the gradient of a parameter.
struct TokenTerms {
  static constexpr OpName name = "test_token_terms";
  Tensor leaf;
  std::vector<float> terms;
  Tensor forward(const Tensor& /*weight*/) { return scalar(0); }
  Tensor backward(const Tensor& /*dy*/) const {
    const Tensor sums = exact_main_grad(leaf);
    if (!sums.defined()) {
      return tensor(std::span<const float>(terms), leaf.shape());
    }
    kernels::add_to_exact(kFloat32, leaf.numel(), terms.data(), sums.data<double>());
    return sums;
  }
};

Tensor use_of(const Tensor& weight, std::vector<float> terms) {
  return apply_op(TokenTerms{weight, std::move(terms)}, weight);
}

// Matrices, a tied one and one in bfloat16 among them, and vectors.
class TokenModel final : public nn::Module {
 public:
  TokenModel() {
    register_parameter("tied", ones({35, 9}));
    register_parameter("vector", ones({67}));
    register_parameter("narrow", ones({10, 31}, kBFloat16));
    register_parameter("short", ones({3}));
    register_parameter("last", ones({128, 2}));
    register_parameter("unused", ones({5}));
  }
  std::string type_name() const override { return "TokenModel"; }

  // Backward passes of `passes` micro-batches of the tokens, in the given order.
  void run(std::vector<int> tokens, size_t passes, int64_t step, bool reversed) const {
    if (reversed) {
      std::reverse(tokens.begin(), tokens.end());
    }
    const size_t count = tokens.size() / passes;
    for (size_t pass = 0; pass < passes; ++pass) {
      Tensor loss = scalar(0);
      for (size_t t = pass * count; t < (pass + 1) * count; ++t) {
        for (const NamedParameter& entry : named_parameters()) {
          const int uses = entry.name == "tied" ? 2 : entry.name == "unused" ? 0 : 1;
          for (int use = 0; use < uses; ++use) {
            loss = loss + use_of(*entry.parameter,
                                 terms_of(entry.parameter->numel(), tokens[t], use, step));
          }
        }
      }
      loss.backward();
    }
  }
};

std::vector<int> tokens_of(int rank, int ranks) {
  std::vector<int> tokens;
  for (int t = 0; t < kTokens / ranks; ++t) {
    tokens.push_back(rank * (kTokens / ranks) + t);
  }
  return tokens;
}

// What a step leaves behind.
struct StepGradients {
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, double> norms;
  double norm = 0;
  double units = 0;
};

bool operator==(const StepGradients& a, const StepGradients& b) {
  return a.values == b.values && a.norms == b.norms && a.norm == b.norm;
}

StepGradients gradients_of(const nn::Module& model, ModelGradients& gradients) {
  StepGradients out;
  out.norm = global_grad_norm(model, gradients);
  out.units = gradients.largest_sum().units;
  gradients.gather_gradients();
  for (const auto& entry : model.named_parameters()) {
    const Tensor gradient = entry.parameter->grad();
    EXPECT_EQ(gradient.dtype(), kFloat32);
    EXPECT_EQ(gradient.raw(), entry.parameter->main_grad().raw());
    out.values[entry.name] = gradient.to_vector<float>();
  }
  out.norms = logical_gradient_norms(model, /*exact=*/true);
  gradients.release_gradients();
  return out;
}

// Two steps in one process, of one micro-batch each.
const std::vector<StepGradients>& expected_steps() {
  static const std::vector<StepGradients> steps = [] {
    const TokenModel model;
    OnDemandGradients gradients(model.named_parameters(), {.exact = true});
    std::vector<StepGradients> out;
    for (int64_t step = 0; step < 2; ++step) {
      gradients.start_step(step, 1);
      model.run(tokens_of(0, 1), 1, step, /*reversed=*/false);
      gradients.finish_reduce();
      out.push_back(gradients_of(model, gradients));
    }
    return out;
  }();
  return steps;
}

TEST(ExactGradients, AreTheSumsRoundedOnce) {
  const StepGradients& found = expected_steps()[0];
  double squares = 0;
  double largest = 0;
  for (const auto& [name, values] : found.values) {
    std::vector<double> sums(values.size());
    for (int token = 0; token < kTokens; ++token) {
      for (int use = 0; use < (name == "tied" ? 2 : name == "unused" ? 0 : 1); ++use) {
        const std::vector<float> terms =
            terms_of(static_cast<int64_t>(values.size()), token, use, 0);
        for (size_t i = 0; i < sums.size(); ++i) {
          sums[i] += std::rint(static_cast<double>(terms[i]) * 0x1p44);
        }
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      const double sum = sums[i] * 0x1p-44;
      EXPECT_EQ(values[i], static_cast<float>(sum)) << name << " " << i;
      squares += static_cast<double>(values[i]) * values[i];
      largest = std::max(largest, std::abs(sums[i]));
    }
  }
  EXPECT_NEAR(found.norm, std::sqrt(squares), 1e-14 * found.norm);
  EXPECT_EQ(found.units, largest);
}

TEST(ExactGradients, DoNotDependOnMicroBatches) {
  for (const size_t passes : {1, 4}) {
    const TokenModel model;
    OnDemandGradients gradients(model.named_parameters(), {.exact = true});
    for (int64_t step = 0; step < 2; ++step) {
      gradients.start_step(step, static_cast<int64_t>(passes));
      model.run(tokens_of(0, 1), passes, step, /*reversed=*/true);
      EXPECT_EQ(model.named_parameters()[0].parameter->main_grad().dtype(), kFloat64);
      gradients.finish_reduce();
      EXPECT_EQ(gradients_of(model, gradients), expected_steps()[static_cast<size_t>(step)]);
    }
  }
}

class ExactGradientsOfRanks : public ::testing::TestWithParam<Sharding> {};

TEST_P(ExactGradientsOfRanks, DoNotDependOnTheRanks) {
  for (const int ranks : {1, 2, 4}) {
    for (const bool overlap : {false, true}) {
      for (const size_t passes : {1, 2}) {
        SCOPED_TRACE(concat(ranks, " ranks, overlap ", overlap, ", passes ", passes));
        run_thread_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
          const TokenModel model;
          DistributedDataParallel gradients(model.named_parameters(),
                                            {.sharding = GetParam(),
                                             .bucket_size = overlap ? 100 : 0,
                                             .overlap_grad_reduce = overlap,
                                             .exact = true},
                                            *world);
          for (int64_t step = 0; step < 2; ++step) {
            gradients.start_step(step, static_cast<int64_t>(passes));
            model.run(tokens_of(world->rank(), ranks), passes, step, world->rank() % 2 == 1);
            gradients.finish_reduce();
            const StepGradients& expected = expected_steps()[static_cast<size_t>(step)];
            EXPECT_EQ(gradients_of(model, gradients), expected);
            if (!gradients.shards_optimizer()) {
              continue;
            }
            for (const ParameterPiece& piece : gradients.pieces()) {
              const std::vector<float>& whole = expected.values.at(piece.name);
              EXPECT_EQ(piece.gradient.to_vector<float>(),
                        std::vector<float>(whole.begin() + piece.begin, whole.begin() + piece.end));
              EXPECT_EQ(piece.values.main_grad().raw(), piece.gradient.raw());
            }
          }
        });
      }
    }
  }
}

TEST_P(ExactGradientsOfRanks, ScaleAsOthersDo) {
  run_thread_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
    const TokenModel model;
    DistributedDataParallel gradients(model.named_parameters(),
                                      {.sharding = GetParam(), .exact = true}, *world);
    gradients.start_step(0, 1);
    model.run(tokens_of(world->rank(), 2), 1, 0, false);
    gradients.finish_reduce();
    gradients.scale(0.25);
    EXPECT_EQ(global_grad_norm(model, gradients), 0.25 * expected_steps()[0].norm);
  });
}

TEST_P(ExactGradientsOfRanks, MeasureLocalOnes) {
  run_thread_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
    const TokenModel model;
    DistributedDataParallel gradients(model.named_parameters(),
                                      {.sharding = GetParam(), .exact = true}, *world);
    gradients.measure_local({"vector"});
    gradients.start_step(0, 2);
    model.run(tokens_of(world->rank(), 2), 2, 0, false);
    gradients.finish_reduce();
    double squares = 0;
    for (int64_t i = 0; i < 67; ++i) {
      double sum = 0;
      for (const int token : tokens_of(world->rank(), 2)) {
        sum += terms_of(67, token, 0, 0)[static_cast<size_t>(i)];
      }
      squares += sum * sum;
    }
    EXPECT_NEAR(gradients.local_squares().at("vector"), squares, 1e-9 * squares);
  });
}

INSTANTIATE_TEST_SUITE_P(Levels,
                         ExactGradientsOfRanks,
                         ::testing::Values(Sharding::kNone,
                                           Sharding::kOptimizer,
                                           Sharding::kGradients,
                                           Sharding::kParameters));

int64_t gradient_bytes() {
  return memory_stats().current_by_kind[static_cast<size_t>(MemoryKind::kGradient)];
}

TEST(ExactGradients, AreRoundedInTheirOwnMemory) {
  const TokenModel model;
  OnDemandGradients gradients(model.named_parameters(), {.exact = true});
  EXPECT_EQ(gradient_bytes(), 0);
  gradients.start_step(0, 1);
  model.run(tokens_of(0, 1), 1, 0, false);
  const int64_t bytes = gradient_bytes();
  EXPECT_GT(bytes, 0);
  const void* place = model.named_parameters()[0].parameter->main_grad().raw();
  gradients.finish_reduce();
  EXPECT_EQ(gradient_bytes(), bytes);
  EXPECT_EQ(model.named_parameters()[0].parameter->main_grad().raw(), place);
  gradients.start_step(1, 1);
  EXPECT_EQ(gradient_bytes(), 0);

  const auto alone = single_process_group();
  const TokenModel other;
  DistributedDataParallel parallel(other.named_parameters(), {.exact = true}, *alone);
  const int64_t held = gradient_bytes();
  EXPECT_EQ(held, parallel.size() * size_of(kFloat64));
  parallel.start_step(0, 1);
  other.run(tokens_of(0, 1), 1, 0, false);
  parallel.finish_reduce();
  EXPECT_EQ(gradient_bytes(), held);
}

TEST(ExactGradients, RefuseSumsOverTokensThatWereRounded) {
  const TokenModel model;
  OnDemandGradients gradients(model.named_parameters(), {.exact = true});
  gradients.start_step(0, 1);
  const nn::Parameter& last = *model.named_parameters()[4].parameter;
  EXPECT_THAT(message_of<RuntimeError>([&] { sum(last * 2.0).backward(); }),
              ::testing::HasSubstr("no exact gradients"));
  const auto alone = single_process_group();
  const DistributedDataParallel parallel(model.named_parameters(), {.exact = true}, *alone);
  EXPECT_THROW(sum(last * 2.0).backward(), RuntimeError);
}

TEST(ExactGradients, SayWhichSumIsTooLarge) {
  const auto alone = single_process_group();
  for (const bool on_demand : {true, false}) {
    const TokenModel model;
    std::unique_ptr<ModelGradients> gradients;
    if (on_demand) {
      gradients = std::make_unique<OnDemandGradients>(model.named_parameters(),
                                                      OnDemandGradients::Options{.exact = true});
    } else {
      gradients = std::make_unique<DistributedDataParallel>(
          model.named_parameters(), DataParallelOptions{.exact = true}, *alone);
    }
    const auto add = [&](float term) {
      gradients->start_step(0, 1);
      use_of(*model.named_parameters()[3].parameter, {1, 2, 3}).backward();
      use_of(*model.named_parameters()[1].parameter, std::vector<float>(67, term)).backward();
      gradients->finish_reduce();
    };
    add(-256);
    EXPECT_EQ(gradients->largest_sum().units, kernels::kExactLimit);
    EXPECT_NO_THROW(check_exact_sums(*gradients, 7));
    add(-300);
    EXPECT_EQ(gradients->largest_sum().name, "vector");
    const std::string message = message_of<RuntimeError>([&] { check_exact_sums(*gradients, 7); });
    for (const char* part : {"step 7", "'vector'", "magnitude 300", "up to 256"}) {
      EXPECT_THAT(message, ::testing::HasSubstr(part));
    }
    add(std::numeric_limits<float>::infinity());
    EXPECT_NO_THROW(check_exact_sums(*gradients, 7));
    EXPECT_TRUE(std::isinf(global_grad_norm(model, *gradients)));
    add(std::nanf(""));
    EXPECT_NO_THROW(check_exact_sums(*gradients, 7));
    EXPECT_TRUE(std::isnan(global_grad_norm(model, *gradients)));
  }
}

TEST(ExactGradients, AreRoundedToFloat32Only) {
  const TokenModel model;
  const auto alone = single_process_group();
  EXPECT_THROW(OnDemandGradients(model.named_parameters(), {.dtype = kBFloat16, .exact = true}),
               ValueError);
  EXPECT_THROW(DistributedDataParallel(model.named_parameters(),
                                       {.grad_dtype = kBFloat16, .exact = true}, *alone),
               ValueError);
}

// A model of which tensor-parallel ranks have slices: rows of a matrix, a part of the gradient of a
// vector, and heads of which several ranks have the same.
class SlicedModel final : public nn::Module {
 public:
  SlicedModel(int rank, int ranks) : rank_(rank), ranks_(ranks) {
    const int64_t rows = kRows / ranks;
    nn::Parameter& matrix = register_parameter("matrix", ones({rows, kColumns}), sharded());
    matrix.set_logical({{.name = "matrix",
                         .shape = {kRows, kColumns},
                         .view_shape = {rows, kColumns},
                         .end = rows,
                         .offset = {rank * rows, 0},
                         .slice_shape = {rows, kColumns}}});
    nn::Parameter& vector =
        register_parameter("vector", ones({13}), {.tp = nn::TensorParallel::kPartial});
    vector.set_logical({{.name = "vector", .shape = {13}, .view_shape = {13}, .end = 13}});
    // Two heads of keys: with four ranks, two ranks have the same one.
    const int64_t heads = std::max(2 / ranks, 1);
    const int64_t copies = std::max(ranks / 2, 1);
    nn::Parameter& keys = register_parameter("keys", ones({heads * kHead, 2}), sharded());
    keys.set_logical({{.name = "keys",
                       .shape = {2 * kHead, 2},
                       .view_shape = {heads * kHead, 2},
                       .end = heads * kHead,
                       .offset = {first_head() * kHead, 0},
                       .slice_shape = {heads * kHead, 2},
                       .copies = copies}});
  }
  std::string type_name() const override { return "SlicedModel"; }

  // Every token reaches each rank's slice; of partial gradients a rank has every n-th token.
  void run() const {
    const auto parameters = named_parameters();
    const int copies = std::max(ranks_ / 2, 1);
    Tensor loss = scalar(0);
    for (int token = 0; token < kTokens; ++token) {
      const auto add = [&](size_t i, int64_t first) {
        const nn::Parameter& parameter = *parameters[i].parameter;
        loss = loss +
               use_of(parameter, terms_of(parameter.numel(), token, static_cast<int>(i), 0, first));
      };
      add(0, rank_ * parameters[0].parameter->numel());
      if (token % ranks_ == rank_) {
        add(1, 0);
      }
      if (token % copies == rank_ % copies) {
        add(2, first_head() * kHead * 2);
      }
    }
    loss.backward();
  }

 private:
  static nn::ParameterFlags sharded() { return {.tp = nn::TensorParallel::kSharded}; }
  int64_t first_head() const { return ranks_ == 1 ? 0 : rank_ * 2 / ranks_; }

  static constexpr int64_t kRows = 8;
  static constexpr int64_t kColumns = 11;
  static constexpr int64_t kHead = 5;
  int rank_;
  int ranks_;
};

TEST(ExactGradients, OfSlicesHaveTheNormOfTheWhole) {
  std::map<std::string, double> norms;
  double norm = 0;
  for (const int tp : {1, 2, 4}) {
    for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients}) {
      SCOPED_TRACE(concat(tp, " slices, level ", static_cast<int>(sharding)));
      const int dp = tp == 4 || sharding == Sharding::kNone ? 1 : 2;
      run_thread_ranks(tp * dp, [&](const std::shared_ptr<ProcessGroup>& world) {
        initialize_model_parallel({.tensor_model_parallel_size = tp}, world);
        const int slice = get_tensor_model_parallel_group().rank();
        const SlicedModel model(slice, tp);
        DistributedDataParallel gradients(
            model.named_parameters(),
            {.sharding = sharding,
             .exact = true,
             .complete_gradients =
                 [](const ParameterList& parameters) { finalize_model_grads(parameters); }},
            get_data_parallel_group());
        gradients.start_step(0, 1);
        if (get_data_parallel_group().rank() == 0) {  // the others have no tokens
          model.run();
        }
        gradients.finish_reduce();
        const StepGradients found = gradients_of(model, gradients);
        if (tp == 1 && dp == 1) {
          norm = found.norm;
          norms = found.norms;
        }
        EXPECT_EQ(found.norm, norm);
        EXPECT_EQ(found.norms, norms);
        destroy_model_parallel();
      });
    }
  }
  EXPECT_GT(norm, 1);
  EXPECT_EQ(norms.size(), 3U);
}

// Both ends of a pipeline have a copy of an embedding, and a share of its gradient.
class EndsModel final : public nn::Module {
 public:
  EndsModel(bool is_first, bool has_others) {
    nn::ParameterFlags flags;
    flags.shared = !is_first;
    flags.has_copy = is_first && has_others;
    nn::Parameter& table = register_parameter("table", ones({10, 3}), flags);
    table.set_logical({{.name = "table", .shape = {10, 3}, .view_shape = {10, 3}, .end = 10}});
  }
  std::string type_name() const override { return "EndsModel"; }
  void run(int use) const {
    for (int token = 0; token < kTokens; ++token) {
      use_of(*named_parameters()[0].parameter, terms_of(30, token, use, 0)).backward();
    }
  }
};

TEST(ExactGradients, OfTiedCopiesAreThoseOfOne) {
  const EndsModel whole(true, false);
  OnDemandGradients expected(whole.named_parameters(), {.exact = true});
  expected.start_step(0, 1);
  whole.run(1);
  whole.run(0);
  expected.finish_reduce();
  const StepGradients one = gradients_of(whole, expected);
  run_thread_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
    initialize_model_parallel({.pipeline_model_parallel_size = 2}, world);
    const EndsModel model(world->rank() == 0, true);
    OnDemandGradients gradients(model.named_parameters(), {.exact = true});
    gradients.start_step(0, 1);
    model.run(world->rank());
    gradients.finish_reduce();
    const StepGradients found = gradients_of(model, gradients);
    EXPECT_EQ(found.values, one.values);
    EXPECT_EQ(found.norm, one.norm);
    destroy_model_parallel();
  });
}

// A part that all ranks have, and this rank's share of four experts.
class ExpertsModel final : public nn::Module {
 public:
  ExpertsModel(int rank, int ranks) : first_(rank * kExperts / ranks) {
    add("dense", {});
    for (int expert = first_; expert < first_ + kExperts / ranks; ++expert) {
      add(concat("expert", expert), {.expert = true});
    }
  }
  std::string type_name() const override { return "ExpertsModel"; }
  void run(const std::vector<int>& tokens, const std::vector<int>& tokens_of_experts) const {
    const auto parameters = named_parameters();
    Tensor loss = scalar(0);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const int use = i == 0 ? 0 : first_ + static_cast<int>(i);
      for (const int token : i == 0 ? tokens : tokens_of_experts) {
        loss = loss + use_of(*parameters[i].parameter, terms_of(kSize, token, use, 0));
      }
    }
    loss.backward();
  }

 private:
  void add(const std::string& name, nn::ParameterFlags flags) {
    nn::Parameter& parameter = register_parameter(name, ones({kSize}), flags);
    parameter.set_logical({{.name = name, .shape = {kSize}, .view_shape = {kSize}, .end = kSize}});
  }

  static constexpr int kExperts = 4;
  static constexpr int64_t kSize = 150;
  int first_;
};

TEST(ExactGradients, OfExpertsHaveOneNorm) {
  std::map<std::string, double> norms;
  double norm = 0;
  for (const int ranks : {1, 4}) {
    for (int ep = 1; ep <= ranks; ep *= 2) {
      for (const Sharding sharding : {Sharding::kNone, Sharding::kGradients}) {
        SCOPED_TRACE(concat(ranks, " ranks, experts over ", ep));
        run_thread_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
          initialize_model_parallel({.expert_model_parallel_size = ep}, world);
          ProcessGroup& same = copies_group(/*of_expert=*/true);
          const ExpertsModel model(experts_group().rank(), ep);
          DistributedDataParallel gradients(model.named_parameters(),
                                            {.sharding = sharding, .exact = true},
                                            copies_group(/*of_expert=*/false), &same);
          gradients.start_step(0, 1);
          model.run(tokens_of(world->rank(), ranks), tokens_of(same.rank(), same.size()));
          gradients.finish_reduce();
          const StepGradients found = gradients_of(model, gradients);
          if (ranks == 1 && sharding == Sharding::kNone) {
            norm = found.norm;
            norms = found.norms;
          }
          EXPECT_EQ(found.norm, norm);
          EXPECT_EQ(found.norms, norms);
          destroy_model_parallel();
        });
      }
    }
  }
  EXPECT_GT(norm, 1);
  EXPECT_EQ(norms.size(), 5U);
}

}  // namespace
}  // namespace tapestry
