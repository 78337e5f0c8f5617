// All of the libraries that the including target links: Tapestry::optim brings autograd, nn and
// optim, Tapestry::diagnosis all but interop.
#pragma once

#include "autograd/autograd.h"
#ifdef TAPESTRY_WITH_NN
#include "nn/nn.h"
#endif
#ifdef TAPESTRY_WITH_OPTIM
#include "optim/optim.h"
#endif
#ifdef TAPESTRY_WITH_TEXT
#include "text/text.h"
#endif
#ifdef TAPESTRY_WITH_PARALLEL_CORE
#include "parallel_core/parallel_core.h"
#endif
#ifdef TAPESTRY_WITH_INTEROP
#include "interop/interop.h"
#endif
#ifdef TAPESTRY_WITH_DIAGNOSIS
#include "diagnosis/diagnosis.h"
#endif
