// The tree of modules: names, modes, state, printing, hooks.
#include "nn/module.h"

#include <limits>
#include <memory>
#include <type_traits>

#include "autograd/ops/ops.h"
#include "nn/layers/linear.h"
#include "tests/nn/nn_test_util.h"

namespace tapestry::nn {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Lets tests register things from outside.
class Open : public Module {
 public:
  std::string type_name() const override { return "Open"; }
  using Module::add_child;
  using Module::register_buffer;
  using Module::register_module;
  using Module::register_parameter;
};

class Leaf final : public Open {
 public:
  explicit Leaf(float start) {
    register_parameter("weight", full({2}, start));
    register_buffer("count", full({1}, start, kInt64));
  }
  std::string type_name() const override { return "Leaf"; }
  std::string extra_repr() const override { return "size=2"; }
};

/// Children before parameters, to see that names do not depend on that order.
class Tree final : public Open {
 public:
  Tree() {
    Open& middle = register_module<Open>("middle");
    middle.register_module<Leaf>("z", 1.0F);
    middle.register_module<Leaf>("a", 2.0F);
    register_parameter("scale", full({3}, 5), {.decay = false});
    register_buffer("mean", zeros({3}));
    register_module<Leaf>("last", 3.0F);
  }
  std::string type_name() const override { return "Tree"; }
};

std::vector<std::string> parameter_names(const Module& module) {
  std::vector<std::string> out;
  for (const Module::NamedParameter& p : module.named_parameters()) {
    out.push_back(p.name);
  }
  return out;
}

template <class List>
std::vector<std::string> names_of(const List& list) {
  std::vector<std::string> out;
  out.reserve(list.size());
  for (const auto& entry : list) {
    out.push_back(entry.name);
  }
  return out;
}

TEST(Module, NamesParametersByPathOwnOnesFirstInOrderOfRegistration) {
  const Tree tree;
  EXPECT_THAT(parameter_names(tree),
              ElementsAre("scale", "middle.z.weight", "middle.a.weight", "last.weight"));
  EXPECT_THAT(names_of(tree.named_buffers()),
              ElementsAre("mean", "middle.z.count", "middle.a.count", "last.count"));
  EXPECT_EQ(tree.num_parameters(), 3 + 3 * 2);
  const TensorList parameters = tree.parameters();
  ASSERT_EQ(parameters.size(), 4U);
  for (const Tensor& p : parameters) {
    EXPECT_TRUE(p.requires_grad());
  }
  EXPECT_TRUE(parameters[1].is_same(*tree.named_parameters()[1].parameter));
  EXPECT_THAT(values(parameters[1]), ElementsAre(1, 1));
}

TEST(Module, NamesModules) {
  Tree tree;
  EXPECT_THAT(names_of(tree.named_modules()),
              ElementsAre("", "middle", "middle.z", "middle.a", "last"));
  EXPECT_EQ(tree.named_modules()[0].module, &tree);
  EXPECT_THAT(names_of(tree.named_children()), ElementsAre("middle", "last"));
}

TEST(Module, ListsATiedParameterOnceUnderItsFirstName) {
  Open model;
  const Tensor shared = full({4}, 1);
  model.register_parameter("embedding", shared);
  model.register_parameter("head", shared);
  EXPECT_THAT(parameter_names(model), ElementsAre("embedding"));
  EXPECT_EQ(model.num_parameters(), 4);
  EXPECT_EQ(model.state_dict().size(), 1U);
  // A copy of the values is another parameter.
  model.register_parameter("untied", shared.detach().clone());
  EXPECT_THAT(parameter_names(model), ElementsAre("embedding", "untied"));
}

TEST(Module, KeepsParameterFlags) {
  const Tree tree;
  EXPECT_FALSE(tree.named_parameters()[0].parameter->flags().decay);
  EXPECT_TRUE(tree.named_parameters()[1].parameter->flags().decay);
  static_assert(!std::is_copy_constructible_v<Tree> && !std::is_move_constructible_v<Tree>);
}

TEST(Module, RefusesNamesThatCannotBePaths) {
  Open model;
  model.register_parameter("p", zeros({1}));
  model.register_buffer("b", zeros({1}));
  model.register_module<Leaf>("c", 0.0F);
  for (const std::string name : {"p", "b", "c"}) {
    expect_throws<ValueError>([&] { model.register_parameter(name, zeros({1})); }, {name, "taken"});
    expect_throws<ValueError>([&] { model.register_buffer(name, zeros({1})); }, {name, "taken"});
    expect_throws<ValueError>([&] { model.register_module<Leaf>(name, 0.0F); }, {name, "taken"});
  }
  for (const std::string name : {"", "a.b", "."}) {
    expect_throws<ValueError>([&] { model.register_parameter(name, zeros({1})); },
                              {"Open", "'" + name + "'"});
    expect_throws<ValueError>([&] { model.register_buffer(name, zeros({1})); }, {"Open"});
    expect_throws<ValueError>([&] { model.register_module<Leaf>(name, 0.0F); }, {"Open"});
  }
  expect_throws<ValueError>([&] { model.register_parameter("u", {}); }, {"'u'", "undefined"});
  expect_throws<ValueError>([&] { model.register_buffer("u", {}); }, {"'u'", "undefined"});
  expect_throws<ValueError>([&] { model.add_child("u", nullptr); }, {"'u'", "null"});
  // Nothing of what was refused is left behind.
  EXPECT_THAT(parameter_names(model), ElementsAre("p", "c.weight"));
  EXPECT_THAT(names_of(model.named_buffers()), ElementsAre("b", "c.count"));
  EXPECT_THAT(names_of(model.named_children()), ElementsAre("c"));
}

TEST(Module, RefusesAParameterWithoutDerivative) {
  Open model;
  expect_throws<TypeError>([&] { model.register_parameter("ids", zeros({2}, kInt64)); }, {"int64"});
}

TEST(Module, SwitchesTheWholeTreeBetweenTrainingAndEvaluation) {
  Tree tree;
  const auto modes = [&] {
    std::vector<bool> out;
    for (const Module::NamedModule& m : tree.named_modules()) {
      out.push_back(m.module->is_training());
    }
    return out;
  };
  EXPECT_THAT(modes(), Each(true));
  tree.eval();
  EXPECT_THAT(modes(), Each(false));
  tree.named_children()[0].module->train();
  EXPECT_THAT(modes(), ElementsAre(false, true, true, true, false));
  tree.train();
  EXPECT_THAT(modes(), Each(true));
}

TEST(Module, ZeroGradDropsGradientsAndClearsMainGrads) {
  Open model;
  const Parameter& a = model.register_parameter("a", full({2}, 1));
  const Parameter& b = model.register_parameter("b", full({2}, 1));
  const Tensor buffer = full({2}, 7);
  b.set_main_grad(buffer);
  sum(a * b).backward();
  EXPECT_TRUE(a.grad().defined());
  EXPECT_THAT(values(buffer), ElementsAre(8, 8));
  model.zero_grad();
  EXPECT_FALSE(a.grad().defined());
  EXPECT_THAT(values(buffer), ElementsAre(0, 0));
  EXPECT_TRUE(b.main_grad().is_same(buffer));
}

TEST(StateDict, SharesStorageAndIsNotRecorded) {
  const Tree tree;
  const StateDict state = tree.state_dict();
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state) {
    names.push_back(name);
    EXPECT_FALSE(tensor.requires_grad()) << name;
  }
  EXPECT_THAT(names, ElementsAre("last.count", "last.weight", "mean", "middle.a.count",
                                 "middle.a.weight", "middle.z.count", "middle.z.weight", "scale"));
  EXPECT_EQ(state.at("scale").raw(), tree.named_parameters()[0].parameter->raw());
}

