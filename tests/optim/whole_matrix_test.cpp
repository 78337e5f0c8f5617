// Lion, Adafactor, Came and Muon beyond their stored cases: what parameters are made of, what they
// are stored in, processors, saving, and wrong settings.
#include <cmath>
#include <functional>

#include "autograd/ops/map.h"
#include "autograd/ops/ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "optim/adafactor.h"
#include "optim/came.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/newton_schulz.h"
#include "tests/cpu_levels.h"
#include "tests/nn/nn_test_util.h"

namespace tapestry::optim {
namespace {

using Make = std::function<std::unique_ptr<Optimizer>(std::vector<ParamGroup>)>;

std::map<std::string, Make> makers() {
  return {
      {"Lion",
       [](std::vector<ParamGroup> groups) {
         return std::make_unique<Lion>(std::move(groups), LionOptions());
       }},
      {"Adafactor",
       [](std::vector<ParamGroup> groups) {
         return std::make_unique<Adafactor>(std::move(groups),
                                            AdafactorOptions{.lr = 0, .beta1 = 0.9});
       }},
      {"Came",
       [](std::vector<ParamGroup> groups) {
         return std::make_unique<Came>(std::move(groups), CameOptions{.scale_parameter = true});
       }},
      {"Muon",
       [](std::vector<ParamGroup> groups) {
         return std::make_unique<Muon>(std::move(groups), MuonOptions{.products = kFloat32});
       }},
  };
}

std::vector<ParamGroup> group_of(const TensorList& params, std::vector<std::string> names) {
  std::vector<ParamGroup> groups = single_group(params, 0.02, 0.1);
  groups[0].names = std::move(names);
  return groups;
}

Tensor normal_values(const Shape& shape, uint64_t draw) {
  return normal(0, 1, shape, kFloat32, RandomKey{31, draw, 0});
}

Tensor parameter_of(const Shape& shape, uint64_t draw) {
  const Tensor p = normal_values(shape, draw);
  p.set_requires_grad();
  return p;
}

double norm_of(const Tensor& x) { return std::sqrt(sum(square(x)).item()); }

double relative_distance(const Tensor& a, const Tensor& b) {
  return norm_of(a.detach() - b.detach()) / norm_of(b.detach());
}

// The rows of two logical tensors by turns: two of the first, one of the second.
class TwoInOne final : public ParameterLayout {
 public:
  std::vector<nn::LogicalTensor> logical(const std::string& /*name*/) const override {
    const Shape view = {3, 3, 20};
    return {{.name = "a", .shape = {6, 20}, .view_shape = view, .axis = 1, .begin = 0, .end = 2},
            {.name = "b", .shape = {3, 20}, .view_shape = view, .axis = 1, .begin = 2, .end = 3}};
  }
  const RankGroup* slices() const override { return nullptr; }
  const RankGroup* copies() const override { return nullptr; }
};

// A parameter that holds two tensors, and these as parameters of their own, after the same steps.
struct FusedAndApart {
  std::vector<nn::LogicalTensor> logical = TwoInOne().logical("");
  Tensor fused = parameter_of({9, 20}, 1);
  TensorList parts;
  std::unique_ptr<Optimizer> together;
  std::unique_ptr<Optimizer> apart;

