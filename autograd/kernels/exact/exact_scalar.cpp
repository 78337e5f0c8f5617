#include "autograd/kernels/exact/exact_scalar.h"

#include <bit>
#include <cmath>
#include <limits>

namespace tapestry::kernels {

namespace {

constexpr int kScalarDigitBits = 32;
constexpr int64_t kScalarDigitMask = (int64_t{1} << kScalarDigitBits) - 1;
constexpr int kScalarMantissaBits = 52;
constexpr int kScalarLowestExponent = -1074;  // of the lowest bit of the lowest digit

// Of each digit but the highest what is above 32 bits goes to the next, so that they lie between 0
// and 2^32; the highest has the sign.
template <class Digits>
void carry_digits(Digits& digits) {
  for (size_t i = 0; i + 1 < digits.size(); ++i) {
    digits[i + 1] += digits[i] >> kScalarDigitBits;  // rounds down, also where it is negative
    digits[i] &= kScalarDigitMask;
  }
}

}  // namespace

void ExactSum::pass_carries() {
  carry_digits(digits_);
  room_ = kRoom;
}

void ExactSum::add(double x) {
  if (!std::isfinite(x)) {
    (std::isnan(x) ? nan_ : x > 0 ? positive_infinities_ : negative_infinities_) += 1;
    return;
  }
  const auto bits = std::bit_cast<uint64_t>(x);
  const auto biased = static_cast<int>((bits >> kScalarMantissaBits) & 0x7FF);
  uint64_t mantissa = bits & ((uint64_t{1} << kScalarMantissaBits) - 1);
  mantissa |= biased > 0 ? uint64_t{1} << kScalarMantissaBits : 0;
  const int shift = biased > 0 ? biased - 1 : 0;  // above the lowest bit of all
  const auto first = static_cast<size_t>(shift / kScalarDigitBits);
  const int within = shift % kScalarDigitBits;
  // The mantissa has 53 bits: within three digits.
  const auto low = static_cast<int64_t>((mantissa << within) & kScalarDigitMask);
  const auto middle =
      static_cast<int64_t>((mantissa >> (kScalarDigitBits - within)) & kScalarDigitMask);
  const auto high =
      within == 0 ? 0 : static_cast<int64_t>(mantissa >> (2 * kScalarDigitBits - within));
  const int64_t sign = x < 0 ? -1 : 1;
  digits_[first] += sign * low;
  digits_[first + 1] += sign * middle;
  digits_[first + 2] += sign * high;
  if (--room_ == 0) {
    pass_carries();
  }
}

void ExactSum::add(const ExactSum& other) {
  ExactSum more = other;
  more.pass_carries();
  pass_carries();
  for (size_t i = 0; i < digits_.size(); ++i) {
    digits_[i] += more.digits_[i];
  }
  nan_ += more.nan_;
  positive_infinities_ += more.positive_infinities_;
  negative_infinities_ += more.negative_infinities_;
  pass_carries();
}

void ExactSum::write_words(std::span<double, kWords> words) const {
  ExactSum carried = *this;
  carried.pass_carries();
  for (size_t i = 0; i < digits_.size(); ++i) {
    words[i] = static_cast<double>(carried.digits_[i]);
  }
  words[kDigits] = static_cast<double>(nan_);
  words[kDigits + 1] = static_cast<double>(positive_infinities_);
  words[kDigits + 2] = static_cast<double>(negative_infinities_);
}

void ExactSum::add_words(std::span<const double, kWords> words) {
  pass_carries();
  for (size_t i = 0; i < digits_.size(); ++i) {
    digits_[i] += static_cast<int64_t>(words[i]);
  }
  nan_ += static_cast<int64_t>(words[kDigits]);
  positive_infinities_ += static_cast<int64_t>(words[kDigits + 1]);
  negative_infinities_ += static_cast<int64_t>(words[kDigits + 2]);
  pass_carries();
}

double ExactSum::value() const {
  if (nan_ > 0 || (positive_infinities_ > 0 && negative_infinities_ > 0)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (positive_infinities_ > 0 || negative_infinities_ > 0) {
    const double infinity = std::numeric_limits<double>::infinity();
    return positive_infinities_ > 0 ? infinity : -infinity;
  }
  auto digits = digits_;
  carry_digits(digits);
  const bool negative = digits.back() < 0;
  if (negative) {
    for (int64_t& digit : digits) {
      digit = -digit;
    }
    carry_digits(digits);
  }
  auto top = static_cast<int>(digits.size()) - 1;
  while (top > 0 && digits[static_cast<size_t>(top)] == 0) {
    --top;
  }
  const auto digit = [&](int i) {
    return i < 0 ? uint64_t{0} : static_cast<uint64_t>(digits[static_cast<size_t>(i)]);
  };
  // The highest 64 bits that are not zero, and whether any is set below them.
  const int unused = kScalarDigitBits - static_cast<int>(std::bit_width(digit(top)));
  uint64_t bits = (digit(top) << kScalarDigitBits | digit(top - 1)) << unused;
  bits |= (digit(top - 2) << unused) >> kScalarDigitBits;
  uint64_t below = (digit(top - 2) << unused) & static_cast<uint64_t>(kScalarDigitMask);
  for (int i = 0; i < top - 2; ++i) {
    below |= digit(i);
  }
  constexpr int kDropped = 64 - 53;
  const uint64_t rest = bits & ((uint64_t{1} << kDropped) - 1);
  uint64_t mantissa = bits >> kDropped;
  constexpr uint64_t kHalf = uint64_t{1} << (kDropped - 1);
  if (rest > kHalf || (rest == kHalf && (below != 0 || (mantissa & 1) != 0))) {
    ++mantissa;
  }
  // A sum below 2^-1022 has fewer bits than a mantissa: nothing was dropped, nothing is here.
  const int exponent = kScalarLowestExponent + (top - 1) * kScalarDigitBits - unused + kDropped;
  const double size = std::ldexp(static_cast<double>(mantissa), exponent);
  return negative ? -size : size;
}

}  // namespace tapestry::kernels