TEST(StateDict, RoundTripsAndConvertsDtypes) {
  Tree tree;
  StateDict state;
  for (const auto& [name, tensor] : tree.state_dict()) {
    state[name] = full(tensor.shape(), 2.5, name == "scale" ? kBFloat16 : kFloat64);
  }
  // Strides do not matter either.
  state["mean"] = tensor(std::vector<double>{1, 9, 2, 9, 3, 9}, {3, 2}).select(1, 0);
  const uint32_t version = tree.named_parameters()[0].parameter->version();
  EXPECT_TRUE(tree.load_state_dict(state).empty());
  EXPECT_THAT(values(*tree.named_parameters()[0].parameter), ElementsAre(2.5, 2.5, 2.5));
  EXPECT_EQ(tree.named_parameters()[0].parameter->dtype(), kFloat32);
  EXPECT_THAT(values(tree.named_buffers()[0].buffer), ElementsAre(1, 2, 3));
  EXPECT_EQ(tree.named_buffers()[1].buffer.dtype(), kInt64);
  EXPECT_THAT(values(tree.named_buffers()[1].buffer), ElementsAre(2));
  // A graph that saved the old values notices.
  EXPECT_GT(tree.named_parameters()[0].parameter->version(), version);
}

TEST(StateDict, ReportsEverythingThatDoesNotFitAndChangesNothing) {
  Tree tree;
  StateDict state;
  for (const auto& [name, tensor] : tree.state_dict()) {
    state[name] = full(tensor.shape(), 9, tensor.dtype());
  }
  state.erase("middle.a.weight");
  state["last.count"] = Tensor();
  state["extra.weight"] = zeros({1});
  state["scale"] = zeros({4});
  expect_throws<ValueError>(
      [&] { tree.load_state_dict(state); },
      {"missing: middle.a.weight\n", "missing: last.count\n", "unexpected: extra.weight\n",
       "wrong shape: scale is [4], expected [3]\n"});
  expect_throws<ValueError>([&] { tree.load_state_dict(state, /*strict=*/false); },
                            {"wrong shape: scale"});
  EXPECT_THAT(values(*tree.named_parameters()[0].parameter), Each(5));
  EXPECT_THAT(values(tree.named_buffers()[0].buffer), Each(0));
  EXPECT_THAT(values(*tree.named_parameters()[3].parameter), Each(3));
}

