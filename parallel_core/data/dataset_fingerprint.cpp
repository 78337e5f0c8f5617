#include "parallel_core/data/dataset_fingerprint.h"

#include <algorithm>

#include "autograd/io/input_file.h"
#include "parallel_core/data/indexed_dataset.h"
#include "text/util/checksum.h"

namespace tapestry::data {
namespace {

// Appends the first and the last bytes of a file; of a small one all of them. Returns its size.
int64_t append_ends(const InputFile& file, std::string& out) {
  constexpr uint64_t kEnd = 64 << 10;
  const uint64_t head = std::min(kEnd, file.size());
  const uint64_t tail = std::min(kEnd, file.size() - head);
  const size_t at = out.size();
  out.resize(at + head + tail);
  file.read_at(0, out.data() + at, head, "beginning");
  file.read_at(file.size() - tail, out.data() + at + head, tail, "end");
  return static_cast<int64_t>(file.size());
}

}  // namespace

DatasetFingerprint dataset_fingerprint(const std::string& prefix) {
  DatasetFingerprint result{.prefix = prefix};
  std::string ends;
  result.bin_bytes = append_ends(open_dataset_file(prefix, ".bin"), ends);
  result.idx_bytes = append_ends(open_dataset_file(prefix, ".idx"), ends);
  result.crc64 = crc64(ends);
  return result;
}

}  // namespace tapestry::data
