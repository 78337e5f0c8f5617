// Functions that are called back, and the handles by which they are taken off again.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "autograd/tensor/ref.h"

namespace tapestry {

namespace detail {

/// One registered function, seen without its signature.
class HookEntry : public RefCounted {
 public:
  bool is_removed() const { return removed_; }
  void remove() {
    removed_ = true;
    if (running_ == 0) {
      drop();
    }
  }

 protected:
  /// Destroys the function and what it captured.
  virtual void drop() = 0;

 private:
  template <class Signature>
  friend class HookList;

  int running_ = 0;  ///< calls of the function that have not returned
  bool removed_ = false;
};

}  // namespace detail

/// Names one registered hook. Its destruction leaves the hook where it is.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(Ref<detail::HookEntry> entry) : entry_(std::move(entry)) {}

  /// Takes the hook off: it is not called again, also not by a pass that is running. May be called
  /// by a hook, also by this one, whose captures then live until it returns; and again, or when
  /// what the hook was registered on is gone: nothing happens.
  void remove() {
    if (entry_) {
      std::exchange(entry_, {})->remove();
    }
  }
  /// False if the handle names nothing or the hook was taken off.
  bool registered() const { return entry_ && !entry_->is_removed(); }

 private:
  Ref<detail::HookEntry> entry_;
};

namespace detail {

/// Functions in the order of their registration. They may register and remove others while they
/// run: who is new is called from the next time on.
template <class Signature>
class HookList {
 public:
  HookHandle add(std::function<Signature> function) {
    drop_removed();
    auto entry = make_ref<Entry>(std::move(function));
    entries_.push_back(entry);
    return HookHandle(entry);
  }

  bool empty() const {
    return std::all_of(entries_.begin(), entries_.end(),
                       [](const Ref<Entry>& entry) { return entry->is_removed(); });
  }

  /// call(function) for each of them. The list must outlive the call.
  template <class Call>
  void for_each(const Call& call) {
    if (entries_.empty()) {
      return;
    }
    const Running list_runs(running_);
    const size_t count = entries_.size();
    for (size_t i = 0; i < count; ++i) {
      const Ref<Entry> entry = entries_[i];  // the vector may move
      if (!entry->is_removed()) {
        const EntryRuns entry_runs(*entry);
        call(std::as_const(entry->function));
      }
    }
  }

 private:
  struct Entry final : HookEntry {
    explicit Entry(std::function<Signature> f) : function(std::move(f)) {}
    void drop() override { function = nullptr; }
    std::function<Signature> function;
  };

  class Running {
   public:
    explicit Running(int& count) : count_(count) { ++count_; }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    ~Running() { --count_; }

   private:
    int& count_;
  };

  class EntryRuns {
   public:
    explicit EntryRuns(Entry& entry) : entry_(entry) { ++entry_.running_; }
    EntryRuns(const EntryRuns&) = delete;
    EntryRuns& operator=(const EntryRuns&) = delete;
    ~EntryRuns() {
      if (--entry_.running_ == 0 && entry_.is_removed()) {
        entry_.drop();
      }
    }

   private:
    Entry& entry_;
  };

  void drop_removed() {
    if (running_ == 0) {
      std::erase_if(entries_, [](const Ref<Entry>& entry) { return entry->is_removed(); });
    }
  }

  std::vector<Ref<Entry>> entries_;
  int running_ = 0;
};

}  // namespace detail

}  // namespace tapestry
