// Exception types and the checks that throw them.
//
// A message says the operation, the rule that was broken and both sides of it, for example
// "matmul: inner sizes differ: a [4, 3], b [5, 2]".
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace tapestry {

/// Base of everything that Tapestry throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument has the right type but a wrong value or shape.
class ValueError : public Error {
  using Error::Error;
};

/// An argument has a dtype that the operation does not take.
class TypeError : public Error {
  using Error::Error;
};

/// An index or axis lies outside its range.
class IndexError : public Error {
  using Error::Error;
};

/// The state of the program forbids the call: backward twice, a saved tensor changed in place, ...
class RuntimeError : public Error {
  using Error::Error;
};

/// A file cannot be read or written, or its content is malformed. The message names the file.
class IoError : public Error {
  using Error::Error;
};

/// Ranks disagree or one of them does not answer.
class CommError : public Error {
  using Error::Error;
};

/// Concatenates its arguments with operator<<.
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

/// Throws E with the concatenated message unless the condition holds. The message is built only
/// when it is needed.
template <class E, class... Args>
void check(bool condition, const Args&... message) {
  if (!condition) [[unlikely]] {
    throw E(concat(message...));
  }
}

}  // namespace tapestry
