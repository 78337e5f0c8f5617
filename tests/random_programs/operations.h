// The ops of random programs in terms of the library.
#pragma once

#include <string>

#include "tests/random_programs/program_file.h"

namespace tapestry::random_programs {

/// Runs a statement that is an op; a left-out input is undefined. std::out_of_range if there is no
/// op of the name. One that works in place gives what the library's function returned.
TensorList run_operation(const std::string& op,
                         const TensorList& inputs,
                         const Attributes& attributes);

}  // namespace tapestry::random_programs
