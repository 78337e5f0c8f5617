// docs/mindformers2.md.
#pragma once

#include <string>

namespace tapestry {

/// What becomes of every key of MindFormers 2.0, from the table in
/// parallel_core/config/mindformers2.
std::string mindformers2_page();

}  // namespace tapestry
