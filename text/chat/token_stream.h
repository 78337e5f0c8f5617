// Tokens one after the other, and the names that they give variables.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "text/chat/lexer.h"
#include "text/chat/syntax.h"

namespace tapestry::chat::jinja {

class TokenStream {
 public:
  TokenStream(std::vector<Token> tokens, const std::string& name);

  const Token& current() const { return tokens_[at_]; }
  const Token& look_ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token next();
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view name);
  Token expect(Token::Kind kind, std::string_view what);
  void expect_name(std::string_view name);
  void expect_operator(std::string_view name);

  template <class... Args>
  [[noreturn]] void fail_at(int line, const Args&... message) const {
    throw ValueError(concat(name_, ":", line, ": ", message...));
  }
  template <class... Args>
  [[noreturn]] void fail(const Args&... message) const {
    fail_at(current().line, message...);
  }
  /// "unexpected ..., WHAT is expected here".
  [[noreturn]] void fail_unexpected(std::string_view what) const;

  Symbol symbol_of(const std::string& name);
  std::vector<std::string> take_names() { return std::move(names_); }

  /// Counts a level of nesting while it lives.
  class Level {
   public:
    explicit Level(TokenStream& stream) : stream_(stream) {
      if (++stream_.level_ > kMaxSyntaxDepth) {
        stream_.fail("the template is nested more than ", kMaxSyntaxDepth, " deep");
      }
    }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --stream_.level_; }

   private:
    TokenStream& stream_;
  };

 private:
  std::vector<Token> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int level_ = 0;
  std::vector<std::string> names_;
  std::unordered_map<std::string, Symbol> symbols_;
};

}  // namespace tapestry::chat::jinja
