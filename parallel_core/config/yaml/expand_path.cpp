#include "parallel_core/config/yaml/expand_path.h"

#include <cstdlib>

#include "autograd/tensor/error.h"

namespace tapestry::config {

namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_letter(c) || (c >= '0' && c <= '9'); }

// An empty one would turn ${DATA}/text into /text.
std::string variable(const std::string& name, const std::string& path, std::string& error) {
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): nobody sets any
  if (value == nullptr || *value == '\0') {
    error = concat("'", path, "': the environment variable ", name, " is ",
                   value == nullptr ? "not set" : "empty", "; set it or write the path in full");
    return {};
  }
  return value;
}

}  // namespace

std::string expand_path(const std::string& path, std::string& error) {
  std::string expanded;
  size_t at = 0;
  if (path.starts_with('~')) {
    if (path.size() > 1 && path[1] != '/') {
      error =
          concat("'", path, "': ~ stands for the own home folder alone; write the path in full");
      return path;
    }
    expanded = variable("HOME", path, error);
    at = 1;
  }
  while (at < path.size() && error.empty()) {
    const bool follows = at + 1 < path.size();
    if (path[at] == '$' && follows && path[at + 1] == '$') {
      expanded += '$';
      at += 2;
      continue;
    }
    if (path[at] != '$' || !follows || (path[at + 1] != '{' && !is_letter(path[at + 1]))) {
      expanded += path[at++];
      continue;
    }
    const bool braces = path[at + 1] == '{';
    const size_t begin = at + (braces ? 2 : 1);
    size_t end = begin;
    while (end < path.size() && is_name_part(path[end])) {
      ++end;
    }
    const std::string name = path.substr(begin, end - begin);
    if (!braces) {
      error = concat("'", path, "': $", name, " is not replaced; write ${", name, "}, or $$", name,
                     " for a name with a dollar sign");
    } else if (name.empty() || !is_letter(name.front()) || end == path.size() || path[end] != '}') {
      error = concat("'", path, "': expected the name of an environment variable in ${...}");
    } else {
      expanded += variable(name, path, error);
      at = end + 1;
    }
  }
  return error.empty() ? expanded : path;
}

std::string literal_path(std::string_view path) {
  std::string literal = path.starts_with('~') ? "./" : "";
  for (size_t i = 0; i < path.size(); ++i) {
    const char next = i + 1 < path.size() ? path[i + 1] : '/';
    const bool means_more = path[i] == '$' && (next == '$' || next == '{' || is_letter(next));
    literal += means_more ? "$$" : std::string(1, path[i]);
  }
  return literal;
}

}  // namespace tapestry::config
