// Macros and loops as values.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "text/chat/interpreter.h"
#include "text/chat/object.h"

namespace tapestry::chat::jinja {

/// A macro, or the `caller` of one. It sees the scope where it stands, as long as that lasts.
class Macro final : public Object {
 public:
  Macro(Interpreter& interpreter, const MacroSyntax& syntax, const ScopePtr& around)
      : interpreter_(interpreter), syntax_(syntax), around_(around) {}

  std::string_view type_name() const override { return "macro"; }
  bool callable() const override { return true; }
  Value call(Run& run, const Arguments& arguments) override;
  std::optional<Value> attribute(Run& run, std::string_view name) override;

 private:
  Interpreter& interpreter_;
  const MacroSyntax& syntax_;
  std::weak_ptr<Scope> around_;
};

/// `loop`. Takes items one at a time, one more where `last` or `nextitem` ask for it and all where
/// `length` does, since a loop's condition may depend on what its body has done.
class Loop final : public Object, public std::enable_shared_from_this<Loop> {
 public:
  Loop(Interpreter& interpreter,
       const Statement& statement,
       const ScopePtr& around,
       std::function<bool(Value&)> next,
       int depth)
      : interpreter_(interpreter),
        statement_(statement),
        around_(around),
        next_(std::move(next)),
        recursion_(depth) {}

  /// To the next item; false if there is none.
  bool advance(Run& run);
  const Value& item() const { return *current_; }

  std::string_view type_name() const override { return "loop"; }
  int depth() const override { return depth_; }
  bool callable() const override { return statement_.is_recursive; }
  Value call(Run& run, const Arguments& arguments) override;
  std::optional<Value> attribute(Run& run, std::string_view name) override;
  Value cycle(Run& run, const Arguments& arguments);
  Value changed(Run& run, const Arguments& arguments);

 private:
  bool look_ahead(Run& run);
  int64_t length(Run& run);
  void hold(Run& run, const Value& value);

  Interpreter& interpreter_;
  const Statement& statement_;
  std::weak_ptr<Scope> around_;
  std::function<bool(Value&)> next_;
  std::deque<Value> ahead_;
  std::optional<Value> previous_;
  std::optional<Value> current_;
  std::optional<Value> last_changed_;
  int64_t index_ = -1;
  int recursion_ = 0;
  int depth_ = 1;
};

}  // namespace tapestry::chat::jinja
