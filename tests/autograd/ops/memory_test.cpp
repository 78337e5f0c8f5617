// Memory that cannot be had is a RuntimeError that names op and size, wherever it was wanted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "autograd/tensor/system_memory.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kTerabyte = int64_t{1} << 40;

// A rank of its own, whose memory the test bounds, and a team of two.
class OutOfMemory : public ::testing::Test {
 protected:
  void SetUp() override { set_num_threads(2); }
  void TearDown() override { set_num_threads(before_); }

  RankContext context_;
  RankContextGuard guard_{context_};
  int before_ = num_threads();
};

TEST_F(OutOfMemory, ATerabyteIsRefusedBeforeItIsTouched) {
  const int64_t available = available_memory();
  ASSERT_LT(available, kTerabyte) << "this machine can serve what the test asks for";
  const Shape shape = {kTerabyte / 4};
  EXPECT_THAT(message_of<RuntimeError>([&] { zeros(shape); }),
              AllOf(StartsWith("zeros: no memory for 1099511627776 bytes (1024.0 GiB"),
                    HasSubstr("left for this process")));
  EXPECT_THAT(message_of<RuntimeError>([&] { randn(shape); }), HasSubstr("1099511627776 bytes"));
  const Tensor wide = ones({1}).expand(shape);
  EXPECT_THAT(message_of<RuntimeError>([&] { wide.clone(); }), StartsWith("clone: no memory for"));
  EXPECT_THAT(message_of<RuntimeError>([&] { exp(wide); }), StartsWith("exp: no memory for"));
  EXPECT_THAT(message_of<RuntimeError>([&] { wide.to_vector<float>(); }),
              StartsWith("to_vector: no memory for 1099511627776 bytes"));
  EXPECT_THAT(message_of<RuntimeError>([&] {
                matmul(wide.view({-1, 1}), ones({1, 1}));
              }),
              StartsWith("matmul: no memory for 1099511627776 bytes"));
  // A gradient that would need it.
  const Tensor x = ones({1}).set_requires_grad();
  const Tensor y = square(x);
  EXPECT_THAT(message_of<RuntimeError>([&] { sum(mul(x.expand(shape), 2)); }),
              StartsWith("mul_scalar: no memory for"));
  sum(y).backward();  // everything goes on
  EXPECT_EQ(x.grad().item(), 2);
}

TEST_F(OutOfMemory, TheLimitCountsWhatIsHeldAndReleasesTheCacheFirst) {
  set_memory_limit(40 * kMiB);
  EXPECT_EQ(context_.allocator().limit(), 40 * kMiB);
  { const Tensor x = zeros({30 * kMiB / 4}); }
  const Tensor y = zeros({20 * kMiB / 4});  // in the place of x
  EXPECT_LE(memory_stats().reserved_bytes, 40 * kMiB);
  EXPECT_THAT(message_of<RuntimeError>([&] { ones({30 * kMiB / 4}); }),
              AllOf(StartsWith("ones: no memory for 31457280 bytes (30.0 MiB, activations)"),
                    HasSubstr("the limit is 40.0 MiB"), HasSubstr("memory: 20.0 MiB in use")));
  EXPECT_THAT(message_of<RuntimeError>([&] {
                TensorList many(100);
                for (Tensor& t : many) {
                  t = zeros({kMiB / 8});  // small blocks count, too
                }
              }),
              HasSubstr("the limit is 40.0 MiB"));
  set_memory_limit(-1);
  EXPECT_EQ(context_.allocator().limit(), -1);
  ones({30 * kMiB / 4});
}

