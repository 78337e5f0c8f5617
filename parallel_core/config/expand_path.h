// ~ and ${NAME} in paths.
#pragma once

#include <string>

namespace tapestry::config {

/// The path with a leading `~` or `~/` replaced by $HOME, and each `${NAME}` by the environment's
/// value. What cannot be replaced is put into `error`: a variable that is not set or empty,
/// `~user`,
/// `$NAME` without braces, a `${` that is no name in braces. Other dollar signs stay.
std::string expand_path(const std::string& path, std::string& error);

}  // namespace tapestry::config
