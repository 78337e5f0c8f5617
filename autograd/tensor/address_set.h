// A set of addresses, kept as ranges.
#pragma once

#include <cstdint>
#include <map>

namespace tapestry {

/// Disjoint ranges [begin, end), neighbours joined. Not thread safe.
class AddressSet {
 public:
  using Address = uintptr_t;
  struct Range {
    Address begin = 0;
    Address end = 0;
  };

  /// Adds a range, and returns how many bytes of it are new.
  int64_t insert(Address begin, Address end);
  /// Takes a range out, and returns how many bytes of it were there.
  int64_t erase(Address begin, Address end);
  /// How many bytes of the range are there.
  int64_t count(Address begin, Address end) const;
  /// The first range that ends behind `address`; [0, 0) if there is none.
  Range first_behind(Address address) const;

 private:
  using Ranges = std::map<Address, Address>;  // end by begin

  Ranges::const_iterator behind(Address address) const;

  Ranges ranges_;
};

}  // namespace tapestry
