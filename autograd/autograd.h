// All of autograd that programs use: tensors, the tape, ops, files. (The bridge to Eigen is
// autograd/eigen.h, by itself: Eigen's headers take seconds to compile.)
#pragma once

#include "autograd/io/tensor_io.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/team.h"
#include "autograd/ops/ops.h"
#include "autograd/tape/anomaly.h"
#include "autograd/tape/checkpoint.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/gradcheck.h"
#include "autograd/tape/observer.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/generator.h"
#include "autograd/tensor/print.h"
#include "autograd/tensor/rank_context.h"
#include "autograd/tensor/tensor.h"
