// Element-wise loops over one row of raw memory: arithmetic, comparisons, activations with their
// derivatives, selection, casts.
//
// A row is n elements per operand, each with its stride in elements: 1 is contiguous, 0 repeats one
// element, any sign is allowed. The output may be exactly an input (same address and stride), never
// a shifted one. float32 functions are within 3e-7 relative of the exact value (gelu 5e-7;
// gelu_tanh and the derivatives 3e-7 of the larger of value and argument, that of gelu 2.5e-7
// absolute; sigmoid and silu lose what is below 1e-37); float64 ones are libm's. float16 and
// bfloat16 are computed in float32 and rounded once; before that, gelu of bfloat16 and its
// derivative are within 8e-6. The functions below return the row for the CPU level in use, or
// nullptr where the operation has no meaning for the dtype.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// One operand. Floating dtypes have all of them. Integers have neg, abs, sign, floor, ceil, round
/// (the last three the identity), square, cube, relu; integers and bool have logical_not, isfinite,
/// isnan.
enum class UnaryOp {
  kNeg,
  kAbs,
  kSign,  // NaN gives NaN
  kFloor,
  kCeil,
  kRound,  // half to even
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kSin,
  kCos,
  kTanh,
  kSigmoid,
  kErf,
  kSquare,
  kCube,
  kRelu,
  kGelu,      // x Phi(x), Phi(x) = (1 + erf(x / sqrt(2))) / 2
  kGeluTanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
  kSilu,      // x sigmoid(x)
  kLogicalNot,
  kIsFinite,
  kIsNan,
};

/// Two operands. Floating dtypes have all of them; integers add, sub, mul, pow, maximum, minimum,
/// logicals, comparisons (sums and products wrap; a negative power truncates towards 0); bool add
/// (or), mul (and), maximum, minimum, logicals, comparisons. maximum and minimum pass on a NaN of
/// either side; equality and order are false, kNe true, for NaN.
enum class BinaryOp {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kPow,
  kMaximum,
  kMinimum,
  kReluBackward,      // (x, dy) -> dy where x > 0 or x is NaN, else 0
  kGeluBackward,      // (x, dy) -> dy gelu'(x)
  kGeluTanhBackward,  // (x, dy)
  kSiluBackward,      // (x, dy)
  kTanhBackward,      // (y, dy) -> dy (1 - y^2)
  kSigmoidBackward,   // (y, dy) -> dy y (1 - y)
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
};

/// One operand and a number s. Dtypes as for the binary operation of that name. s is first rounded
/// to float32 for float32, float16, bfloat16, truncated to the integer for integers (of int8 and
/// uint8 to one of int32, so that sums and products wrap and comparisons are those of the numbers;
/// a limit of clamp to the nearest that the dtype holds); bool has only the comparisons, of 0 or 1
/// with s.
enum class ScalarOp {
  kAdd,
  kSub,   // x - s
  kRsub,  // s - x
  kMul,
  kDiv,       // x / s
  kRdiv,      // s / x
  kPow,       // x^s; for s = 0, 1, 2, 3, -1, 0.5, -0.5 by products, quotients and roots
  kRpow,      // s^x
  kClampMin,  // max(x, s)
  kClampMax,  // min(x, s)
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
};

/// Whether the output is bool, whatever the input is.
constexpr bool gives_bool(UnaryOp op) { return op >= UnaryOp::kLogicalNot; }
constexpr bool gives_bool(BinaryOp op) { return op >= BinaryOp::kLogicalAnd; }
constexpr bool gives_bool(ScalarOp op) { return op >= ScalarOp::kEq; }

using UnaryRow = void (*)(int64_t n, const void* x, int64_t sx, void* y, int64_t sy);
using BinaryRow =
    void (*)(int64_t n, const void* a, int64_t sa, const void* b, int64_t sb, void* y, int64_t sy);
using TernaryRow = void (*)(int64_t n,
                            const void* cond,
                            int64_t sc,
                            const void* a,
                            int64_t sa,
                            const void* b,
                            int64_t sb,
                            void* y,
                            int64_t sy);
using ScalarRow = void (*)(int64_t n, const void* x, int64_t sx, double s, void* y, int64_t sy);

/// Output of x's dtype; bool for kLogicalNot, kIsFinite, kIsNan.
UnaryRow unary_row(UnaryOp op, DType dtype);

/// Both inputs of that dtype, and the output; logicals and comparisons give bool.
BinaryRow binary_row(BinaryOp op, DType dtype);

/// y = cond ? a : b, bit for bit; cond is bool, the others have the dtype.
TernaryRow where_row(DType dtype);

/// Conversion between any two dtypes: to a floating dtype by rounding to nearest even, to an
/// integer by truncation (unspecified if out of range or NaN; int8 and uint8 keep the low bits of
/// what fits int32), to bool as x != 0; a copy if they
/// are equal.
UnaryRow cast_row(DType from, DType to);

/// Output of x's dtype, or bool for comparisons.
ScalarRow scalar_row(ScalarOp op, DType dtype);

/// y = value, converted as cast_row does from float64.
void fill_row(DType dtype, int64_t n, double value, void* y, int64_t sy);

}  // namespace tapestry::kernels
