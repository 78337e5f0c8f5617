// Its place is parallel_core/; here for those who look for it under its old one.
#pragma once

#include "parallel_core/hf_names.h"  // IWYU pragma: export
