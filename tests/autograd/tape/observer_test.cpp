#include "autograd/tape/observer.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autograd/ops/ops.h"
#include "autograd/tape/checkpoint.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/factory.h"

namespace tapestry {
namespace {

// What it is told, a line each.
class OpListener final : public Observer {
 public:
  void op_begins(const OpRun& run) override { add("begins", run, run.inputs); }
  void op_ended(const OpRun& run) override { add("ended", run, run.outputs); }
  void phase_begins(const PhaseRun& phase) override {
    lines.push_back("phase " + std::string(phase.name) + " " + std::to_string(phase.micro_batch));
  }
  void phase_ended(const PhaseRun& phase) override {
    lines.push_back("end of phase " + std::string(phase.name));
  }

  std::vector<std::string> lines;
  std::vector<uint64_t> numbers;

 private:
  void add(const char* what, const OpRun& run, std::span<const Tensor> tensors) {
    std::string line = std::string(name_of(run.pass)) + " " + std::string(run.op) + " " + what;
    for (const Tensor& t : tensors) {
      line +=
          t.defined()
              ? " " + std::to_string(t.to(kFloat64).reshape({-1}).data<double>()[0]).substr(0, 4)
              : " -";
    }
    lines.push_back(line);
    numbers.push_back(run.number);
  }
};

Tensor pair_of(double value) {
  Tensor x = full({2}, value);
  x.set_requires_grad();
  return x;
}

TEST(Observer, SeesOpsOfBothPassesWithTheirTensors) {
  const Tensor x = pair_of(3);
  OpListener listener;
  {
    const ObserverScope scope(listener);
    sum(square(x)).backward();
  }
  const Tensor unseen = square(x);
  EXPECT_EQ(
      listener.lines,
      (std::vector<std::string>{
          "forward square begins 3.00", "forward square ended 9.00", "forward sum begins 9.00",
          "forward sum ended 18.0", "backward sum begins 1.00", "backward sum ended 1.00",
          "backward square begins 1.00", "backward square ended 6.00",
          "backward accumulate_grad begins 6.00", "backward accumulate_grad ended"}));
  EXPECT_EQ(listener.numbers[0], listener.numbers[6]);  // square's two passes
  EXPECT_EQ(listener.numbers[2], listener.numbers[4]);
  EXPECT_NE(listener.numbers[0], listener.numbers[2]);
}

TEST(Observer, OpsInsideOpsBelongToThem) {
  // A composed function is made of ops; the backward of a division is, too, and is told as one.
  OpListener listener;
  const Tensor x = pair_of(2);
  const Tensor y = pair_of(4);
  {
    const ObserverScope scope(listener);
    sum(x / y).backward();
  }
  for (const std::string& line : listener.lines) {
    EXPECT_TRUE(line.find("div") != std::string::npos || line.find("sum") != std::string::npos ||
                line.find("accumulate_grad") != std::string::npos)
        << line;
  }
}

TEST(Observer, SeesInsideACheckpointOnceAndAgainInBackward) {
  OpListener listener;
  const Tensor x = pair_of(3);
  {
    const ObserverScope scope(listener);
    sum(checkpoint(TensorFunction([](const TensorList& in) { return square(in[0]); }), {x}))
        .backward();
  }
  int forward = 0;
  int again = 0;
  int backward = 0;
  for (const std::string& line : listener.lines) {
    EXPECT_EQ(line.find("checkpoint"), std::string::npos) << line;
    forward += line.starts_with("forward square begins") ? 1 : 0;
    again += line.starts_with("again square begins") ? 1 : 0;
    backward += line.starts_with("backward square begins") ? 1 : 0;
  }
  EXPECT_EQ(forward, 1);
  EXPECT_EQ(again, 1);
  EXPECT_EQ(backward, 1);
}

TEST(Observer, SeesWhatIsMadeAgain) {
  OpListener listener;
  const Tensor x = pair_of(3);
  RecomputedValues values;
  Tensor y;
  {
    const RecomputeScope scope(&values);
    y = square(exp(x));
  }
  values.keep(y);
  values.drop();
  const ObserverScope scope(listener);
  sum(y).backward();
  int again = 0;
  for (const std::string& line : listener.lines) {
    again += line.starts_with("again exp begins") ? 1 : 0;
  }
  EXPECT_EQ(again, 1);
}

TEST(Observer, ScopesNestAndBelongToTheirThread) {
  OpListener outer;
  OpListener inner;
  {
    const ObserverScope first(outer);
    {
      const ObserverScope second(inner);
      const PhaseScope phase("forward", 1);
      square(full({1}, 2.0));
    }
    {
      const UnobservedScope hidden;
      exp(full({1}, 2.0));
    }
  }
  EXPECT_EQ(outer.lines, inner.lines);
  EXPECT_EQ(outer.lines,
            (std::vector<std::string>{"phase forward 1", "forward square begins 2.00",
                                      "forward square ended 4.00", "end of phase forward"}));
  EXPECT_FALSE(is_observed());
}

TEST(Observer, ScopesMayBeClosedInAnyOrder) {
  OpListener first;
  OpListener second;
  auto one = std::make_unique<ObserverScope>(first);
  auto two = std::make_unique<ObserverScope>(second);
  one.reset();
  square(full({1}, 2.0));
  EXPECT_TRUE(first.lines.empty());
  EXPECT_EQ(second.lines.size(), 2U);
  two.reset();
  square(full({1}, 2.0));
  EXPECT_EQ(second.lines.size(), 2U);
  EXPECT_FALSE(is_observed());
}

TEST(Registry, KnowsWhereAnOpIsDefined) {
  const OpInfo* info = find_op("square");
  ASSERT_NE(info, nullptr);
  EXPECT_TRUE(info->file.starts_with("autograd/ops/")) << info->file;
  EXPECT_GT(info->line, 1U);
  EXPECT_EQ(find_op("no such op"), nullptr);
}

// Runs what it is told of again, on inputs of another dtype and value.
class OpsAgain final : public Observer {
 public:
  bool wants_ops_again() const override { return true; }
  void op_ended(const OpRun& run) override {
    ASSERT_NE(run.again, nullptr) << run.op;
    const UnobservedScope unobserved;
    TensorList inputs;
    for (const Tensor& input : run.inputs) {
      inputs.push_back(input.defined() ? input.detach().to(kFloat64) : input);
    }
    const TensorList outputs = (*run.again)(inputs);
    ASSERT_EQ(outputs.size(), run.outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_EQ(outputs[i].dtype(), kFloat64);
      EXPECT_EQ(outputs[i].to_vector<double>(), run.outputs[i].to_vector<double>());
    }
    kept[std::string(run.op)] = *run.again;
  }

  std::map<std::string, OpAgain> kept;
};

TEST(Observer, OpsCanBeRunAgainOnOtherInputs) {
  OpsAgain observer;
  {
    const ObserverScope scope(observer);
    square(pair_of(3));
    cat({pair_of(1), pair_of(2)});  // a list is an input, and several tensors
  }
  EXPECT_EQ(observer.kept.at("square")(TensorList{full({1}, 5)})[0].item(), 25);
  const TensorList joined = observer.kept.at("cat")(TensorList{full({1}, 5), full({2}, 6)});
  EXPECT_EQ(joined[0].to_vector<double>(), (std::vector<double>{5, 6, 6}));
  // With recording on there is a gradient.
  const Tensor x = pair_of(4);
  sum(observer.kept.at("square")(TensorList{x})[0]).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{8, 8}));
}

TEST(Observer, NobodyCopiesOpsUnlessItIsAskedFor) {
  class Asks final : public Observer {
   public:
    void op_ended(const OpRun& run) override { EXPECT_EQ(run.again, nullptr); }
  } observer;
  const ObserverScope scope(observer);
  square(pair_of(3));
}

}  // namespace
}  // namespace tapestry
