// ~ and ${NAME} in paths.
#pragma once

#include <string>
#include <string_view>

namespace tapestry::config {

/// The path with a leading `~` or `~/` replaced by $HOME, and each `${NAME}` by the environment's
/// value. What cannot be replaced is put into `error`: a variable that is not set or empty,
/// `~user`,
/// `$NAME` without braces, a `${` that is no name in braces. `$$` is a dollar sign of the path
/// itself; other dollar signs stay.
std::string expand_path(const std::string& path, std::string& error);

/// What expand_path takes for this path, whatever dollar signs are in it.
std::string literal_path(std::string_view path);

}  // namespace tapestry::config
