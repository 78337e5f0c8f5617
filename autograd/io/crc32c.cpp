#include "autograd/io/crc32c.h"

#include <array>
#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tapestry {

namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // bits reversed: the highest power is bit 0

constexpr std::array<uint32_t, 256> byte_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1U) ^ ((value & 1U) != 0 ? kPolynomial : 0);
    }
    table[byte] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kByteTable = byte_table();

uint32_t portable(const unsigned char* data, size_t bytes, uint32_t state) {
  for (size_t i = 0; i < bytes; ++i) {
    state = (state >> 8U) ^ kByteTable[(state ^ data[i]) & 0xFFU];
  }
  return state;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(const unsigned char* data,
                                                          size_t bytes,
                                                          uint32_t state) {
  uint64_t wide = state;
  for (; bytes >= sizeof(uint64_t); data += sizeof(uint64_t), bytes -= sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, data, sizeof(word));
    wide = _mm_crc32_u64(wide, word);
  }
  state = static_cast<uint32_t>(wide);
  for (; bytes > 0; ++data, --bytes) {
    state = _mm_crc32_u8(state, *data);
  }
  return state;
}
#endif

// The product of two polynomials modulo the checksum's.
constexpr uint32_t product(uint32_t a, uint32_t b) {
  uint32_t sum = 0;
  for (uint32_t power = 1U << 31U; power != 0; power >>= 1U) {
    if ((a & power) != 0) {
      sum ^= b;
    }
    b = (b >> 1U) ^ ((b & 1U) != 0 ? kPolynomial : 0);
  }
  return sum;
}

// Entry k moves a checksum on by 2^k bytes: x to the power of 8 * 2^k.
constexpr std::array<uint32_t, 64> move_table() {
  std::array<uint32_t, 64> table{};
  uint32_t power = 1U << 23U;  // x^8
  for (uint32_t& entry : table) {
    entry = power;
    power = product(power, power);
  }
  return table;
}
constexpr std::array<uint32_t, 64> kMoveTable = move_table();

}  // namespace

uint32_t crc32c(const void* data, size_t bytes, uint32_t before) {
  const auto* first = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) {
    return ~by_instruction(first, bytes, ~before);
  }
#endif
  return ~portable(first, bytes, ~before);
}

uint32_t crc32c_moved(uint32_t crc, uint64_t bytes_behind) {
  for (size_t k = 0; bytes_behind != 0; ++k, bytes_behind >>= 1U) {
    if ((bytes_behind & 1U) != 0) {
      crc = product(crc, kMoveTable[k]);
    }
  }
  return crc;
}

std::string crc32c_text(uint32_t crc) {
  std::array<char, 12> text{};
  std::snprintf(text.data(), text.size(), "%08x", crc);
  return text.data();
}

}  // namespace tapestry
