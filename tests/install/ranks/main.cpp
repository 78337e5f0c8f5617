// Built against the installed package only: the sum of the ranks' numbers, and which MPI has added.
#include <iostream>

#include "autograd/tensor/factory.h"
#include "parallel_core/comm/distributed.h"

int main(int argc, char** argv) {
  tapestry::Distributed job(argc, argv);
  const tapestry::ProcessGroup& world = *job.world();
  const tapestry::Tensor sum = tapestry::full({1}, world.rank() + 1);
  job.world()->all_reduce(sum);
  if (world.rank() == 0) {
    std::cout << "sum " << sum.item() << " of " << world.size() << " ranks by "
              << tapestry::mpi_library_version() << "\n";
  }
  job.finish();
}
