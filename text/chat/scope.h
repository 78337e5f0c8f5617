// Which name means what, where.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "text/chat/syntax.h"
#include "text/chat/value.h"

namespace tapestry::chat::jinja {

/// The variables of the template, of one turn of a loop, of one call of a macro. What is set inside
/// is not seen outside.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent) : parent_(std::move(parent)) {}

  /// Null if neither this scope nor one around it has the name.
  const Value* find(Symbol symbol) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent_.get()) {
      for (const auto& [name, value] : scope->values_) {
        if (name == symbol) {
          return &value;
        }
      }
    }
    return nullptr;
  }

  void set(Symbol symbol, Value value) {
    for (auto& [name, place] : values_) {
      if (name == symbol) {
        place = std::move(value);
        return;
      }
    }
    values_.emplace_back(symbol, std::move(value));
  }

 private:
  std::shared_ptr<Scope> parent_;
  std::vector<std::pair<Symbol, Value>> values_;
};

using ScopePtr = std::shared_ptr<Scope>;

}  // namespace tapestry::chat::jinja
