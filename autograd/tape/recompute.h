// Values that are made again when somebody needs them, instead of being kept for backward.
//
// checkpoint() runs a function a second time, with a graph of its own. Here the graph stays as it
// is, and memory goes: each op that runs in a RecomputeScope notes how its results follow from its
// inputs. When RecomputedValues::drop() is called, their memory is let go; the first touch after
// that, usually by a backward that reads what it has saved, runs the op again, and with it those
// before it whose results are gone too. So nothing is computed twice that nobody asks for, code
// around the ops (counters, recorders, random numbers that are drawn) is not run again, hooks fire
// once, and gradients can be differentiated as ever.
//
//   RecomputedValues values;
//   Tensor y;
//   {
//     const RecomputeScope scope(&values);
//     y = block(x);
//   }
//   values.keep(y);
//   values.drop();  // of what block() made, y and x are there
#pragma once

#include <array>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// True while something runs that has run before: in checkpoint()'s second run, and where a dropped
/// value is made again. For whoever counts or records what a forward pass does.
bool is_recomputing();

/// Results that can be made again. Not to be shared by threads.
class RecomputedValues {
 public:
  RecomputedValues() = default;
  RecomputedValues(const RecomputedValues&) = delete;
  RecomputedValues& operator=(const RecomputedValues&) = delete;
  /// What has not been dropped by now is kept.
  ~RecomputedValues();

  /// `value`, whose memory is its own, is what `again` returns: the same bits, shape and dtype.
  /// `again` runs unrecorded, with the default generator wherever it is then.
  void add(const Tensor& value, std::function<Tensor()> again);
  /// The memory of `value` is to stay.
  void keep(const Tensor& value);
  /// Lets the memory go of all values that are not kept and were not changed in place since.
  /// Returns how many bytes that are of what others still hold.
  int64_t drop();
  bool empty() const { return storages_.empty(); }

  /// Whether ops that communicate (Op::communicates) are run again; else their results are kept.
  void set_repeats_communication(bool repeats) { repeats_communication_ = repeats; }
  bool repeats_communication() const { return repeats_communication_; }

 private:
  friend class RecomputeScope;
  void add(const Ref<Storage>& storage);
  friend void note_again(RecomputedValues& values,
                         const TensorList& results,
                         const std::vector<Storage*>& made,
                         const std::function<TensorList()>& again,
                         const TensorList& inputs);

  std::vector<std::pair<Ref<Storage>, uint32_t>> storages_;  // with the version that counts
  bool repeats_communication_ = true;
};

/// Recorded ops in its scope note their results in `values`, which lives at least as long; null: in
/// none, also inside another scope. Results that are noted must not be changed in place before they
/// are dropped or kept: recorded ops refuse it.
class RecomputeScope {
 public:
  explicit RecomputeScope(RecomputedValues* values);
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;
  ~RecomputeScope();

 private:
  void* previous_;
};

/// The values in which the calling thread's ops note their results now; null: in none.
RecomputedValues* noted_values();

/// What apply_op() does in a scope: `again` gives `results` from `inputs`, of whose storages those
/// in `made` are new.
void note_again(RecomputedValues& values,
                const TensorList& results,
                const std::vector<Storage*>& made,
                const std::function<TensorList()>& again,
                const TensorList& inputs);

namespace detail {

/// Lists the storages that the calling thread makes.
class NewStorages {
 public:
  explicit NewStorages(std::vector<Storage*>& list);
  NewStorages(const NewStorages&) = delete;
  NewStorages& operator=(const NewStorages&) = delete;
  ~NewStorages();

 private:
  void* previous_;
};

/// A tensor as an op gets it when it is run again: without its graph, unless it is a leaf.
Tensor without_graph(const Tensor& t);

inline Tensor input_again(const Tensor& t) { return t.defined() ? without_graph(t) : t; }
inline TensorList input_again(const TensorList& list) {
  TensorList out;
  for (const Tensor& t : list) {
    out.push_back(input_again(t));
  }
  return out;
}

inline void append_tensors(TensorList& out, const Tensor& t) { out.push_back(t); }
template <class List>
void append_tensors(TensorList& out, const List& list) {
  out.insert(out.end(), list.begin(), list.end());
}

template <class T>
TensorList listed(const T& result) {
  TensorList out;
  append_tensors(out, result);
  return out;
}

}  // namespace detail

}  // namespace tapestry
