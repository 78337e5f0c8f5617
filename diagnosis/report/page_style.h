// How a page looks and what of it moves: all that it needs, so that it loads nothing.
#pragma once

#include <cstddef>
#include <string>

namespace tapestry::report {

/// The style sheet, light or dark as the reader's system is, with colours for so many runs.
std::string page_style(size_t runs);

/// Values under the pointer, and runs that are switched off. The page is complete without it.
const char* page_script();

}  // namespace tapestry::report