// The weights of another model lack hundreds.
TEST(StateDict, ALongReportIsCut) {
  LoadReport report;
  for (const int i : {1, 2, 3, 4, 5, 6}) {
    report.missing.push_back("m" + std::to_string(i));
  }
  EXPECT_EQ(report.str(),
            "missing: m1\nmissing: m2\nmissing: m3\nmissing: m4\nmissing: m5\nmissing: m6\n");
  report.missing.emplace_back("m7");
  report.unexpected = {"u"};
  EXPECT_EQ(report.str(),
            "missing: m1\nmissing: m2\nmissing: m3\nmissing: m4\nmissing: m5\nmissing: 2 more\n"
            "unexpected: u\n");
}

TEST(StateDict, WithoutStrictOnlyReportsWhatIsMissingOrUnexpected) {
  Tree tree;
  const LoadReport report =
      tree.load_state_dict({{"scale", full({3}, 9)}, {"else", zeros({1})}}, /*strict=*/false);
  EXPECT_THAT(report.unexpected, ElementsAre("else"));
  EXPECT_THAT(report.missing, ElementsAre("last.count", "last.weight", "mean", "middle.a.count",
                                          "middle.a.weight", "middle.z.count", "middle.z.weight"));
  EXPECT_THAT(report.mismatched, IsEmpty());
  EXPECT_FALSE(report.empty());
  EXPECT_THAT(values(*tree.named_parameters()[0].parameter), Each(9));
  EXPECT_THAT(values(*tree.named_parameters()[3].parameter), Each(3));
}

TEST(ModulePrinting, ShowsTheTree) {
  EXPECT_EQ(printed(static_cast<const Module&>(Tree())),
            "Tree\n"
            "  (middle): Open\n"
            "    (z): Leaf(size=2)\n"
            "    (a): Leaf(size=2)\n"
            "  (last): Leaf(size=2)\n");
}

class Double final : public UnaryModule {
 public:
  std::string type_name() const override { return "Double"; }
  Tensor forward(const Tensor& x) override { return 2 * x; }
};

TEST(UnaryModuleHooks, SeeInputAndOutputInOrder) {
  Double module;
  std::vector<float> seen;
  module.register_forward_pre_hook([&](UnaryModule& m, const Tensor& x) {
    EXPECT_EQ(&m, &module);
    seen.push_back(static_cast<float>(x.item()));
    return Tensor();
  });
  module.register_forward_hook([&](UnaryModule& m, const Tensor& x, const Tensor& y) {
    EXPECT_EQ(&m, &module);
    seen.push_back(static_cast<float>(x.item()));
    seen.push_back(static_cast<float>(y.item()));
    return Tensor();
  });
  EXPECT_EQ(module(scalar(3)).item(), 6);
  EXPECT_THAT(seen, ElementsAre(3, 3, 6));
  EXPECT_EQ(module.forward(scalar(3)).item(), 6);  // forward alone runs no hooks
  EXPECT_EQ(seen.size(), 3U);
}

