#include "parallel_core/deferred_values.h"

#include <algorithm>
#include <deque>
#include <map>
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
  internal::StartRange range = nullptr;
  Tensor memory;
  int64_t count = 0;
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
  std::map<const Storage*, std::weak_ptr<Page>> all;

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

void for_start_values(const Tensor& value,
                      int64_t unit,
                      const std::function<void(int64_t first, const Tensor& values)>& use) {
  std::shared_ptr<Page> page;
  if (current_pages) {
    const auto found = current_pages->all.find(value.storage().get());
    page = found != current_pages->all.end() ? found->second.lock() : nullptr;
  }
  const int64_t count = value.numel();
  if (!page || !page->range || page->memory.defined() || count != page->count) {
    use(0, value.reshape({count}));
    return;
  }
  const int64_t piece = std::max<int64_t>(1, kStartPiece / unit) * unit;
  for (int64_t first = 0; first < count; first += piece) {
    use(first, page->range(first, std::min(piece, count - first)));
  }
}

Tensor internal::deferred(const Shape& shape, std::function<Tensor()> make, StartRange range) {
  if (!current_pages) {
    return {};
  }
  if (current_pages->values == DeferInitialValues::Values::kZeros) {
    make = [shape] {
      const MemoryKindGuard kind(MemoryKind::kParameter);
      return zeros(shape);
    };
    range = [](int64_t, int64_t count) { return zeros({count}); };
  }
  const auto page = std::make_shared<Page>();
  page->range = std::move(range);
  page->count = shape.numel();
  const Ref<Storage> storage =
      make_ref<Storage>(shape.numel() * size_of(kFloat32),
                        [page, pages = current_pages, make = std::move(make)]() -> std::byte* {
                          page->memory = make();
                          page->version = page->storage->version();
                          pages->opened(page);
                          return static_cast<std::byte*>(page->memory.raw());
                        });
  page->storage = storage.get();
  current_pages->all[storage.get()] = page;
  return Tensor(make_ref<TensorImpl>(storage, 0, shape, contiguous_strides(shape), kFloat32));
}

}  // namespace tapestry
