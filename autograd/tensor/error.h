// Exception types and the checks that throw them.
//
// A message says the operation, the rule that was broken and both sides of it, for example
// "matmul: inner sizes differ: a [4, 3], b [5, 2]".
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

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

namespace detail {

/// One argument of a message behind one type, so that a check costs the compiler an array of them
/// and not a stream of its own: numbers and texts as they are, any other type through its
/// operator<<. Lives as long as the arguments.
class MessagePart {
 public:
  MessagePart(std::string_view text) : kind_(Kind::kText), text_{text.data(), text.size()} {}
  MessagePart(const std::string& text) : MessagePart(std::string_view(text)) {}
  MessagePart(const char* text) : MessagePart(std::string_view(text)) {}
  MessagePart(const char& letter) : MessagePart(std::string_view(&letter, 1)) {}
  template <std::signed_integral T>
  MessagePart(T number) : kind_(Kind::kSigned), signed_(number) {}
  template <std::unsigned_integral T>
  MessagePart(T number) : kind_(Kind::kUnsigned), unsigned_(number) {}
  template <std::floating_point T>
  MessagePart(T number) : kind_(Kind::kDouble), double_(static_cast<double>(number)) {}
  template <class T>
  requires(!std::is_arithmetic_v<T> && !std::is_convertible_v<const T&, std::string_view>)
      MessagePart(const T& value)
      : kind_(Kind::kOther), other_{&value, &print<T>} {}

  void write(std::ostream& out) const;

 private:
  enum class Kind { kText, kSigned, kUnsigned, kDouble, kOther };
  struct Text {
    const char* data;
    size_t size;
  };
  struct Other {
    const void* value;
    void (*print)(std::ostream&, const void*);
  };
  template <class T>
  static void print(std::ostream& out, const void* value) {
    out << *static_cast<const T*>(value);
  }

  Kind kind_;
  union {
    Text text_;
    int64_t signed_;
    uint64_t unsigned_;
    double double_;
    Other other_;
  };
};

std::string joined(std::initializer_list<MessagePart> parts);

template <class E>
[[noreturn, gnu::cold, gnu::noinline]] void fail(std::initializer_list<MessagePart> parts) {
  throw E(joined(parts));
}

}  // namespace detail

/// The texts of its arguments, as operator<< writes them, one after the other.
template <class... Args>
std::string concat(const Args&... args) {
  return detail::joined({detail::MessagePart(args)...});
}

/// Throws E with the concatenated message unless the condition holds. The message is built only
/// when it is needed.
template <class E, class... Args>
void check(bool condition, const Args&... message) {
  if (!condition) [[unlikely]] {
    detail::fail<E>({detail::MessagePart(message)...});
  }
}

}  // namespace tapestry
