// Products inside a OneOrderScope (machine/one_order.h), whose rows have the same bits however many
// there are; used by gemm.cpp and gemm_quantized.cpp.
#pragma once

#include "autograd/kernels/gemm/gemm_few_rows.h"
#include "autograd/kernels/gemm/gemm_shape.h"

namespace tapestry::kernels {

/// Whether a product (of which the batch is not looked at) goes that way: inside a scope, in
/// float32, bfloat16 or float16, with a sum that is not empty.
bool wants_one_order(const GemmShape& shape);

/// One product, on the team; m, n > 0. Operands that lie otherwise than x W^T has them are copied.
void one_order_gemm(const GemmShape& shape, const void* a, const void* b, void* c);

/// x W^T of any number of rows, on the team: few_rows_product() of blocks of them, each of which
/// stays in a second-level cache while W passes.
void one_order_product(const FewRowsProduct& product);

}  // namespace tapestry::kernels
