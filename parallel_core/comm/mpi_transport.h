// Messages between processes, by MPI.
#pragma once

#include <memory>

#include "parallel_core/comm/transport.h"

namespace tapestry {

/// This process's end on a communicator of its own, between MPI_Init and MPI_Finalize. Envelopes
/// come in by receives that are always posted; data go by messages of their own, received where
/// they are wanted once the envelope is there. Only point-to-point calls are made.
std::unique_ptr<Transport> make_mpi_transport();

}  // namespace tapestry