  FusedAndApart(const Make& make, const GradTransform& transform) {
    for (const nn::LogicalTensor& part : logical) {
      parts.push_back(
          dense_copy(part.view_of(fused.detach())).view(part.shape).set_requires_grad());
    }
    together = make(group_of({fused}, {"ab"}));
    together->set_layout(std::make_shared<TwoInOne>());
    apart = make(group_of(parts, {"a", "b"}));
    for (uint64_t step = 0; step < 3; ++step) {
      const Tensor gradient = normal_values({9, 20}, 10 + step);
      fused.set_grad(gradient);
      for (size_t i = 0; i < parts.size(); ++i) {
        parts[i].set_grad(dense_copy(logical[i].view_of(gradient)).view(parts[i].shape()));
      }
      together->step(transform);
      apart->step(transform);
    }
  }
};

// Fused or not, an element is rounded with the same random number.
TEST(WholeMatrices, NarrowMomentsOfAPartAreThoseOfATensorOfItsOwn) {
  const StateStorage narrow = {.exp_avg_dtype = kBFloat16, .seed = 3};
  const StateStorage both = {.exp_avg_dtype = kBFloat16, .exp_avg_sq_dtype = kBFloat16, .seed = 3};
  const std::map<std::string, Make> narrow_makers = {
      {"AdamW",
       [&](std::vector<ParamGroup> groups) {
         return std::make_unique<AdamW>(std::move(groups), AdamOptions{.storage = both});
       }},
      {"Lion",
       [&](std::vector<ParamGroup> groups) {
         return std::make_unique<Lion>(std::move(groups), LionOptions{.storage = narrow});
       }},
      {"Muon",
       [&](std::vector<ParamGroup> groups) {
         groups[0].adamw = true;
         return std::make_unique<Muon>(std::move(groups), MuonOptions{.storage = both});
       }},
  };
  for (const auto& [name, make] : narrow_makers) {
    SCOPED_TRACE(name);
    const FusedAndApart both_ways(make, {});
    const auto& [logical, fused, parts, together, apart] = both_ways;
    for (const nn::LogicalTensor& part : logical) {
      for (const auto& [key, tensor] : apart->state(part.name)) {
        EXPECT_EQ(dense_copy(part.view_of(together->state("ab").at(key))).to_vector<float>(),
                  tensor.to_vector<float>())
            << part.name << " " << key;
      }
    }
  }
}

TEST(WholeMatrices, APartOfAParameterIsATensorOfItsOwn) {
  for (const auto& [name, make] : makers()) {
    SCOPED_TRACE(name);
    const FusedAndApart both_ways(make, {.scale = 0.5, .limit = 0.8});
    const auto& [logical, fused, parts, together, apart] = both_ways;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Tensor found = dense_copy(logical[i].view_of(fused.detach())).view(parts[i].shape());
      EXPECT_LE(relative_distance(found, parts[i]), 1e-6);
    }
    // Statistics are the parts' own.
    for (const auto& [key, tensor] : apart->state("b")) {
      const auto states = together->state("ab");
      if (tensor.shape() != parts[1].shape()) {
        EXPECT_LE(relative_distance(states.at(key + ".1"), tensor), 1e-6) << key;
        EXPECT_LE(relative_distance(states.at(key), apart->state("a").at(key)), 1e-6) << key;
      }
    }
  }
}

// Sizes that leave remainders of vectors, of blocks and of tiles.
TEST(WholeMatrices, EveryProcessorComputesTheSame) {
  for (const auto& [name, make] : makers()) {
    SCOPED_TRACE(name);
    const auto run = [&](DType gradients) {
      const TensorList params = {parameter_of({70, 1037}, 2), parameter_of({531}, 3),
                                 parameter_of({2, 5, 3}, 4)};
      const auto optimizer = make(group_of(params, {"w", "v", "stack"}));
      for (uint64_t step = 0; step < 2; ++step) {
        for (size_t i = 0; i < params.size(); ++i) {
          params[i].set_main_grad(
              normal_values(params[i].shape(), 20 + 3 * step + i).to(gradients));
        }
        optimizer->step();
      }
      TensorList out;
      for (size_t i = 0; i < params.size(); ++i) {
        out.push_back(params[i].detach() - parameter_of(params[i].shape(), 2 + i).detach());
      }
      return out;
    };
    const TensorList best = run(kFloat32);
    const TensorList halves = run(kBFloat16);
    const CpuLevelGuard guard(CpuLevel::kPortable);
    for (const auto& [dtype, found] : {std::pair{kFloat32, best}, std::pair{kBFloat16, halves}}) {
      const TensorList expected = run(dtype);
      for (size_t i = 0; i < expected.size(); ++i) {
        // A sign of Lion's that rounding turns is one in ten thousand elements at most.
        EXPECT_LE(relative_distance(found[i], expected[i]), name == "Lion" ? 0.02 : 2e-4) << i;
      }
    }
    // Gradients rounded to eight bits are others, but not by much.
    EXPECT_GT(relative_distance(halves[0], best[0]), 0);
    EXPECT_LT(relative_distance(halves[0], best[0]), 0.2);
  }
}

TEST(WholeMatrices, HalvesHaveMasters) {
  for (const auto& [name, make] : makers()) {
    SCOPED_TRACE(name);
    const Tensor half = parameter_of({12, 40}, 5);
    const Tensor single = parameter_of({12, 40}, 5);
    const auto a = make(group_of({half}, {"w"}));
    const auto b = make(group_of({single}, {"w"}));
    a->store_parameter_as("w", kBFloat16);
    for (uint64_t step = 0; step < 2; ++step) {
      const Tensor gradient = normal_values({12, 40}, 40 + step);
      half.set_grad(gradient.to(kBFloat16));
      single.set_grad(gradient.to(kBFloat16).to(kFloat32));
      a->step();
      b->step();
    }
    EXPECT_EQ(values(a->main_param("w")), values(single.detach()));
    EXPECT_EQ(values(half.detach().to(kFloat32)),
              values(single.detach().to(kBFloat16).to(kFloat32)));
  }
}

TEST(WholeMatrices, GoOnFromASavedState) {
  for (const auto& [name, make] : makers()) {
    SCOPED_TRACE(name);
    const TensorList first = {parameter_of({6, 8}, 6), parameter_of({7}, 7)};
    const auto a = make(group_of(first, {"w", "v"}));
    const auto step = [&](Optimizer& optimizer, const TensorList& params, uint64_t number) {
      for (const Tensor& p : params) {
        p.set_grad(normal_values(p.shape(), 60 + number));
      }
      optimizer.step();
    };
    step(*a, first, 0);
    const TensorList second = {first[0].detach().clone().set_requires_grad(),
                               first[1].detach().clone().set_requires_grad()};
    const auto b = make(group_of(second, {"w", "v"}));
    b->load_state_dict(a->state_dict());
    step(*a, first, 1);
    step(*b, second, 1);
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(values(first[i].detach()), values(second[i].detach()));
    }
    for (const auto& [key, tensor] : a->state_dict()) {
      EXPECT_EQ(values(tensor.to(kFloat32)), values(b->state_dict().at(key).to(kFloat32))) << key;
    }
  }
}

