#include "autograd/io/tensor_source.h"

#include <algorithm>

namespace tapestry {

bool same_bytes(const TensorSource& source, const std::string& a, const std::string& b) {
  const DType dtype = source.dtype(a);
  if (dtype != source.dtype(b) || source.shape(a) != source.shape(b)) {
    return false;
  }
  constexpr uint64_t kPiece = uint64_t{4} << 20U;
  const auto bytes = static_cast<uint64_t>(source.shape(a).numel() * size_of(dtype));
  std::vector<char> of_a(static_cast<size_t>(std::min(kPiece, bytes)));
  std::vector<char> of_b(of_a.size());
  for (uint64_t at = 0; at < bytes; at += kPiece) {
    const auto count = static_cast<size_t>(std::min(kPiece, bytes - at));
    source.read_bytes(a, at, count, of_a.data());
    source.read_bytes(b, at, count, of_b.data());
    if (!std::equal(of_a.begin(), of_a.begin() + static_cast<std::ptrdiff_t>(count),
                    of_b.begin())) {
      return false;
    }
  }
  return true;
}

}  // namespace tapestry
