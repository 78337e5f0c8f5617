#include "autograd/tape/recompute.h"

#include <algorithm>
#include <exception>

#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/one_order.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

// One run of an op, from which all storages that it made are filled.
class Again final : public StorageSource {
 public:
  Again(std::function<TensorList()> run, const TensorList& inputs, size_t results)
      : run_(std::move(run)), outputs_(results, nullptr) {
    for (const Tensor& input : inputs) {
      if (input.defined()) {
        inputs_.emplace_back(input, input.version());
      }
    }
  }

  void set_output(size_t index, Storage& storage) { outputs_[index] = &storage; }

  void restore(Storage& /*wanted*/) override {
    // Memory that others have as a window, weights for example, may go when this fetches more: what
    // the op reads of our own comes first.
    for (const auto& [input, version] : inputs_) {
      check<RuntimeError>(input.version() == version,
                          "recompute: a value cannot be made again: ", describe(input),
                          ", from which it is made, was changed in place after it was used; it had "
                          "version ",
                          version, " and is now at version ", input.version());
      if (input.storage()->is_dropped()) {
        input.raw();
      }
    }
    TensorList results;
    {
      ThreadState& state = thread_state();
      const detail::ForwardScope scope(kernels::team_state().op, nullptr);
      const RecomputeScope unnoted(nullptr);
      const OneOrderScope order(one_order_);
      const ExactScope exact(exact_);
      const MemoryKindGuard kind(MemoryKind::kActivation);
      const detail::FlagGuard<&ThreadState::recomputing> again(true);
      void* const listed = std::exchange(state.new_storages, nullptr);
      try {
        results = run_();
      } catch (...) {
        state.new_storages = listed;
        throw;
      }
      state.new_storages = listed;
    }
    check<RuntimeError>(results.size() == outputs_.size(), "recompute: ", outputs_.size(),
                        " values were made, and ", results.size(), " when they were made again");
    const std::vector<Storage*> outputs = outputs_;  // who is filled is forgotten
    for (size_t i = 0; i < results.size(); ++i) {
      if (outputs[i] != nullptr && outputs[i]->is_dropped()) {
        fill(*outputs[i], results[i]);
      }
    }
  }

  void forget(const Storage& storage) override {
    std::replace_if(
        outputs_.begin(), outputs_.end(), [&](const Storage* s) { return s == &storage; }, nullptr);
  }

 private:
  static void fill(Storage& storage, Tensor& result) {
    check<RuntimeError>(result.defined() && result.storage()->bytes() == storage.bytes() &&
                            result.storage()->owns_memory(),
                        "recompute: made again, a value of ", storage.bytes(), " bytes is ",
                        describe(result));
    storage.refill(*result.storage());
  }

  std::function<TensorList()> run_;
  bool one_order_ = in_one_order();
  bool exact_ = in_exact();
  std::vector<std::pair<Tensor, uint32_t>> inputs_;
  std::vector<Storage*> outputs_;  // of each result; null: kept, not its own, or gone
};

}  // namespace

bool is_recomputing() { return thread_state().recomputing; }

RecomputedValues::~RecomputedValues() {
  for (auto& [storage, version] : storages_) {
    storage->clear_source();
  }
}

void RecomputedValues::add(const Ref<Storage>& storage) {
  storages_.emplace_back(storage, storage->version());
}

void RecomputedValues::add(const Tensor& value, std::function<Tensor()> again) {
  if (!value.storage()->owns_memory()) {
    return;
  }
  keep(value);
  note_again(*this, {value}, {value.storage().get()},
             [again = std::move(again)] { return TensorList{again()}; }, {});
}

void RecomputedValues::keep(const Tensor& value) {
  if (!value.defined()) {
    return;
  }
  const auto is_it = [&](const auto& entry) { return entry.first == value.storage(); };
  for (auto& entry : storages_) {
    if (is_it(entry)) {
      entry.first->clear_source();
    }
  }
  std::erase_if(storages_, is_it);
}

int64_t RecomputedValues::drop() {
  int64_t bytes = 0;
  // Newest first: a value that nobody else holds takes with it what only it was to be made from.
  while (!storages_.empty()) {
    auto [storage, version] = std::move(storages_.back());
    storages_.pop_back();
    if (storage->version() != version) {
      storage->clear_source();
    } else if (storage->use_count() > 1 && storage->drop()) {
      bytes += storage->bytes();
    }
  }
  return bytes;
}

RecomputeScope::RecomputeScope(RecomputedValues* values)
    : previous_(std::exchange(thread_state().recomputed_values, values)) {}

RecomputeScope::~RecomputeScope() { thread_state().recomputed_values = previous_; }

RecomputedValues* noted_values() {
  return static_cast<RecomputedValues*>(thread_state().recomputed_values);
}

void note_again(RecomputedValues& values,
                const TensorList& results,
                const std::vector<Storage*>& made,
                const std::function<TensorList()>& again,
                const TensorList& inputs) {
  Ref<Again> source;
  for (size_t i = 0; i < results.size(); ++i) {
    const Tensor& result = results[i];
    if (!result.defined() || result.storage()->bytes() == 0 ||
        std::find(made.begin(), made.end(), result.storage().get()) == made.end()) {
      continue;  // a view, or memory that was there before
    }
    if (!source) {
      source = make_ref<Again>(again, inputs, results.size());
    }
    source->set_output(i, *result.storage());
    result.storage()->set_source(source);
    values.add(result.storage());
  }
}

namespace detail {

NewStorages::NewStorages(std::vector<Storage*>& list)
    : previous_(std::exchange(thread_state().new_storages, &list)) {}

NewStorages::~NewStorages() { thread_state().new_storages = previous_; }

Tensor without_graph(const Tensor& t) { return t.requires_grad() && t.is_leaf() ? t : alias(t); }

}  // namespace detail

}  // namespace tapestry
