#include "text/tokenizers/huggingface/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "text/tokenizers/huggingface/unicode_newer.h"
#include "text/tokenizers/huggingface/unicode_older.h"

namespace tapestry::data::huggingface {
namespace {

constexpr uint32_t kCodePoints = 0x110000;
constexpr size_t kLongestDecomposition = 32;  // 18 in Unicode, of U+FDFA

// The full decomposition of one code point.
size_t decompose(uint32_t point,
                 bool compatible,
                 std::array<utf8proc_int32_t, kLongestDecomposition>& out) {
  if (!is_old_in_normal_forms(point)) {
    out[0] = static_cast<utf8proc_int32_t>(point);
    return 1;
  }
  const int options = UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
  int boundary = 0;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(point), out.data(),
                                             static_cast<utf8proc_ssize_t>(out.size()),
                                             static_cast<utf8proc_option_t>(options), &boundary);
  return count > 0 ? static_cast<size_t>(count) : 0;
}

int combining_class(uint32_t point) {
  return is_old_in_normal_forms(point)
             ? utf8proc_get_property(static_cast<utf8proc_int32_t>(point))->combining_class
             : 0;
}

// The character that two compose to; 0: none.
uint32_t composed_pair(uint32_t first, uint32_t second) {
  std::array<utf8proc_int32_t, 2> pair = {static_cast<utf8proc_int32_t>(first),
                                          static_cast<utf8proc_int32_t>(second)};
  constexpr int kOptions = UTF8PROC_COMPOSE | UTF8PROC_STABLE;
  return utf8proc_normalize_utf32(pair.data(), 2, static_cast<utf8proc_option_t>(kOptions)) == 1 &&
                 is_old_in_normal_forms(static_cast<uint32_t>(pair[0]))
             ? static_cast<uint32_t>(pair[0])
             : 0;
}

// A character on its way to a normal form. `change` is as in the Rust library: 0 replaces the next
// character of the text, 1 is one more, -n replaces it and the n behind it.
struct FormCharacter {
  uint32_t point;
  int change;
  int combining;
};

// Composes in place; the characters are in canonical order.
void compose(std::vector<FormCharacter>& characters) {
  size_t written = 0;
  size_t starter = characters.size();  // index among the written
  int last_class = 0;
  for (size_t i = 0; i < characters.size(); ++i) {
    const FormCharacter c = characters[i];
    if (starter < written) {
      const bool blocked = written - 1 > starter && last_class >= c.combining;
      const uint32_t both = blocked ? 0 : composed_pair(characters[starter].point, c.point);
      if (both != 0) {
        characters[starter].point = both;
        // The second may itself be one more of a decomposition: then nothing else is read.
        if (c.change <= 0) {
          characters[starter].change += -1 + c.change;
        }
        continue;
      }
    }
    if (c.combining == 0) {
      starter = written;
    }
    last_class = c.combining;
    characters[written++] = c;
  }
  characters.resize(written);
}

}  // namespace

struct NormalForm::Changing {
  std::vector<bool> points = std::vector<bool>(kCodePoints);

