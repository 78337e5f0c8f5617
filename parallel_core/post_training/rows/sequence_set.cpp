#include "parallel_core/post_training/rows/sequence_set.h"

#include <string_view>
#include <type_traits>

#include "text/util/checksum.h"

namespace tapestry::post_training {

void SequenceSet::add(std::span<const int32_t> prompt, std::span<const int32_t> completion) {
  ids_.insert(ids_.end(), prompt.begin(), prompt.end());
  ids_.insert(ids_.end(), completion.begin(), completion.end());
  entries_.push_back({static_cast<int64_t>(ids_.size()), static_cast<int64_t>(prompt.size())});
}

std::span<const int32_t> SequenceSet::ids(int64_t sequence) const {
  const auto i = static_cast<size_t>(sequence);
  const int64_t begin = i > 0 ? entries_[i - 1].end : 0;
  return std::span(ids_).subspan(static_cast<size_t>(begin),
                                 static_cast<size_t>(entries_[i].end - begin));
}

std::string SequenceSet::checksum() const {
  const auto bytes = [](const auto& values) {
    using Value = typename std::remove_cvref_t<decltype(values)>::value_type;
    static_assert(std::has_unique_object_representations_v<Value>);
    return std::string_view(reinterpret_cast<const char*>(values.data()),
                            values.size() * sizeof(Value));
  };
  data::Crc64 sum;
  sum.add(bytes(ids_));
  sum.add(bytes(entries_));
  return sum.text();
}

}  // namespace tapestry::post_training
