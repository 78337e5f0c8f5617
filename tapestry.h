// All of the libraries that the including target links: Tapestry::optim brings autograd, nn and
// optim, Tapestry::parallel_core everything.
#pragma once

#include "autograd/autograd.h"
#ifdef TAPESTRY_WITH_NN
#include "nn/nn.h"
#endif
#ifdef TAPESTRY_WITH_OPTIM
#include "optim/optim.h"
#endif
#ifdef TAPESTRY_WITH_PARALLEL_CORE
#include "parallel_core/parallel_core.h"
#endif
