// How much memory a configuration needs, before any is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/tensor/system_memory.h"
#include "parallel_core/config/config.h"
#include "parallel_core/parameter_count.h"

namespace tapestry {

/// How many times the rows that a rank's experts have where all experts have as many it may get at
/// most: where tokens all prefer its experts, as far as these have the capacity.
double worst_expert_load(const AllConfig& config);

/// Bytes by kind in the process of one rank: of a pipeline its stage, of a tensor-parallel group
/// its share. docs/memory.md has the table of bytes per parameter.
struct MemoryEstimate {
  int stage = 0;
  int stages = 1;
  int64_t in_flight = 1;  // passes of the stage's chunks that wait for their backward at the peak
  int64_t parameter_count = 0;         // of the rank
  int64_t expert_parameter_count = 0;  // of these, of experts
  int64_t parameters = 0;
  int64_t weight_copies = 0;  // 16-bit copies of the weights, with 16-bit compute only
  int64_t gradients = 0;      // of all parameters; of the largest with optimizer_in_backward
  int64_t optimizer = 0;      // moments, and masters or remainders of 16-bit parameters
  int64_t activations = 0;    // kept for the backward passes of what is in flight, and one layer's
  int64_t recompute_saved = 0;  // bytes that recomputation spares of a micro-batch's activations
  double recompute_flops = 0;   // that it adds to a micro-batch
  int64_t recompute_could_save = 0;  // of `activations`, if every layer were recomputed
  int64_t logits = 0;                // logits, or the chunk of them that exists; on the last stage
  int64_t head = 0;                  // gradients that head and loss make beside those
  int64_t workspace = 0;             // temporaries of the largest layer's backward pass
  int64_t not_at_once = 0;           // of all these, what is never there together with the rest
  int64_t unused = 0;      // room between blocks of memory that no other block fits into, at most
  int64_t process = 0;     // program, libraries and messages: what no tensor has
  int64_t unbalanced = 0;  // more, if experts' loads are as uneven as can be; part of the total
  int64_t snapshot = 0;    // with async_save: the copy that is written while training goes on
  int64_t start = 0;  // of the process while weights are made or loaded: all in float32, before
                      // they are shared out

  /// Settings that this configuration does not use, and the bytes that each would spare.
  struct Saving {
    std::string setting;  // "optimizer_config.exp_avg_dtype: bfloat16"
    int64_t bytes = 0;
  };
  std::vector<Saving> savings;

  int64_t total() const;  // while it trains
  int64_t peak() const;   // that or the start, whichever needs more
};

/// What is kept per token and layer, without recomputation: the two norms' inputs and outputs (4
/// hidden), q, k, v (with rotation q and k twice) and the attention output with one float32 per
/// head, and the MLP's values before the activation, after it only where it is not recomputed; with
/// recomputation what layer_costs() says. Tensor parallelism divides what lies inside attention and
/// MLP, sequence parallelism also the rest, context parallelism the tokens of all, but for the keys
/// and values that a layer gathers. Of what data- and context-parallel ranks share out
/// (zero_level), a rank has its part, and from z2 on what is whole at one time: the buckets of
/// gradients that are being filled and reduced, the weights in use. Of experts a rank has its
/// share, with rows of tokens as if all experts had as many; what the worst distribution needs
/// beyond stands apart, and is in the total. Of a pipeline the stage that needs the most.
///
/// The total is what the kernel charges a rank's process at most: tensors as a step goes through
/// its passes (step_memory.h), an evaluation after it, what is unused between them, and what the
/// process has besides (docs/memory.md says how well that is met). ValueError as
/// parameter_count and layer_ranges.
MemoryEstimate estimate_memory(const AllConfig& config, int64_t data_parallel_size = 1);

/// The estimate as lines "kind: size".
std::string memory_text(const MemoryEstimate& estimate);

/// Whose memory is short, for the message of check_fits.
struct MemoryShare {
  int ranks = 1;          // of the job; the estimate is one rank's
  int ranks_on_host = 1;  // that share what the machine has
  std::string more = {};  // lines about other layouts
};

/// ValueError with each kind and what would help, if the estimate exceeds `available` bytes, which
/// one rank has.
void check_fits(const MemoryEstimate& estimate, int64_t available, const MemoryShare& share = {});

/// "1.5 GiB".
std::string size_text(int64_t bytes);

/// What a checkpoint takes: of a run with adapters, theirs alone.
double saved_bytes(const AllConfig& config);
/// What a checkpoint takes of a parameter, on average over a model: weights in float32, states as
/// they are stored.
double saved_bytes_per_parameter(const OptimizerConfig& config, const TransformerConfig& model);

}  // namespace tapestry
