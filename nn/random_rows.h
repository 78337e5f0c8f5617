// Random numbers that belong to the elements of logical tensors, whoever holds them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "autograd/kernels/random_rows.h"
#include "nn/parameter.h"

namespace tapestry::nn {

/// Which random numbers the elements [first, first + count) of a parameter take: an element of a
/// logical tensor takes the number that is its position in the whole of it, of stream_of(name), so
/// the same in every layout. What belongs to none of them (rows that fill a table up) takes numbers
/// of a stream of the parameter's own. Empty `logical`: the parameter is one, of its own name.
std::vector<kernels::RandomRows> random_rows(std::string_view parameter_name,
                                             std::span<const LogicalTensor> logical,
                                             int64_t first,
                                             int64_t count);

/// The same rows of other streams: of those that a step or a sum makes of `stream` and theirs.
std::vector<kernels::RandomRows> in_stream(std::vector<kernels::RandomRows> rows, uint64_t stream);

}  // namespace tapestry::nn