TEST(WholeMatrices, ShapesOfStates) {
  const Tensor w = parameter_of({2, 3, 5}, 8);
  Came came(group_of({w}, {"w"}), {});
  w.set_grad(normal_values({2, 3, 5}, 80));
  came.step();
  const auto states = came.state("w");
  EXPECT_EQ(states.size(), 5U);
  EXPECT_EQ(states.at("exp_avg").shape(), (Shape{2, 3, 5}));
  EXPECT_EQ(states.at("exp_avg_res_row").shape(), (Shape{2, 3}));
  EXPECT_EQ(states.at("exp_avg_sq_col").shape(), (Shape{2, 5}));
  Adafactor adafactor(group_of({w}, {"w"}), {});
  adafactor.step();
  EXPECT_EQ(adafactor.state("w").size(), 2U);
}

TEST(Lion, MomentsInHalfThePlace) {
  const Tensor w = parameter_of({4096}, 9);
  const Tensor narrow = parameter_of({4096}, 9);
  Lion a({w}, {});
  Lion b({narrow}, {.storage = {.exp_avg_dtype = kBFloat16, .seed = 3}});
  Tensor sum = zeros({4096});
  for (uint64_t step = 0; step < 30; ++step) {
    const Tensor gradient = normal_values({4096}, 90 + step) * 0.1 + 1;
    w.set_grad(gradient);
    narrow.set_grad(gradient);
    a.step();
    b.step();
  }
  // Rounded without a drift: errors of 2^-9 a step, of which 1 - beta2 keeps thirty.
  const Tensor difference = b.state("0.0").at("exp_avg") - a.state("0.0").at("exp_avg");
  EXPECT_LT(std::abs(mean(difference).item()), 2e-4);
  EXPECT_GT(norm_of(difference), 0);
}

