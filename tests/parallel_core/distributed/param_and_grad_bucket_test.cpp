#include "parallel_core/distributed/param_and_grad_bucket.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/ops/ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/thread_ranks.h"
#include "tests/parallel_core/distributed/three_parameters.h"

namespace tapestry {
namespace {

using testing::ThreeParameters;
using Options = ParamAndGradBucket::Options;

// From the last to the first, as DistributedDataParallel gives them.
std::vector<ParamAndGradBucket::Placed> backwards(const ThreeParameters& module) {
  return {{"c", &module.c()}, {"b", &module.b()}, {"a", &module.a()}};
}

bool all_count(const nn::Parameter& /*parameter*/) { return true; }

// The whole buffer in which the gradients lie. The first parameter's place is its beginning.
Tensor buffer_of(const ParamAndGradBucket& bucket) {
  const Tensor first = bucket.parameters().front().parameter->main_grad();
  return alias(first, {bucket.size()}, {1}, 0);
}

void expect_layout(const ParamAndGradBucket& bucket, int64_t size) {
  EXPECT_EQ(bucket.size(), size);
  const std::vector<int64_t> offsets = {0, 64, 128};
  for (size_t i = 0; i < offsets.size(); ++i) {
    const ParamAndGradBucket::Placed& placed = bucket.parameters()[i];
    EXPECT_EQ(placed.offset, offsets[i]) << placed.name;
    const Tensor main_grad = placed.parameter->main_grad();
    EXPECT_EQ(main_grad.offset(), offsets[i]) << placed.name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(main_grad.raw()) % 64, 0U) << placed.name;
    EXPECT_EQ(main_grad.storage().get(), buffer_of(bucket).storage().get());
  }
}

TEST(ParamAndGradBucket, LaysParametersOutInTheirOrder) {
  for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients}) {
    const auto alone = single_process_group();
    const ThreeParameters module;
    const ParamAndGradBucket bucket(backwards(module), {.sharding = sharding}, *alone);
    expect_layout(bucket, 64 + 64 + 64);
    EXPECT_EQ(module.a().main_grad().dtype(), kFloat32);
  }
}

TEST(ParamAndGradBucket, FillsUpToEqualShards) {
  for (const int ranks : {2, 3, 4}) {
    run_thread_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
      const ThreeParameters module;
      ParamAndGradBucket bucket(backwards(module), {.sharding = Sharding::kOptimizer}, *world);
      expect_layout(bucket, ranks == 3 ? 192 : 256);
      EXPECT_EQ(bucket.shard_size() * ranks, bucket.size());
      ASSERT_EQ(bucket.pieces().size(), 3U);
      for (size_t i = 0; i < 3; ++i) {
        const ParamAndGradBucket::Placed& placed = bucket.parameters()[i];
        int64_t end = 0;
        for (int rank = 0; rank < ranks; ++rank) {  // one piece after the other
          const auto range = bucket.range_of(placed, rank);
          if (range.first < range.second) {
            EXPECT_EQ(range.first, end);
            EXPECT_EQ((placed.offset + range.first) % 64, 0);
            end = range.second;
          }
        }
        EXPECT_EQ(end, placed.parameter->numel());
        const ParameterPiece& piece = bucket.pieces()[i];
        EXPECT_EQ(std::pair(piece.begin, piece.end), bucket.range_of(placed, world->rank()));
        EXPECT_EQ(piece.gradient.numel(), piece.end - piece.begin);
        EXPECT_EQ(piece.values.main_grad().raw(), piece.gradient.raw());
      }
    });
  }
}

TEST(ParamAndGradBucket, GradIsAPieceOfTheBuffer) {
  for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients}) {
    const auto alone = single_process_group();
    const ThreeParameters module;
    ParamAndGradBucket bucket(backwards(module), {.sharding = sharding}, *alone);
    bucket.zero(0);
    {  // memory that is given out again is not zero
      const Tensor used = full({bucket.size()}, 7);
    }
    module.add_sizes_to_gradients();
    module.add_sizes_to_gradients();
    for (const auto& entry : module.named_parameters()) {
      EXPECT_EQ(entry.parameter->grad().raw(), entry.parameter->main_grad().raw());
      for (const float value : entry.parameter->grad().to_vector<float>()) {
        EXPECT_EQ(value, 2.0F * static_cast<float>(entry.parameter->numel()));
      }
    }
    const auto expect_values = [&](float factor) {
      // The gaps between the parameters stay zero.
      const std::vector<float> all = buffer_of(bucket).to_vector<float>();
      for (size_t i = 0; i < all.size(); ++i) {
        const float value = i < 3                 ? 3.0F
                            : i >= 64 && i < 80   ? 16.0F
                            : i >= 128 && i < 145 ? 17.0F
                                                  : 0.0F;
        EXPECT_EQ(all[i], factor * value) << i;
      }
    };
    expect_values(2);
    bucket.start_reduce();
    bucket.finish_reduce();
    const double expected = 4 * (17.0 * 17 * 17 + 16.0 * 16 * 16 + 27);
    EXPECT_NEAR(bucket.squares(all_count), expected, 1e-12 * expected);
    EXPECT_EQ(bucket.squares([&](const nn::Parameter& p) { return p.numel() == 3; }), 4 * 27);
    bucket.scale(0.5);
    EXPECT_NEAR(bucket.squares(all_count), expected / 4, 1e-12 * expected);
    bucket.gather_gradients();
    expect_values(1);
    bucket.release_gradients();
    bucket.zero(1);
    bucket.start_reduce();
    bucket.finish_reduce();
    if (sharding < Sharding::kGradients) {
      EXPECT_EQ(bucket.squares(all_count), 0);
    }
  }
}

