// Every op.
#pragma once

#include "autograd/ops/activation.h"
#include "autograd/ops/attention.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/inplace.h"
#include "autograd/ops/linalg.h"
#include "autograd/ops/loss.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rope.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/softmax.h"
