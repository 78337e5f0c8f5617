// Texts with places to fill in.
#pragma once

#include <string>
#include <string_view>

#include "text/chat/object.h"
#include "text/chat/run.h"
#include "text/chat/value.h"

namespace tapestry::chat::jinja {

/// format % values: %s, %r, %d, %i, %u, %f, %F, %e, %E, %g, %G, %x, %X, %o, %c and %%, with flags,
/// width, precision and names. Fails for anything else.
std::string percent_format(Run& run, std::string_view format, const Value& values);

/// format.format(...): fields {}, {0}, {name} with
/// [[fill]align][sign][0][width][,][.precision][type], type one of s, d, f, F, e, g, x, X. Fails
/// for attributes, indices and conversions of fields.
std::string brace_format(Run& run, std::string_view format, const Arguments& arguments);

}  // namespace tapestry::chat::jinja
