// What collectives take, by what a message does: for predictions, before anything runs. The
// formulas are those of the schedules (schedule.h); tests compare them with simulated ranks
// (simulated_ranks.h), `comm_bench` measures the costs of a message.
//
// A rank has one link to the network, which carries one message at a time in each direction. The
// network itself disturbs nobody. In the terms of LogGP (Alexandrov et al. 1995): L, o and G.
#pragma once

#include <cstdint>

namespace tapestry {

/// In seconds. Ranks of one machine have no link of their own: what they share is in `per_byte`.
struct MessageCost {
  double latency = 0;       ///< of a message's way, beside the overheads
  double overhead = 0;      ///< of the processor, for each message, at each of its ends
  double per_byte = 0;      ///< of a link, while it carries as much in the other direction
  double add_per_byte = 0;  ///< of a reduction, for each byte of each contribution
};

/// Two ranks of one machine, as measured (docs/scaling.md): what to take where nobody has measured.
MessageCost shared_memory_cost();

/// A message that is expected. One of more than Envelope::kInlineBytes goes the way three times: it
/// is announced, asked for, and sent.
double message_seconds(const MessageCost& cost, int64_t bytes);

// Of `ranks` that begin at the same time, until the last has its result; 0 for one rank. `bytes`
// are those of the whole tensor: of an all-reduce or a broadcast each rank's, of a reduce-scatter
// or an all-to-all each rank's input, of an all-gather each rank's output.
double all_reduce_seconds(const MessageCost& cost,
                          int ranks,
                          int64_t bytes,
                          int64_t element_bytes = 4);
double reduce_scatter_seconds(const MessageCost& cost,
                              int ranks,
                              int64_t bytes,
                              int64_t element_bytes = 4);
double all_gather_seconds(const MessageCost& cost, int ranks, int64_t bytes);
double all_to_all_seconds(const MessageCost& cost, int ranks, int64_t bytes);
double broadcast_seconds(const MessageCost& cost, int ranks, int64_t bytes);
double barrier_seconds(const MessageCost& cost, int ranks);

}  // namespace tapestry
