#include "autograd/tensor/address_set.h"

#include <algorithm>
#include <iterator>

namespace tapestry {

AddressSet::Ranges::const_iterator AddressSet::behind(Address address) const {
  auto range = ranges_.upper_bound(address);
  if (range != ranges_.begin() && std::prev(range)->second > address) {
    --range;
  }
  return range;
}

AddressSet::Range AddressSet::first_behind(Address address) const {
  const auto range = behind(address);
  return range == ranges_.end() ? Range{} : Range{range->first, range->second};
}

int64_t AddressSet::count(Address begin, Address end) const {
  int64_t bytes = 0;
  for (auto range = behind(begin); range != ranges_.end() && range->first < end; ++range) {
    bytes += static_cast<int64_t>(std::min(range->second, end) - std::max(range->first, begin));
  }
  return bytes;
}

int64_t AddressSet::erase(Address begin, Address end) {
  int64_t bytes = 0;
  auto range = behind(begin);
  while (range != ranges_.end() && range->first < end) {
    const Range whole = {range->first, range->second};
    range = ranges_.erase(range);
    bytes += static_cast<int64_t>(std::min(whole.end, end) - std::max(whole.begin, begin));
    if (whole.begin < begin) {
      ranges_.emplace(whole.begin, begin);
    }
    if (whole.end > end) {
      ranges_.emplace(end, whole.end);
    }
  }
  return bytes;
}

int64_t AddressSet::insert(Address begin, Address end) {
  const auto wanted = static_cast<int64_t>(end - begin);
  const int64_t there = erase(begin, end);
  auto next = ranges_.lower_bound(begin);
  if (next != ranges_.begin() && std::prev(next)->second == begin) {
    const auto before = std::prev(next);
    begin = before->first;
    ranges_.erase(before);
  }
  if (next != ranges_.end() && next->first == end) {
    end = next->second;
    ranges_.erase(next);
  }
  ranges_.emplace(begin, end);
  return wanted - there;
}

}  // namespace tapestry
