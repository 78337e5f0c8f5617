// Built against the installed package only; exits with 0 if what it uses works.
#include <cstdio>

#include "autograd/kernels/dtype.h"
#include "autograd/tensor/shape.h"

int main() {
  const tapestry::Shape shape = tapestry::broadcast_shapes("consumer", {4, 1}, {3});
  const auto bytes = shape.numel() * tapestry::size_of(tapestry::kBFloat16);
  std::printf("%s of %s: %lld bytes\n", shape.str().c_str(),
              std::string(tapestry::name_of(tapestry::kBFloat16)).c_str(),
              static_cast<long long>(bytes));
  return bytes == 24 ? 0 : 1;
}
