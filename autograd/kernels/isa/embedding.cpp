#include "autograd/kernels/embedding.h"

#include <type_traits>

#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

/// `order` lists the places of ids, equal ids together and in ascending places.
template <class T, class D>
void add_columns(int64_t begin,
                 int64_t m,
                 int64_t dim,
                 int64_t n_ids,
                 const int64_t* order,
                 const int64_t* ids,
                 const D* dy,
                 T* dweight) {
  using C = compute_t<T>;
  C in_block[kBlock];
  C out_block[kBlock];
  int64_t i = 0;
  while (i < n_ids) {
    const int64_t id = ids[order[i]];
    T* row = dweight + id * dim + begin;
    C* out = output_block(row, out_block);
    if constexpr (!kSame<T, C>) {
      load_row(m, row, out);
    }
    for (; i < n_ids && ids[order[i]] == id; ++i) {
      const C* in = read_block(m, dy + order[i] * dim + begin, in_block);
      TAPESTRY_VECTOR_LOOP
      for (int64_t j = 0; j < m; ++j) {
        out[j] += in[j];
      }
    }
    write_block(m, out, row);
  }
}

}  // namespace

void embedding_backward_columns(DType dtype,
                                DType dy_dtype,
                                int64_t begin,
                                int64_t end,
                                int64_t dim,
                                int64_t n_ids,
                                const int64_t* order,
                                const int64_t* ids,
                                const void* dy,
                                void* dweight) {
  for_floating(dy_dtype, [&](auto* tag) {
    using D = std::remove_pointer_t<decltype(tag)>;
    for (int64_t done = begin; done < end; done += kBlock) {
      const int64_t m = block_size(end - done);
      const auto* rows = static_cast<const D*>(dy);
      if (dtype == dy_dtype) {
        add_columns(done, m, dim, n_ids, order, ids, rows, static_cast<D*>(dweight));
      } else {
        add_columns(done, m, dim, n_ids, order, ids, rows, static_cast<float*>(dweight));
      }
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
