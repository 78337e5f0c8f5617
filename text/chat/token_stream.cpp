#include "text/chat/token_stream.h"

namespace tapestry::chat::jinja {

TokenStream::TokenStream(std::vector<Token> tokens, const std::string& name)
    : tokens_(std::move(tokens)), name_(name) {
  for (const char* fixed : {"loop", "caller", "varargs", "kwargs"}) {
    symbol_of(fixed);
  }
}

Token TokenStream::next() {
  Token token = tokens_[at_];
  at_ = std::min(at_ + 1, tokens_.size() - 1);
  return token;
}

bool TokenStream::skip_name(std::string_view name) {
  const bool found = current().is_name(name);
  at_ += found ? 1 : 0;
  return found;
}

bool TokenStream::skip_operator(std::string_view name) {
  const bool found = current().is_operator(name);
  at_ += found ? 1 : 0;
  return found;
}

Token TokenStream::expect(Token::Kind kind, std::string_view what) {
  if (current().kind != kind) {
    fail_unexpected(what);
  }
  return next();
}

void TokenStream::expect_name(std::string_view name) {
  if (!skip_name(name)) {
    fail_unexpected(concat("'", name, "'"));
  }
}

void TokenStream::expect_operator(std::string_view name) {
  if (!skip_operator(name)) {
    fail_unexpected(concat("'", name, "'"));
  }
}

void TokenStream::fail_unexpected(std::string_view what) const {
  using Kind = Token::Kind;
  const Token& token = current();
  std::string found = concat("'", token.text, "'");
  switch (token.kind) {
    case Kind::kEnd:
      found = "end of the template";
      break;
    case Kind::kVariableEnd:
      found = "'}}'";
      break;
    case Kind::kBlockEnd:
      found = "'%}'";
      break;
    case Kind::kInteger:
    case Kind::kReal:
      found = "number";
      break;
    case Kind::kText:
      found = "text";
      break;
    default:
      break;
  }
  fail("unexpected ", found, ", ", what, " is expected here");
}

Symbol TokenStream::symbol_of(const std::string& name) {
  const auto [place, is_new] = symbols_.emplace(name, static_cast<Symbol>(names_.size()));
  if (is_new) {
    names_.push_back(name);
  }
  return place->second;
}

}  // namespace tapestry::chat::jinja
