#include "text/chat/callables.h"

#include <algorithm>
#include <utility>

#include "text/chat/operators.h"

namespace tapestry::chat::jinja {

namespace {

class LoopMethod final : public Object {
 public:
  using Function = Value (Loop::*)(Run& run, const Arguments& arguments);
  LoopMethod(std::shared_ptr<Loop> loop, Function function)
      : loop_(std::move(loop)), function_(function) {}
  std::string_view type_name() const override { return "method"; }
  int depth() const override { return loop_->depth() + 1; }
  bool callable() const override { return true; }
  Value call(Run& run, const Arguments& arguments) override {
    return (loop_.get()->*function_)(run, arguments);
  }

 private:
  std::shared_ptr<Loop> loop_;
  Function function_;
};

}  // namespace

Value Macro::call(Run& run, const Arguments& arguments) {
  const ScopePtr around = around_.lock();
  if (around == nullptr) {
    run.fail("macro '", syntax_.name,
             "' is called when the loop or call that it stands in is over");
  }
  return interpreter_.call_macro(syntax_, around, arguments);
}

std::optional<Value> Macro::attribute(Run& run, std::string_view name) {
  if (name == "name") {
    return run.text(syntax_.name);
  }
  constexpr std::string_view kOthers[] = {"arguments", "caller", "catch_kwargs", "catch_varargs",
                                          "defaults"};
  if (std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers)) {
    run.fail("attribute '", name, "' of a macro is not known here");
  }
  return std::nullopt;
}

// What the loop keeps counts as nested in it.
void Loop::hold(Run& run, const Value& value) {
  depth_ = std::max(depth_, value.depth() + 1);
  if (depth_ + 2 > kMaxValueDepth) {
    run.fail("values are nested more than ", kMaxValueDepth, " deep");
  }
}

bool Loop::look_ahead(Run& run) {
  if (!ahead_.empty()) {
    return true;
  }
  Value value;
  if (!next_(value)) {
    return false;
  }
  hold(run, value);
  ahead_.push_back(std::move(value));
  return true;
}

bool Loop::advance(Run& run) {
  if (!look_ahead(run)) {
    return false;
  }
  previous_ = std::move(current_);
  current_ = std::move(ahead_.front());
  ahead_.pop_front();
  ++index_;
  return true;
}

int64_t Loop::length(Run& run) {
  Value value;
  while (next_(value)) {
    hold(run, value);
    ahead_.push_back(std::move(value));
  }
  return index_ + 1 + static_cast<int64_t>(ahead_.size());
}

std::optional<Value> Loop::attribute(Run& run, std::string_view name) {
  if (name == "index") {
    return Value(index_ + 1);
  }
  if (name == "index0") {
    return Value(index_);
  }
  if (name == "first") {
    return Value(index_ == 0);
  }
  if (name == "last") {
    return Value(!look_ahead(run));
  }
  if (name == "length") {
    return Value(length(run));
  }
  if (name == "revindex") {
    return Value(length(run) - index_);
  }
  if (name == "revindex0") {
    return Value(length(run) - index_ - 1);
  }
  if (name == "depth") {
    return Value(int64_t{recursion_ + 1});
  }
  if (name == "depth0") {
    return Value(int64_t{recursion_});
  }
  if (name == "previtem") {
    return index_ > 0 ? *previous_ : run.undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return look_ahead(run) ? ahead_.front() : run.undefined("there is no next item");
  }
  if (name == "cycle" || name == "changed") {
    return Value(std::shared_ptr<Object>(std::make_shared<LoopMethod>(
        shared_from_this(), name == "cycle" ? &Loop::cycle : &Loop::changed)));
  }
  return std::nullopt;
}

Value Loop::cycle(Run& run, const Arguments& arguments) {
  const Values& values = arguments.positional;
  if (values.empty() || !arguments.named.empty()) {
    run.fail("loop.cycle takes at least one value, and none with a name");
  }
  return values[static_cast<size_t>(index_) % values.size()];
}

Value Loop::changed(Run& run, const Arguments& arguments) {
  const Value now = run.tuple(arguments.positional);
  if (last_changed_ && equal(run, *last_changed_, now)) {
    return Value(false);
  }
  hold(run, now);
  last_changed_ = now;
  return Value(true);
}

Value Loop::call(Run& run, const Arguments& arguments) {
  if (!statement_.is_recursive) {
    run.fail("the loop is called, but is not 'recursive'");
  }
  const auto bound = bind_arguments(run, "loop", arguments, {"(iterable)"}, 1);
  const ScopePtr around = around_.lock();
  if (around == nullptr) {
    run.fail("a loop is called when it is over");
  }
  return interpreter_.call_loop(statement_, around, *bound[0], recursion_ + 1);
}

}  // namespace tapestry::chat::jinja
