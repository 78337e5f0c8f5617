// The one seam to PCRE2: compiling and matching, both with limits.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry {

/// A compiled expression of PCRE2 with Unicode; copies share it, and matching is thread-safe. What
/// it may take is bounded wherever it comes from: an expression has at most 32 KiB and groups at
/// most 100 deep, a match a million steps and 16 MiB.
class Pcre2Code {
 public:
  enum class Use {
    kNames,  ///< short names; '$' is their end alone
    /// Long texts of valid UTF-8: machine code, '^' and '$' at lines, ten times the steps at a
    /// place, and processor time in proportion to the text.
    kTexts,
  };
  enum class Where { kAnywhere, kStart, kWhole };

  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  /// ValueError with the reason, and the place where there is one, for what cannot be compiled.
  Pcre2Code(std::string_view expression, Use use);

  /// The groups of a match, 0 the whole; empty: there is none. ValueError with the reason for a
  /// match that takes too much.
  std::vector<std::optional<Range>> match(std::string_view text, Where where) const;
  /// `text` with $1, ${1}, $0 and $$ replaced from a match of the whole name; nothing: there is
  /// none. ValueError, as above and for a group that there is not.
  std::optional<std::string> substitute(std::string_view name, const std::string& text) const;

  /// Searches one text again and again.
  class Search {
   public:
    Search(const Pcre2Code& code, std::string_view text) : code_(code), text_(text) {}
    /// The first match at or behind `from`. ValueError with the reason where a match, or all of the
    /// text, takes too much.
    bool find(size_t from, Range& range);

   private:
    void spend(double seconds);

    const Pcre2Code& code_;
    std::string_view text_;
    size_t calls_ = 0;
    double spent_ = 0;  // seconds of processor time
  };

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace tapestry