TEST(NewtonSchulz, MakesSingularValuesEqual) {
  for (const Shape& shape : {Shape{24, 40}, Shape{40, 24}, Shape{16, 16}}) {
    const Tensor x = normal_values(shape, 100);
    const bool wide = shape[0] <= shape[1];
    for (const DType products : {kFloat32, kBFloat16}) {
      const Tensor y = newton_schulz(x, 5, products);
      const Tensor gram = wide ? matmul(y, y.t()) : matmul(y.t(), y);
      // 1.13 is the largest that the polynomial leaves, 0.68 the least of those that are not tiny.
      const double trace = sum(gram * eye(gram.size(0))).item() / static_cast<double>(gram.size(0));
      EXPECT_GT(trace, 0.4);
      EXPECT_LT(trace, 1.3);
      EXPECT_LT(relative_distance(y, newton_schulz(x, 5, kFloat32)), 0.2);
    }
    // The transpose of the result is the result of the transpose.
    const Tensor turned = newton_schulz(dense_copy(x.t()), 5, kFloat32);
    EXPECT_LT(relative_distance(turned.t(), newton_schulz(x, 5, kFloat32)), 1e-3);
  }
  // A stack is its matrices.
  const Tensor stack = normal_values({2, 5, 7}, 101);
  EXPECT_EQ(values(newton_schulz(stack, 5, kFloat32).select(0, 1)),
            values(newton_schulz(dense_copy(stack.select(0, 1)), 5, kFloat32)));
  EXPECT_EQ(values(newton_schulz(zeros({3, 4}), 5, kFloat32)), std::vector<float>(12));
}

TEST(Muon, GroupsThatTakeAdamW) {
  const Tensor table = parameter_of({6, 4}, 11);
  const Tensor copy = parameter_of({6, 4}, 11);
  std::vector<ParamGroup> groups = group_of({table}, {"table"});
  groups[0].adamw = true;
  Muon muon(groups, {.beta1 = 0.8, .beta2 = 0.9});
  AdamW adamw(group_of({copy}, {"table"}), {.beta1 = 0.8, .beta2 = 0.9});
  table.set_grad(normal_values({6, 4}, 110));
  copy.set_grad(normal_values({6, 4}, 110));
  muon.step();
  adamw.step();
  EXPECT_EQ(values(table.detach()), values(copy.detach()));
  EXPECT_TRUE(muon.state("table").contains("exp_avg_sq"));
}

TEST(WholeMatrices, WrongSettings) {
  const Tensor w = parameter_of({2, 3}, 12);
  const TensorList params = {w};
  const auto refused = [](const auto& make, const char* what) {
    expect_throws<ValueError>(make, {what});
  };
  refused([&] { Lion(params, {.beta2 = 1}); }, "Lion: betas must lie in [0, 1)");
  refused([&] { Lion(params, {.lr = -1}); }, "Lion: ... not be negative, got ... -1");
  refused([&] { Lion(params, {.storage = {.store_param_remainders = true}}); }, "exp_avg_sq");
  refused([&] { Adafactor(params, {.eps1 = 0}); }, "Adafactor: eps1 must be above 0");
  refused([&] { Adafactor(params, {.beta1 = 1.5}); }, "Adafactor: betas");
  refused([&] { Adafactor(params, {.lr = 0.1, .warmup_init = true}); }, "warmup_init");
  refused([&] { Came(params, {.beta1 = 0}); }, "Came: beta1 must be above 0");
  refused([&] { Came(params, {.clip_threshold = 0}); }, "Came: clip_threshold must be above 0");
  refused([&] { Muon(params, {.momentum = 1}); }, "Muon: ... momentum must lie in ... [0, 1)");
  refused([&] { Muon(params, {.ns_steps = 0}); }, "Muon: ... ns_steps ... must be above ... 0");
  refused([&] { Muon(params, {.products = kFloat64}); }, "Muon: products");
  refused([&] { Muon(params, {.storage = {.store_param_remainders = true}}); }, "exp_avg_sq");
  refused(
      [&] {
        std::vector<ParamGroup> groups = single_group(params, 0.1, 0);
        groups[0].betas = {0.9, 0.9};
        Came(groups, {});
      },
      "Came: a group has betas");
}

}  // namespace
}  // namespace tapestry::optim
