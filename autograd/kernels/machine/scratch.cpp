#include "autograd/kernels/machine/scratch.h"

#include <cstdlib>
#include <new>

namespace tapestry::kernels {

namespace {

void* from_system(int64_t bytes) {
  const int64_t rounded = (bytes / kScratchAlignment + 1) * kScratchAlignment;
  void* memory = std::aligned_alloc(kScratchAlignment, static_cast<size_t>(rounded));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

void to_system(void* memory) { std::free(memory); }

}  // namespace

ScratchSource& scratch_source() {
  static constinit ScratchSource source = {&from_system, &to_system};
  return source;
}

}  // namespace tapestry::kernels