TEST_F(OutOfMemory, NamesTheOpWhoseBackwardRuns) {
  const Tensor x = ones({kMiB}).set_requires_grad();
  const Tensor y = sum(exp(x * 2));
  context_.allocator().release_cache();
  set_memory_limit(memory_stats().reserved_bytes + kMiB);  // enough for the first gradient
  EXPECT_THAT(message_of<RuntimeError>([&] { y.backward(); }),
              AllOf(HasSubstr("backward of"), HasSubstr("4194304 bytes")));
  set_memory_limit(-1);
  EXPECT_EQ(kernels::team_state().op, "");
  EXPECT_EQ(kernels::team_state().backward_of, "");
}

// At this level products of 16-bit numbers are those of their float32 copies.
class PortableLevel {
 public:
  PortableLevel() : previous_(cpu_level()) { set_cpu_level(CpuLevel::kPortable); }
  PortableLevel(const PortableLevel&) = delete;
  PortableLevel& operator=(const PortableLevel&) = delete;
  ~PortableLevel() { set_cpu_level(previous_); }

 private:
  CpuLevel previous_;
};

TEST_F(OutOfMemory, ProductsOfWidenedNumbersAreRefusedInWords) {
  const PortableLevel portable;
  const Tensor half = randn({512, 1024}, kBFloat16, RandomKey{.seed = 1});
  matmul(half, half.t());
  context_.allocator().release_cache();
  // Enough for the result of half a MiB and the copy of one operand's block, 512 x 512.
  set_memory_limit(memory_stats().reserved_bytes + 2 * kMiB);
  EXPECT_THAT(message_of<RuntimeError>([&] { matmul(half, half.t()); }),
              AllOf(StartsWith("matmul: no memory for"), HasSubstr("(1.0 MiB, workspace)")));
  set_memory_limit(-1);
  matmul(half, half.t());
}

// Whatever the limit, an op is served or refused in words: also where its kernel takes working
// memory inside a loop over threads. An exception that left such a loop would end the program.
TEST_F(OutOfMemory, EveryLimitServesOrRefuses) {
  const auto n = [](const Shape& shape, DType dtype = kFloat32) {
    return randn(shape, dtype, RandomKey{.seed = 1}).set_requires_grad();
  };
  const Tensor rows = n({4, 1 << 18});
  const Tensor half = n({512, 1024}, kBFloat16);
  const Tensor heads = n({1, 4, 512, 64});
  const Tensor weight = n({1 << 18});
  struct Case {
    std::string name;
    std::function<Tensor()> run;
  };
  const std::vector<Case> cases = {
      {"sort", [&] { return sort(rows, -1).values; }},
      {"norm", [&] { return layer_norm(rows, weight, weight); }},
      {"matmul", [&] { return matmul(half, half.t()); }},
      {"attention", [&] { return scaled_dot_product_attention(heads, heads, heads); }},
      {"sum", [&] { return sum(half, {0}); }},
  };
  for (const Case& c : cases) {
    const auto once = [&] { sum(c.run().to(kFloat32)).backward(); };
    once();  // threads, tables and compiled products exist from now on
    context_.allocator().release_cache();
    const int64_t least = memory_stats().reserved_bytes;
    context_.allocator().reset_peak();
    once();
    const int64_t most = memory_stats().peak_bytes;
    constexpr int kSteps = 16;
    int refused = 0;
    int refused_workspace = 0;
    for (int step = 0; step <= kSteps; ++step) {
      context_.allocator().release_cache();
      set_memory_limit(least + (most - least) * step / kSteps);
      try {
        once();
      } catch (const RuntimeError& e) {
        ++refused;
        refused_workspace += std::string(e.what()).find("workspace)") != std::string::npos ? 1 : 0;
        EXPECT_THAT(e.what(), HasSubstr("no memory for")) << c.name;
        EXPECT_THAT(e.what(), ::testing::Not(StartsWith("allocate"))) << c.name;
      }
      set_memory_limit(-1);
    }
    EXPECT_GT(refused, 0) << c.name;
    if (c.name == "sort" || c.name == "norm") {
      EXPECT_GT(refused_workspace, 0) << c.name;
    }
    once();
  }
}

}  // namespace
}  // namespace tapestry
