// One rendering: what it may still take, where it is, and what belongs to it.
#pragma once

#include <cstdint>
#include <ctime>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "text/chat/chat_template.h"
#include "text/chat/value.h"

namespace tapestry::chat::jinja {

constexpr int kMaxValueDepth = 200;  ///< of lists in lists, ...
constexpr int kMaxCallDepth =
    1000;  ///< of expressions and statements inside each other, over macros

class Run {
 public:
  Run(const std::string& name, const RenderLimits& limits, std::optional<std::time_t> now)
      : now_(now), name_(name), limits_(limits), steps_left_(limits.steps) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// ValueError "NAME:LINE: ..." of the line that is being rendered.
  template <class... Args>
  [[noreturn]] void fail(const Args&... message) const {
    throw ValueError(concat(name_, ":", line_, ": ", message...));
  }

  void step(size_t count = 1) {
    steps_left_ -= static_cast<int64_t>(count);
    if (steps_left_ < 0) [[unlikely]] {
      fail_steps();
    }
  }
  /// Bytes that are gone through as memory, searched, copied or compared.
  void scan(size_t bytes) { step(bytes / kBytesPerStep); }
  /// Bytes that are gone through letter by letter. Counted before, so that what is made of them on
  /// the way, several bytes for each, is bounded, too.
  void letters(size_t bytes) { step(bytes / kLettersPerStep); }
  /// Before values are made that step() will count.
  void check_steps(size_t count) const {
    if (static_cast<int64_t>(count) > steps_left_) [[unlikely]] {
      fail_steps();
    }
  }
  /// Before or while a text of so many bytes is made.
  void check_text(size_t bytes) const {
    if (bytes > static_cast<size_t>(limits_.bytes)) [[unlikely]] {
      fail_bytes();
    }
  }

  /// Values that a template makes, counted.
  Value text(std::string bytes);
  /// A text that `safe` has marked; see Text.
  Value marked(std::string bytes);
  Value sequence(Sequence::Form form, Values items);
  Value list(Values items) { return sequence(Sequence::Form::kList, std::move(items)); }
  Value tuple(Values items) { return sequence(Sequence::Form::kTuple, std::move(items)); }
  Value iterator(Values items);
  Value integer(int64_t number) const { return Value(number); }
  Value dict(std::shared_ptr<const Dict> dict);
  void set(Dict& dict, Value key, Value value);
  Value undefined(std::string hint) const;
  Value names();

  /// The depth of what holds these values. Fails if it is too deep.
  int depth_over(const Values& items) const;

  /// Counts a level of nested evaluation while it lives.
  class Level {
   public:
    explicit Level(Run& run) : run_(run) {
      if (++run_.level_ > kMaxCallDepth) {
        --run_.level_;
        run_.fail("calls and expressions are nested more than ", kMaxCallDepth, " deep");
      }
    }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --run_.level_; }

   private:
    Run& run_;
  };

  /// The text that marks are placed in.
  void set_whole(const std::string& whole) { whole_ = &whole; }
  /// What has been put out since `begin` stood between {% generation %} and its end.
  void mark(const std::string& out, size_t begin) {
    if (&out != whole_) {
      marks_.are_placed = false;
    } else if (out.size() > begin) {
      marks_.spans.push_back({begin, out.size()});
    }
  }
  const GenerationMarks& marks() const { return marks_; }

  int line() const { return line_; }
  void set_line(int line) { line_ = line; }
  const std::optional<std::time_t>& now() const { return now_; }

 private:
  static constexpr size_t kBytesPerStep = 64;
  static constexpr size_t kLettersPerStep = 4;

  [[noreturn, gnu::cold]] void fail_steps() const;
  [[noreturn, gnu::cold]] void fail_bytes() const;

  std::optional<std::time_t> now_;
  const std::string& name_;
  RenderLimits limits_;
  int64_t steps_left_;
  int line_ = 1;
  int level_ = 0;
  const std::string* whole_ = nullptr;
  GenerationMarks marks_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;  // may hold each other
};

}  // namespace tapestry::chat::jinja
