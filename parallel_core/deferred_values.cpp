#include "parallel_core/deferred_values.h"

#include <deque>
#include <utility>

#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "autograd/tensor/storage.h"

namespace tapestry {

namespace {

// Parameters that no op uses any more and that stay when another one is touched, that one among
// them.
constexpr size_t kOpenValues = 2;

// One deferred tensor; its storage keeps it.
struct Page {
  Storage* storage = nullptr;
  Tensor memory;
  uint32_t version = 0;  // of the storage when the memory came

  void close() {
    if (storage->version() == version) {
      storage->close();
      memory = Tensor();
    }
  }
};

// Those that are open, the oldest first.
struct Pages {
  DeferInitialValues::Values values = DeferInitialValues::Values::kInitial;
  std::deque<std::weak_ptr<Page>> open;

  void opened(const std::shared_ptr<Page>& page) {
    open.emplace_back(page);
    for (auto next = open.begin(); open.size() > kOpenValues && next + 1 != open.end();) {
      const auto older = next->lock();
      if (older && older->storage->is_leased()) {
        ++next;
        continue;
      }
      if (older) {
        older->close();
      }
      next = open.erase(next);
    }
  }
};

thread_local std::shared_ptr<Pages> current_pages;

}  // namespace

DeferInitialValues::DeferInitialValues(Values values) {
  current_pages = std::make_shared<Pages>();
  current_pages->values = values;
}

DeferInitialValues::~DeferInitialValues() { current_pages.reset(); }

Tensor internal::deferred(const Shape& shape, std::function<Tensor()> make) {
  if (!current_pages) {
    return {};
  }
  if (current_pages->values == DeferInitialValues::Values::kZeros) {
    make = [shape] {
      const MemoryKindGuard kind(MemoryKind::kParameter);
      return zeros(shape);
    };
  }
  const auto page = std::make_shared<Page>();
  const Ref<Storage> storage =
      make_ref<Storage>(shape.numel() * size_of(kFloat32),
                        [page, pages = current_pages, make = std::move(make)]() -> std::byte* {
                          page->memory = make();
                          page->version = page->storage->version();
                          pages->opened(page);
                          return static_cast<std::byte*>(page->memory.raw());
                        });
  page->storage = storage.get();
  return Tensor(make_ref<TensorImpl>(storage, 0, shape, contiguous_strides(shape), kFloat32));
}

}  // namespace tapestry
