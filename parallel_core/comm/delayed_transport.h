// A slow network between the ranks of one machine: shows what overlaps with computing, and what
// does not.
#pragma once

#include <memory>

#include "parallel_core/comm/transport.h"

namespace tapestry {

/// Messages take `message_seconds` longer than those of `inner`. A link from one rank to another
/// carries one message at a time, so that k of them take k times as long; links do not disturb each
/// other. Time passes whether or not anybody waits. What ranks tell each other beside their
/// collectives (envelopes of kind kControl) keeps its place among the messages and takes no time.
/// All ranks must be delayed, and share a clock: that of one host. ValueError if the time is
/// negative.
std::unique_ptr<Transport> make_delayed_transport(std::unique_ptr<Transport> inner,
                                                  double message_seconds);

}  // namespace tapestry