TEST(ParamAndGradBucket, SquaresFindWhatIsNotFinite) {
  const auto alone = single_process_group();
  const ThreeParameters module;
  const ParamAndGradBucket bucket(backwards(module), {}, *alone);
  auto* data = buffer_of(bucket).data<float>();
  data[1] = 3e38F;
  data[2] = 3e38F;
  EXPECT_NEAR(std::sqrt(bucket.squares(all_count)), 3e38 * std::sqrt(2.0), 1e32);
  data[136] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(bucket.squares(all_count)));
  data[65] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(bucket.squares(all_count)));
}

TEST(ParamAndGradBucket, ZeroHoldsForWhateverWasThere) {
  const auto alone = single_process_group();
  const ThreeParameters module;
  ParamAndGradBucket bucket(backwards(module), {}, *alone);
  const auto reduced_squares = [&] {
    bucket.start_reduce();
    bucket.finish_reduce();
    return bucket.squares(all_count);
  };
  for (const auto& entry : module.named_parameters()) {
    kernels::fill_row(kFloat32, entry.parameter->numel(), 7, entry.parameter->main_grad().raw(), 1);
  }
  bucket.zero(0);
  sum(module.a() * 3.0).backward();
  EXPECT_NEAR(reduced_squares(), 9 * 17.0, 1e-12);
  bucket.zero(1);
  EXPECT_EQ(reduced_squares(), 0);
  for (const float value : buffer_of(bucket).to_vector<float>()) {
    EXPECT_EQ(value, 0);
  }
}

TEST(ParamAndGradBucket, SumsOverTheRanksIntoShards) {
  for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients}) {
    run_thread_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
      const ThreeParameters module;
      ParamAndGradBucket bucket(backwards(module), {.sharding = sharding}, *world);
      bucket.zero(0);
      sum(module.a() * (world->rank() + 1.0)).backward();
      (sum(module.b()) + sum(module.c() * 4.0)).backward();
      bucket.start_reduce();
      bucket.finish_reduce();
      for (const ParameterPiece& piece : bucket.pieces()) {
        const float value = piece.name == "a" ? 3 : piece.name == "b" ? 2 : 8;
        for (const float element : piece.gradient.to_vector<float>()) {
          EXPECT_EQ(element, value) << piece.name;
        }
      }
      bucket.gather_gradients();
      EXPECT_EQ(module.a().grad().to_vector<float>(), std::vector<float>(17, 3));
      EXPECT_EQ(module.b().grad().to_vector<float>(), std::vector<float>(16, 2));
      EXPECT_EQ(module.c().grad().to_vector<float>(), std::vector<float>(3, 8));
      bucket.release_gradients();
    });
  }
}

TEST(ParamAndGradBucket, InBFloat16) {
  const auto alone = single_process_group();
  const ThreeParameters module;
  ParamAndGradBucket bucket(backwards(module), {.grad_dtype = kBFloat16, .seed = 5}, *alone);
  expect_layout(bucket, 64 + 64 + 64);
  const nn::Parameter& a = module.a();
  EXPECT_EQ(a.main_grad().dtype(), kBFloat16);
  const auto two_passes = [&](int64_t step) {
    bucket.zero(step);
    sum(a * 1.0).backward();
    sum(a * 0.003).backward();
    return a.grad().to(kFloat32).to_vector<float>();
  };
  const std::vector<float> first = two_passes(1);
  EXPECT_NE(two_passes(2), first);  // other numbers round otherwise
  EXPECT_EQ(two_passes(1), first);
  EXPECT_THROW(ParamAndGradBucket(backwards(module), {.grad_dtype = kFloat16}, *alone), TypeError);
}

TEST(ParamAndGradBucket, RefusesPagesWithoutShardedParameters) {
  const auto alone = single_process_group();
  const ThreeParameters module;
  EXPECT_THROW(ParamAndGradBucket(backwards(module),
                                  {.sharding = Sharding::kGradients, .paged = true}, *alone),
               ValueError);
}

}  // namespace
}  // namespace tapestry
