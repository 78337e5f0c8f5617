// Sums of numbers whose bits do not depend on the order of the terms, nor on which rank has which:
// the sum is exact, and rounded once when it is asked for. For the few thousand numbers of a step
// (losses of tokens, sums of squares); whole gradients are summed by exact_sums.h.
//
// The sum is a fixed-point number with all bits that a sum of float64s can have (Kulisch 1971):
// digits of 32 bits, lowest first, each in a word of 64 that takes 2^31 additions before carries
// have to be passed on.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace tapestry::kernels {

class ExactSum {
 public:
  /// What a sum is to other ranks: so many float64s, all of them whole numbers.
  static constexpr int kWords = 70;

  void add(double x);
  void add(std::span<const float> x) {
    for (const float value : x) {
      add(static_cast<double>(value));
    }
  }
  void add(const ExactSum& other);

  /// For reductions over ranks: the sums of each word over up to 2^20 ranks, added in float64 in
  /// any order, are words of the sum over all of them. Overwrites `words`.
  void write_words(std::span<double, kWords> words) const;
  /// Adds what such words stand for.
  void add_words(std::span<const double, kWords> words);

  /// To nearest, ties to even: once. As float64 sums go: NaN if a term was NaN, or infinities of
  /// both signs were; infinite beyond the range. +0 for no terms.
  double value() const;

 private:
  static constexpr int kDigits = 67;  // bits 2^-1074 to 2^1069; then what is no number

  void pass_carries();

  std::array<int64_t, kDigits> digits_ = {};
  int64_t nan_ = 0;
  int64_t positive_infinities_ = 0;
  int64_t negative_infinities_ = 0;
  int64_t room_ = kRoom;  // additions until carries are passed on

  static constexpr int64_t kRoom = int64_t{1} << 30;
};

}  // namespace tapestry::kernels
