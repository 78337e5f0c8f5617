// Intrusive reference counting: one word per object, handles of one pointer.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace tapestry {

/// Base of objects that are owned by Ref<T>. An object is born with a count of zero.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  /// Who reads 1 through the last handle sees all that the owners of the others did.
  uint32_t use_count() const { return count_.load(std::memory_order_acquire); }

 protected:
  virtual ~RefCounted() = default;

  /// Called when the last handle is gone. Node overrides it so that long chains die without
  /// recursion.
  virtual void on_last_release() { delete this; }

 private:
  template <class T>
  friend class Ref;
  void retain() { count_.fetch_add(1, std::memory_order_relaxed); }
  bool retain_if_alive() {
    uint32_t count = use_count();
    while (count != 0 &&
           !count_.compare_exchange_weak(count, count + 1, std::memory_order_relaxed)) {
    }
    return count != 0;
  }
  void release() {
    if (count_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      on_last_release();
    }
  }

  std::atomic<uint32_t> count_{0};
};

/// Owning handle of a RefCounted object; null when default constructed.
template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}  // NOLINT(google-explicit-constructor): null is a value of a handle
  explicit Ref(T* object) : object_(object) {
    if (object_ != nullptr) {
      object_->retain();
    }
  }
  /// A handle of an object that other threads may be releasing, or null if its last handle is gone.
  /// The caller sees to it that the object's memory is still there.
  static Ref if_alive(T* object) {
    Ref out;
    if (object->retain_if_alive()) {
      out.object_ = object;
    }
    return out;
  }
  Ref(const Ref& other) : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  template <class U>
  Ref(const Ref<U>& other) : Ref(other.get()) {}  // NOLINT(google-explicit-constructor): upcast
  ~Ref() { reset(); }

  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): copy and swap
  Ref& operator=(const Ref& other) {
    Ref copy(other);
    swap(copy);
    return *this;
  }
  Ref& operator=(Ref&& other) noexcept {
    Ref moved(std::move(other));
    swap(moved);
    return *this;
  }

  void reset() {
    if (T* object = std::exchange(object_, nullptr); object != nullptr) {
      object->release();
    }
  }
  void swap(Ref& other) noexcept { std::swap(object_, other.object_); }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  friend bool operator==(const Ref& a, const Ref& b) { return a.object_ == b.object_; }

 private:
  T* object_ = nullptr;
};

template <class T, class... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>(new T(std::forward<Args>(args)...));
}

}  // namespace tapestry
