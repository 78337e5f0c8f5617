#include "diagnosis/verify/bit_checksum.h"

#include <algorithm>
#include <cstring>

#include "autograd/tensor/dtype.h"
#include "diagnosis/dump/dense.h"

namespace tapestry {

namespace {

// splitmix64 (Steele, Lea, Flood 2014).
uint64_t stirred(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

}  // namespace

uint64_t bit_checksum(const Tensor& x) {
  if (!x.defined()) {
    return 0;
  }
  uint64_t sum = stirred(static_cast<uint64_t>(x.dtype()));
  for (const int64_t size : x.shape()) {
    sum = stirred(sum ^ static_cast<uint64_t>(size));
  }
  const Tensor elements = dump::dense(x);
  const auto bytes = static_cast<size_t>(elements.numel() * size_of(elements.dtype()));
  const auto* at = static_cast<const char*>(elements.raw());
  for (size_t begin = 0; begin < bytes; begin += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, at + begin, std::min(sizeof word, bytes - begin));
    sum = stirred(sum ^ word);
  }
  return sum;
}

}  // namespace tapestry
