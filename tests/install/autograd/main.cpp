// Built against the component autograd only: a gradient, a file, a matrix that Eigen sees.
#include <iostream>

#include "autograd/eigen.h"
#include "tapestry.h"

using namespace tapestry;

int main() {
  const Tensor x = tensor({1, 2, 3});
  x.set_requires_grad();
  sum(x * x).backward();
  save_npy("gradient.npy", x.grad());
  const Tensor a = eye(2, 2, kFloat64);
  eigen_matrix<double>(a) *= 3;
  std::cout << load_npy("gradient.npy") << " " << det(a) << "\n";
  return sum(x.grad()).item() == 12 && det(a).item() == 9 ? 0 : 1;
}
