// Built against the installed package only: trains a small MLP to tell whether a point lies inside
// a circle, and exits with 0 if it learnt that.
#include <cstdio>

#include "autograd/ops/ops.h"
#include "nn/layers/linear.h"
#include "optim/adam.h"

using namespace tapestry;

class MLP final : public nn::UnaryModule {
 public:
  std::string type_name() const override { return "MLP"; }
  Tensor forward(const Tensor& x) override { return fc2_(tanh(fc1_(x))); }

 private:
  nn::Linear& fc1_ = register_module<nn::Linear>("fc1", 2, 16);
  nn::Linear& fc2_ = register_module<nn::Linear>("fc2", 16, 2);
};

int main() {
  const Tensor x = uniform(-1, 1, {256, 2}, kFloat32, RandomKey{.seed = 1});
  const Tensor labels = lt(sum(square(x), {-1}), 0.5).to(kInt64);
  MLP model;
  optim::AdamW optimizer(model.parameters(), {.lr = 0.02, .weight_decay = 0.01});
  double first = 0;
  double last = 0;
  for (int step = 0; step < 200; ++step) {
    optimizer.zero_grad();
    const Tensor loss = cross_entropy(model(x), labels);
    loss.backward();
    optimizer.step();
    last = loss.item();
    first = step == 0 ? last : first;
  }
  std::printf("loss %.4f -> %.4f\n", first, last);
  return last < first / 4 ? 0 : 1;
}
