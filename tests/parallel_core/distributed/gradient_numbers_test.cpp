// Sums of gradients in bfloat16 are rounded with the same random numbers in every layout.
#include "parallel_core/distributed/gradient_numbers.h"

#include <gtest/gtest.h>

#include <atomic>

#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/distributed/on_demand_gradients.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/training/pretrain.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/rank_layouts.h"

namespace tapestry {
namespace {

using testing::joined;
using testing::Overrides;
using testing::RankLayout;
using testing::small_config;
using testing::State;

constexpr int64_t kPasses = 4;
constexpr int64_t kStep = 3;
constexpr uint64_t kSeed = 5;

// What a pass adds to a logical tensor's gradient: the same for whoever asks. The first is exact in
// bfloat16, the others' sums are not.
Tensor contribution(const nn::LogicalTensor& logical, int64_t pass) {
  return normal(0, pass == 0 ? 1 : 0.01, logical.shape, kFloat32,
                RandomKey{17, combine(stream_of(logical.name), static_cast<uint64_t>(pass)), 0})
      .to(kBFloat16)
      .to(kFloat32);
}

// The parameter's part of tensors that are there by logical name or are made.
template <class Get>
Tensor local_part(const nn::Parameter& parameter, const Get& get) {
  const NoGradGuard guard;
  const Tensor local = zeros(parameter.shape());
  for (const nn::LogicalTensor& logical : parameter.logical()) {
    const Tensor piece = logical.view_of(local);
    copy_values(dense(logical.slice_of(get(logical))).view(piece.shape()), piece);
  }
  return local;
}

void add_contributions(const nn::Module& model, int64_t pass, double factor = 1) {
  Tensor total = scalar(0);
  for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
    const Tensor part = local_part(*entry.parameter, [&](const nn::LogicalTensor& logical) {
      return contribution(logical, pass);
    });
    total = total + sum(*entry.parameter * (part * factor));
  }
  total.backward();
}

template <class Body>
void on_ranks(const RankLayout& layout, const Overrides& overrides, const Body& body) {
  run_thread_ranks(layout.ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
    const AllConfig config = small_config(joined(overrides, layout.overrides));
    initialize_ranks(config, world);
    const auto model = get_model(config);
    body(*model, world->rank());
  });
}

// Of one process: by logical names.
template <class Held>
State logical_sums(const nn::Module& model, const Held& held) {
  State out;
  for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
    const Tensor gradient = held(entry).to(kFloat32).view(entry.parameter->shape());
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      out[logical.name] = dense_copy(logical.view_of(gradient)).view(logical.shape);
    }
  }
  return out;
}

const RankLayout kAlone = {1, {}};

struct SumCase {
  Overrides overrides;
  std::vector<RankLayout> layouts;
};

// Two key-value heads, of which four tensor-parallel ranks have each one twice; norms whose
// gradients are shares where a sequence is cut; tied embeddings at both ends of a pipeline.
std::vector<SumCase> sum_cases() {
  const Overrides sequence = {testing::kParallel + "sequence_parallel=True"};
  const Overrides one_slice = {testing::kParallel + "expert_tensor_parallel_size=1"};
  return {{{}, {{2, testing::tp(2)}, {2, testing::pp(2)}}},
          {testing::llama(), {{4, joined(testing::tp(4), sequence)}, {2, testing::tp(2)}}},
          {testing::mixtral(),
           {{2, testing::ep(2)},
            {2, testing::tp(2)},
            {4, joined({testing::tp(2), testing::ep(4), one_slice})}}}};
}

// True if the rank has a share of this gradient that is not the first.
bool has_further_share(const nn::LogicalTensor& logical, const nn::ParameterFlags& flags) {
  const int rank = slices_group(flags.expert).rank();
  return flags.shared ||
         (flags.tp == nn::TensorParallel::kPartial ? rank > 0 : rank % logical.copies > 0);
}

TEST(GradientNumbers, SumsOfAStepAreThoseOfOneProcess) {
  int64_t shares = 0;
  for (const SumCase& c : sum_cases()) {
    State expected;
    const auto sums = [&](const nn::Module& model) {
      OnDemandGradients gradients(model.trained_parameters(), {.dtype = kBFloat16, .seed = kSeed});
      gradients.start_step(kStep, kPasses);
      for (int64_t pass = 0; pass < kPasses; ++pass) {
        add_contributions(model, pass);
      }
    };
    on_ranks(kAlone, c.overrides, [&](const nn::Module& model, int /*rank*/) {
      sums(model);
      expected =
          logical_sums(model, [](const auto& entry) { return entry.parameter->main_grad(); });
    });
    for (const RankLayout& layout : c.layouts) {
      SCOPED_TRACE(::testing::PrintToString(layout.overrides));
      std::atomic<int64_t> further = 0;
      on_ranks(layout, c.overrides, [&](const nn::Module& model, int /*rank*/) {
        sums(model);
        for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
          const Tensor found = entry.parameter->main_grad().to(kFloat32);
          for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
            const std::vector<float> a = dense(logical.view_of(found)).to_vector<float>();
            const std::vector<float> b =
                dense(logical.slice_of(expected.at(logical.name))).to_vector<float>();
            if (has_further_share(logical, entry.parameter->flags())) {
              EXPECT_NE(a, b) << logical.name;
              ++further;
            } else {
              EXPECT_EQ(a, b) << logical.name;
            }
          }
        }
      });
      shares += further;
    }
  }
  EXPECT_GT(shares, 0);
}

// From z2 on each pass is summed over the ranks and added to what its owner has.
TEST(GradientNumbers, SumsOfShardsAreTheSameInEveryLayout) {
  const auto sums = [](const nn::Module& model, int64_t bucket_size) {
    auto gradients = std::make_unique<DistributedDataParallel>(
        model.trained_parameters(),
        DataParallelOptions{.sharding = Sharding::kGradients,
                            .bucket_size = bucket_size,
                            .grad_dtype = kBFloat16,
                            .seed = kSeed},
        copies_group(false), &copies_group(true));
    gradients->start_step(kStep, kPasses);
    const bool adds = gradients->group().rank() == 0;  // zeros of the others change nothing
    for (int64_t pass = 0; pass < kPasses; ++pass) {
      add_contributions(model, pass, adds ? 1 : 0);
    }
    gradients->finish_reduce();
    return gradients;
  };
  for (const Overrides& overrides : {Overrides{}, testing::llama()}) {
    State expected;
    on_ranks({2, {}}, overrides, [&](const nn::Module& model, int rank) {
      const auto gradients = sums(model, 0);
      gradients->gather_gradients();
      if (rank == 0) {
        expected =
            logical_sums(model, [](const auto& entry) { return entry.parameter->main_grad(); });
      }
      gradients->release_gradients();
    });
    for (const RankLayout& layout : {RankLayout{3, {}}, {4, testing::tp(2)}, {4, testing::pp(2)}}) {
      for (const int64_t bucket_size : {0, 500}) {
        SCOPED_TRACE(::testing::PrintToString(layout.overrides));
        on_ranks(layout, overrides, [&](const nn::Module& model, int /*rank*/) {
          const auto gradients = sums(model, bucket_size);
          for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
            const auto held = gradients->held_gradient(entry);
            const Tensor whole = local_part(
                *entry.parameter,
                [&](const nn::LogicalTensor& logical) { return expected.at(logical.name); });
            EXPECT_EQ(held.elements.to(kFloat32).to_vector<float>(),
                      whole.view({-1})
                          .slice(0, held.first, held.first + held.elements.numel())
                          .to_vector<float>())
                << entry.name;
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace tapestry
