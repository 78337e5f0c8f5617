#include "autograd/kernels/recurrence/short_convolution.h"

#include <algorithm>
#include <cassert>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"
#include "autograd/kernels/recurrence/short_convolution_units.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void convolution_unit(const ConvolutionProblem& problem,
                                               void* y,
                                               const ConvolutionUnit& unit,
                                               void* scratch);
                         void convolution_backward_unit(const ConvolutionProblem& problem,
                                                        const ConvolutionBackward& to,
                                                        const ConvolutionUnit& unit,
                                                        void* dweight,
                                                        void* dbias,
                                                        void* scratch);
                         void convolution_step_unit(const ConvolutionProblem& problem,
                                                    const ConvolutionStep& to,
                                                    const ConvolutionUnit& unit,
                                                    void* scratch))

namespace {

[[maybe_unused]] bool fits(const ConvolutionProblem& p) {
  return is_floating(p.dtype) && p.taps >= 1 && p.taps <= kMostTaps;
}

/// Calls body(unit, block, scratch) for each of `blocks` blocks of the rows and each band of
/// channels.
template <class Body>
void for_convolution_units(const ConvolutionProblem& p, int64_t blocks, const Body& body) {
  const int64_t rows = p.batch * p.tokens;
  const int64_t bands = (p.channels + kConvolutionChannels - 1) / kConvolutionChannels;
  const int64_t elements = rows / blocks * std::min(p.channels, kConvolutionChannels);
  const int64_t grain = std::max<int64_t>(1, kGrainSize / 4 / std::max<int64_t>(elements, 1));
  parallel_for(blocks * bands, grain, [&](int64_t begin, int64_t end) {
    const Scratch scratch(convolution_scratch(p.taps) * size_of(compute_dtype(p.dtype)));
    for (int64_t index = begin; index < end; ++index) {
      const int64_t block = index / bands;
      const int64_t channel = index % bands * kConvolutionChannels;
      const ConvolutionUnit unit = {rows * block / blocks, rows * (block + 1) / blocks, channel,
                                    std::min(channel + kConvolutionChannels, p.channels)};
      body(unit, block, scratch.get());
    }
  });
}

}  // namespace

void short_convolution(const ConvolutionProblem& problem, void* y) {
  if (problem.batch * problem.tokens * problem.channels == 0) {
    return;
  }
  assert(fits(problem));
  const auto run = TAPESTRY_DISPATCH(convolution_unit);
  for_convolution_units(problem, row_blocks(problem.batch * problem.tokens),
                        [&](const ConvolutionUnit& unit, int64_t /*block*/, void* scratch) {
                          run(problem, y, unit, scratch);
                        });
}

void short_convolution_backward(const ConvolutionProblem& problem, const ConvolutionBackward& to) {
  if (problem.channels == 0) {
    return;
  }
  assert(fits(problem));
  const DType compute = compute_dtype(problem.dtype);
  const int64_t blocks =
      problem.batch * problem.tokens == 0 ? 0 : row_blocks(problem.batch * problem.tokens);
  const int64_t weights = problem.channels * problem.taps;
  const Scratch dweight(to.dweight.out == nullptr ? 0 : blocks * weights * size_of(compute));
  const Scratch dbias(to.dbias.out == nullptr ? 0 : blocks * problem.channels * size_of(compute));
  const auto block_of = [&](const ColumnSums& sums, const Scratch& memory, int64_t block,
                            int64_t n) -> void* {
    return sums.out == nullptr ? nullptr
                               : static_cast<char*>(memory.get()) + block * n * size_of(compute);
  };
  if (blocks > 0) {
    const auto run = TAPESTRY_DISPATCH(convolution_backward_unit);
    for_convolution_units(problem, blocks,
                          [&](const ConvolutionUnit& unit, int64_t block, void* scratch) {
                            run(problem, to, unit, block_of(to.dweight, dweight, block, weights),
                                block_of(to.dbias, dbias, block, problem.channels), scratch);
                          });
  }
  combine_blocks(compute, blocks, weights, dweight.get(), to.dweight);
  combine_blocks(compute, blocks, problem.channels, dbias.get(), to.dbias);
}

void short_convolution_step(const ConvolutionProblem& problem, const ConvolutionStep& to) {
  if (problem.batch * problem.channels == 0) {
    return;
  }
  assert(fits(problem) && problem.tokens == 1);
  const auto run = TAPESTRY_DISPATCH(convolution_step_unit);
  for_convolution_units(problem, problem.batch,
                        [&](const ConvolutionUnit& unit, int64_t /*block*/, void* scratch) {
                          run(problem, to, unit, scratch);
                        });
}

}  // namespace tapestry::kernels