  Changing(bool compatible, bool composed) {
    std::array<utf8proc_int32_t, kLongestDecomposition> parts{};
    const auto mark = [&](utf8proc_int32_t point) { points[static_cast<size_t>(point)] = true; };
    for (uint32_t point = 0x80; point < kCodePoints; ++point) {
      if (point >= 0xD800 && point <= 0xDFFF) {
        continue;
      }
      const size_t count = decompose(point, compatible, parts);
      const bool itself = count == 1 && parts[0] == static_cast<utf8proc_int32_t>(point);
      if (combining_class(point) != 0 || (!itself && !composed)) {
        points[point] = true;
      } else if (!itself) {
        // Stays if it is what its parts compose to; but the parts behind the first may compose with
        // what stands before them elsewhere.
        std::array<utf8proc_int32_t, kLongestDecomposition> again = parts;
        const auto length = utf8proc_normalize_utf32(
            again.data(), static_cast<utf8proc_ssize_t>(count),
            static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
        if (length != 1 || again[0] != static_cast<utf8proc_int32_t>(point)) {
          points[point] = true;
        }
        std::for_each(parts.begin() + 1, parts.begin() + static_cast<std::ptrdiff_t>(count), mark);
      }
    }
    if (composed) {
      for (utf8proc_int32_t jamo = 0x1161; jamo <= 0x11C2; ++jamo) {
        mark(jamo);
      }
    }
  }
};

NormalForm::NormalForm(bool compatible, bool composed)
    : compatible_(compatible), composed_(composed) {
  // One of each for the whole process.
  static const auto make = [](bool k, bool c) { return std::make_shared<const Changing>(k, c); };
  if (compatible) {
    static const std::shared_ptr<const Changing> kc = make(true, true);
    static const std::shared_ptr<const Changing> kd = make(true, false);
    changing_ = composed ? kc : kd;
  } else {
    static const std::shared_ptr<const Changing> c = make(false, true);
    static const std::shared_ptr<const Changing> d = make(false, false);
    changing_ = composed ? c : d;
  }
}

void NormalForm::apply(AlignedText& text) const {
  const std::string& in = text.text();
  // Where the first character is that may change, and where the one before it begins.
  const auto next_change = [&](size_t at, size_t& before) {
    before = at;
    size_t last = at;
    while (at < in.size()) {
      if (static_cast<unsigned char>(in[at]) < 0x80) {
        last = at++;
        continue;
      }
      if (changing_->points[code_point_at(in, at)]) {
        break;
      }
      last = at;
      at += character_length(in, at);
    }
    before = last;
    return at;
  };
  size_t before = 0;
  size_t at = next_change(0, before);
  if (at == in.size()) {
    return;
  }
  Rewrite out(text);
  size_t kept = 0;
  std::vector<FormCharacter> characters;
  std::array<utf8proc_int32_t, kLongestDecomposition> parts{};
  std::string written;
  while (at < in.size()) {
    // From the character before it, with which it may compose, up to one that does not change.
    out.keep(before - kept);
    characters.clear();
    size_t end = before;
    do {
      const uint32_t point = code_point_at(in, end);
      const size_t count = decompose(point, compatible_, parts);
      for (size_t i = 0; i < count; ++i) {
        const auto part = static_cast<uint32_t>(parts[i]);
        characters.push_back({part, i == 0 ? 0 : 1, combining_class(part)});
      }
      end += character_length(in, end);
    } while (end < in.size() && (end <= at || (static_cast<unsigned char>(in[end]) >= 0x80 &&
                                               changing_->points[code_point_at(in, end)])));
    for (size_t i = 0; i < characters.size();) {
      if (characters[i].combining == 0) {
        ++i;
        continue;
      }
      size_t last = i;
      while (last < characters.size() && characters[last].combining != 0) {
        ++last;
      }
      std::stable_sort(
          characters.begin() + static_cast<std::ptrdiff_t>(i),
          characters.begin() + static_cast<std::ptrdiff_t>(last),
          [](const FormCharacter& a, const FormCharacter& b) { return a.combining < b.combining; });
      i = last;
    }
    if (composed_) {
      compose(characters);
    }
    size_t read = before;
    for (const FormCharacter& c : characters) {
      written.clear();
      append_utf8(written, c.point);
      if (c.change > 0) {
        out.insert(written);
        continue;
      }
      const size_t length = read < end ? character_length(in, read) : 0;
      if (length == 0) {
        out.insert(written);
        continue;
      }
      out.replace(length, written);
      read += length;
      for (int i = 0; i < -c.change && read < end; ++i) {
        const size_t more = character_length(in, read);
        out.drop(more);
        read += more;
      }
    }
    out.drop(end - read);
    kept = end;
    at = next_change(end, before);
  }
  out.keep(in.size() - kept);
  out.finish();
}

const char* general_category(uint32_t code_point) {
  const char* newer = newer_category(code_point);
  return newer != nullptr ? newer
                          : utf8proc_category_string(static_cast<utf8proc_int32_t>(code_point));
}

void append_lowercase(std::string& text, uint32_t code_point) {
  constexpr uint32_t kCapitalIWithDot = 0x130;
  if (code_point == kCapitalIWithDot) {
    text += "i\xCC\x87";
    return;
  }
  for (const auto& [first, last, lower] : kNewerCases) {
    if (code_point >= first && code_point <= last) {
      append_utf8(text, lower + (code_point - first));
      return;
    }
  }
  append_utf8(text,
              static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point))));
}

bool is_white_space(uint32_t p) {
  return (p >= 0x9 && p <= 0xD) || p == 0x20 || p == 0x85 || p == 0xA0 || p == 0x1680 ||
         (p >= 0x2000 && p <= 0x200A) || p == 0x2028 || p == 0x2029 || p == 0x202F || p == 0x205F ||
         p == 0x3000;
}

}  // namespace tapestry::data::huggingface
