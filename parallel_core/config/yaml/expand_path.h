// ~ and ${NAME} in paths.
#pragma once

#include <string>
#include <string_view>

namespace tapestry::config {

/// The path with a leading `~` or `~/` replaced by $HOME, and each `${NAME}` by the environment's
/// value; `$$` is a dollar sign. What cannot be replaced is put into `error`: a variable that is
/// not set or empty, `~user`, `$NAME` without braces, a `${` that is no name in braces. Other
/// dollar signs stay.
std::string expand_path(const std::string& path, std::string& error);

/// The path as it is to be written, so that expand_path gives it back.
std::string literal_path(std::string_view path);

}  // namespace tapestry::config
