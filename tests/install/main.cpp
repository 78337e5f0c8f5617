// Built against the installed package only: trains an MLP to tell whether a point is in a circle.
#include <iostream>

#include "tapestry.h"

using namespace tapestry;

int main() {
  const Tensor x = uniform(-1, 1, {256, 2}, kFloat32, RandomKey{.seed = 1});
  const Tensor inside = lt(sum(square(x), {-1}), 0.5).to(kInt64);
  nn::Sequential mlp(std::make_unique<nn::Linear>(2, 16), std::make_unique<nn::Tanh>(),
                     std::make_unique<nn::Linear>(16, 2));
  optim::AdamW optimizer(mlp.parameters(), {.lr = 0.02, .weight_decay = 0.01});
  const double first = cross_entropy(mlp(x), inside).item();
  for (int step = 0; step < 200; ++step) {
    optimizer.zero_grad();
    cross_entropy(mlp(x), inside).backward();
    optimizer.step();
  }
  const double last = cross_entropy(mlp(x), inside).item();
  std::cout << "loss " << first << " -> " << last << "\n";
  return last < first / 4 ? 0 : 1;
}