TEST(UnaryModuleHooks, CanBeRemovedAndRegisterOthers) {
  Double module;
  HookHandle before;
  before = module.register_forward_pre_hook([&](UnaryModule& m, const Tensor& x) {
    before.remove();  // only the first time
    m.register_forward_pre_hook([](UnaryModule&, const Tensor& y) { return y * 10; });
    return x + 1;
  });
  HookHandle after = module.register_forward_hook(
      [](UnaryModule&, const Tensor&, const Tensor& y) { return y + 1; });
  EXPECT_EQ(module(scalar(3)).item(), (3 + 1) * 2 + 1);
  EXPECT_EQ(module(scalar(3)).item(), 3 * 10 * 2 + 1);
  after.remove();
  EXPECT_EQ(module(scalar(3)).item(), 3 * 10 * 2);
}

TEST(UnaryModuleHooks, ReplaceInputAndOutput) {
  Double module;
  module.register_forward_pre_hook([](UnaryModule&, const Tensor& x) { return x + 1; });
  module.register_forward_pre_hook([](UnaryModule&, const Tensor& x) { return x * 10; });
  module.register_forward_hook([](UnaryModule&, const Tensor& x, const Tensor& y) {
    EXPECT_EQ(x.item(), 40);  // what forward was given
    return y + 1;
  });
  module.register_forward_hook([](UnaryModule&, const Tensor&, const Tensor& y) { return y * 3; });
  const Tensor x = scalar(3);
  x.set_requires_grad();
  const Tensor y = module(x);
  EXPECT_EQ(y.item(), ((3 + 1) * 10 * 2 + 1) * 3);
  y.backward();
  EXPECT_EQ(x.grad().item(), 60);
}

TEST(LogicalTensor, CutsAPieceThatSharesStorage) {
  // A fused [2 heads x (q, k) x 2, 3] weight, of which k is every second pair of rows.
  const Tensor whole = arange(24, kFloat32).view({8, 3});
  const LogicalTensor k{
      .name = "wk", .shape = {4, 3}, .view_shape = {2, 4, 3}, .axis = 1, .begin = 2, .end = 4};
  const Tensor piece = k.view_of(whole);
  EXPECT_EQ(piece.shape(), (Shape{2, 2, 3}));
  EXPECT_THAT(values(piece), ElementsAre(6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 22, 23));
  whole.data<float>()[6] = -1;
  EXPECT_EQ(piece.at({0, 0, 0}), -1);
  EXPECT_EQ(piece.storage().get(), whole.storage().get());
  EXPECT_FALSE(piece.requires_grad());
}

TEST(LogicalTensor, StartsAtTheOffsetOfItsTensor) {
  const Tensor whole = arange(12, kFloat32).slice(0, 4, 12);
  const LogicalTensor part{
      .name = "part", .shape = {2, 2}, .view_shape = {4, 2}, .axis = 0, .begin = 1, .end = 3};
  EXPECT_THAT(values(part.view_of(whole)), ElementsAre(6, 7, 8, 9));
}

TEST(LogicalTensor, RefusesWhatItCannotBeCutFrom) {
  LogicalTensor part{.name = "layers.0.wq",
                     .shape = {2, 2},
                     .view_shape = {4, 2},
                     .axis = 0,
                     .begin = 1,
                     .end = 3};
  expect_throws<ValueError>(
      [&] {
        part.view_of(zeros({3, 2}));
      },
      {"layers.0.wq", "[3, 2]", "[4, 2]"});
  expect_throws<ValueError>([&] { part.view_of(zeros({2, 4}).t()); }, {"layers.0.wq"});
  for (const auto& [begin, end] :
       std::vector<std::pair<int64_t, int64_t>>{{-1, 2}, {3, 2}, {0, 5}}) {
    part.begin = begin;
    part.end = end;
    expect_throws<ValueError>(
        [&] {
          part.view_of(zeros({4, 2}));
        },
        {concat("[", begin, ", ", end, ")"), "axis 0"});
  }
  part.axis = 2;
  expect_throws<ValueError>([&] { part.view_of(zeros({4, 2})); }, {"axis 2"});
}

TEST(Parameter, KeepsItsLogicalTensors) {
  Open model;
  Parameter& p = model.register_parameter("w", zeros({4, 2}), {.tp = TensorParallel::kSharded});
  EXPECT_THAT(p.logical(), IsEmpty());
  p.set_logical({{.name = "a"}, {.name = "b"}});
  EXPECT_EQ(p.logical()[1].name, "b");
  EXPECT_EQ(p.flags().tp, TensorParallel::kSharded);
  p.set_flags({.shared = true});
  EXPECT_TRUE(p.flags().shared);
  EXPECT_EQ(p.flags().tp, TensorParallel::kReplicated);
}

}  // namespace
}  // namespace tapestry::nn
