// SentencePiece's own rules of normalization, as its models carry them: a double-array trie of
// bytes, and the texts that its keys become. Sources: SentencePiece's normalizer; the Darts-clone
// library.
#include <utf8proc.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizers/huggingface/normalizer.h"

namespace tapestry::data::huggingface {
namespace precompiled {
namespace {

std::string decode_base64(const Component& component, const std::string& text) {
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (c == '=') {
      break;
    }
    if (value < 0) {
      component.fail("precompiled_charsmap is not base64");
    }
    bits = (bits << 6U | static_cast<uint32_t>(value)) & 0xFFFFFFU;
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes.push_back(static_cast<char>(bits >> static_cast<unsigned>(count) & 0xFFU));
    }
  }
  return bytes;
}

class Precompiled final : public Normalizer {
 public:
  explicit Precompiled(const Component& component) {
    const std::string bytes = decode_base64(component, component.text("precompiled_charsmap"));
    constexpr size_t kHead = 4;
    const auto word = [&](size_t at) {
      uint32_t value = 0;
      for (size_t i = 0; i < 4; ++i) {
        value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[at + i])) << (8 * i);
      }
      return value;
    };
    const size_t trie = bytes.size() < kHead ? 0 : word(0);
    if (bytes.size() < kHead || trie % 4 != 0 || trie > bytes.size() - kHead) {
      component.fail("precompiled_charsmap is not a table of SentencePiece");
    }
    for (size_t at = 0; at < trie; at += 4) {
      units_.push_back(word(kHead + at));
    }
    texts_ = bytes.substr(kHead + trie);
  }

  void apply(AlignedText& text) const override {
    Rewrite out(text);
    while (!out.rest().empty()) {
      const std::string_view rest = out.rest();
      // A character with what belongs to it is looked up together, if it is short.
      const size_t cluster = cluster_length(rest);
      constexpr size_t kShort = 6;
      std::string_view with;
      if (cluster < kShort && find(rest.substr(0, cluster), with)) {
        write(out, cluster, with);
        continue;
      }
      for (size_t done = 0; done < cluster;) {
        const size_t length = character_length(out.rest(), 0);
        if (find(out.rest().substr(0, length), with)) {
          write(out, length, with);
        } else {
          out.keep(length);
        }
        done += length;
      }
    }
    out.finish();
  }

 private:
  static void write(Rewrite& out, size_t bytes, std::string_view with) {
    const size_t first = with.empty() ? 0 : character_length(with, 0);
    const size_t read = character_length(out.rest(), 0);
    if (first == 0) {
      out.drop(bytes);
      return;
    }
    out.replace(read, with.substr(0, first));
    out.drop(bytes - read);
    out.insert(with.substr(first));
  }

  static size_t cluster_length(std::string_view text) {
    size_t at = character_length(text, 0);
    utf8proc_int32_t state = 0;
    auto last = static_cast<utf8proc_int32_t>(code_point_at(text, 0));
    while (at < text.size()) {
      const auto next = static_cast<utf8proc_int32_t>(code_point_at(text, at));
      if (utf8proc_grapheme_break_stateful(last, next, &state)) {
        break;
      }
      last = next;
      at += character_length(text, at);
    }
    return at;
  }

  // The text of the first key that `text` begins with; Darts-clone's commonPrefixSearch.
  bool find(std::string_view text, std::string_view& with) const {
    const auto offset = [](uint32_t unit) { return (unit >> 10U) << ((unit & (1U << 9U)) >> 6U); };
    if (units_.empty()) {
      return false;
    }
    size_t node = offset(units_[0]);
    for (const char c : text) {
      const auto byte = static_cast<uint8_t>(c);
      if (byte == 0) {
        return false;
      }
      node ^= byte;
      if (node >= units_.size() || (units_[node] & ((1U << 31U) | 0xFFU)) != byte) {
        return false;
      }
      const uint32_t unit = units_[node];
      node ^= offset(unit);
      if ((unit >> 8U & 1U) != 0 && node < units_.size()) {
        const size_t begin = units_[node] & ((1U << 31U) - 1);
        if (begin >= texts_.size()) {
          return false;
        }
        with = std::string_view(texts_).substr(begin);
        with = with.substr(0, with.find('\0'));
        return true;
      }
    }
    return false;
  }

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace
}  // namespace precompiled

std::unique_ptr<Normalizer> make_precompiled_normalizer(const Component& component) {
  return std::make_unique<precompiled::Precompiled>(component);
}

}  // namespace tapestry::data::huggingface
