#include "autograd/kernels/parallel_for.h"

#include <cblas.h>

namespace tapestry {

#ifdef _OPENMP

int num_threads() { return omp_get_max_threads(); }

// OpenBLAS, in its OpenMP flavour, takes the calling thread's team; its own setting is the
// process's.
void set_num_threads(int count) { omp_set_num_threads(count); }

#else

int num_threads() { return 1; }

void set_num_threads(int /*count*/) { openblas_set_num_threads(1); }

#endif

}  // namespace tapestry
