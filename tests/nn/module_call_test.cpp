#include "nn/module_call.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/factory.h"
#include "nn/layers/container.h"
#include "nn/layers/linear.h"

namespace tapestry::nn {
namespace {

class Doubled final : public Module, public Callable<Doubled> {
 public:
  Doubled() : linear_(&register_module<Linear>("linear", 2, 2)) {}
  std::string type_name() const override { return "Doubled"; }
  Tensor forward(const Tensor& x, double factor) { return mul((*linear_)(x), factor); }

 private:
  Linear* linear_;
};

class Listener final : public Observer {
 public:
  void op_begins(const OpRun& run) override {
    if (run.op != "accumulate_grad") {
      ops.push_back(std::string(name_of(run.pass)) + " " + std::string(run.module));
    }
  }
  void module_begins(const ModuleCall& call) override {
    calls.push_back("> " + std::string(call.path) + " " + call.type + " " +
                    std::to_string(call.arguments.size()));
  }
  void module_ended(const ModuleCall& call) override {
    calls.push_back("< " + std::string(call.path) + " " + std::to_string(call.results.size()));
  }

  std::vector<std::string> ops;
  std::vector<std::string> calls;
};

TEST(ModuleCall, NamesModulesAndTheOpsOfBothPasses) {
  Sequential model;  // a root has no name
  auto* doubled = new Doubled;
  class Holder final : public UnaryModule {
   public:
    explicit Holder(Doubled* doubled) : doubled_(doubled) {
      add_child("inner", std::unique_ptr<Module>(doubled));
    }
    std::string type_name() const override { return "Holder"; }
    Tensor forward(const Tensor& x) override { return (*doubled_)(x, 2.0); }

   private:
    Doubled* doubled_;
  };
  EXPECT_EQ(doubled->path(), "");
  model.append(std::make_unique<Holder>(doubled));
  EXPECT_EQ(doubled->path(), "0.inner");  // its path is that of the tree that it is in now

  Listener listener;
  {
    const ObserverScope scope(listener);
    sum(model(ones({1, 2}))).backward();
  }
  EXPECT_EQ(listener.calls,
            (std::vector<std::string>{">  Sequential 1", "> 0 Holder 1", "> 0.inner Doubled 1",
                                      "> 0.inner.linear Linear 1", "< 0.inner.linear 1",
                                      "< 0.inner 1", "< 0 1", "<  1"}));
  EXPECT_EQ(listener.ops.front(), "forward 0.inner.linear");
  EXPECT_EQ(listener.ops.back(), "backward 0.inner.linear");
  EXPECT_EQ(thread_state().module, nullptr);
}

}  // namespace
}  // namespace tapestry::nn
