#include "autograd/tensor/generator.h"

#include <mutex>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

thread_local constinit DrawScope* innermost_scope = nullptr;

}  // namespace

RandomKey Generator::reserve(int64_t count) {
  return innermost_scope == nullptr ? next(count)
                                    : DrawScope::reserve_through(innermost_scope, *this, count);
}

RandomKey Generator::next(int64_t count) {
  const std::lock_guard lock(lock_);
  const RandomKey key{state_.seed, 0, state_.offset};
  state_.offset += static_cast<uint64_t>(count);
  return key;
}

Generator::State Generator::state() const {
  const std::lock_guard lock(lock_);
  return state_;
}

void Generator::set_state(State state) {
  const std::lock_guard lock(lock_);
  state_ = state;
}

DrawScope::DrawScope(Generator& generator) : generator_(generator), outer_(innermost_scope) {
  innermost_scope = this;
}

DrawScope::~DrawScope() { innermost_scope = outer_; }

RandomKey DrawScope::reserve_through(DrawScope* innermost, Generator& generator, int64_t count) {
  for (DrawScope* scope = innermost; scope != nullptr; scope = scope->outer_) {
    if (&scope->generator_ == &generator) {
      return scope->reserve(count);
    }
  }
  return generator.next(count);
}

RandomKey DrawScope::reserve_outside(int64_t count) const {
  return reserve_through(outer_, generator_, count);
}

RandomKey DrawRecording::reserve(int64_t count) {
  draws_.push_back({reserve_outside(count), count});
  return draws_.back().key;
}

RandomKey DrawReplay::reserve(int64_t count) {
  const bool same = position_ < draws_.size() && draws_[position_].count == count;
  check<RuntimeError>(same, "random numbers: a function that is run again asks for ", count,
                      " numbers in its call ", position_ + 1, " of the generator; its first run ",
                      position_ < draws_.size()
                          ? concat("asked for ", draws_[position_].count, " there")
                          : concat("had ", draws_.size(), " calls"));
  return draws_[position_++].key;
}

}  // namespace tapestry
