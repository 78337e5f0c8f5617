#include "text/tokenizers/huggingface/character_set.h"

#include <utf8proc.h>

#include <cctype>
#include <cstdio>
#include <utility>

#include "autograd/tensor/error.h"
#include "text/tokenizers/huggingface/aligned_text.h"
#include "text/tokenizers/huggingface/unicode_newer.h"
#include "text/util/regular_expression.h"
#include "text/util/utf8.h"

namespace tapestry::data::huggingface {
namespace character_sets {
namespace {

constexpr const char* kSpace =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr const char* kAnything = "(?s:.)";

constexpr std::pair<const char*, const char*> kCategories[] = {{"letter", "L"},
                                                               {"casedletter", "L&"},
                                                               {"uppercaseletter", "Lu"},
                                                               {"lowercaseletter", "Ll"},
                                                               {"titlecaseletter", "Lt"},
                                                               {"modifierletter", "Lm"},
                                                               {"otherletter", "Lo"},
                                                               {"mark", "M"},
                                                               {"combiningmark", "M"},
                                                               {"nonspacingmark", "Mn"},
                                                               {"spacingmark", "Mc"},
                                                               {"enclosingmark", "Me"},
                                                               {"number", "N"},
                                                               {"decimalnumber", "Nd"},
                                                               {"digit", "Nd"},
                                                               {"letternumber", "Nl"},
                                                               {"othernumber", "No"},
                                                               {"punctuation", "P"},
                                                               {"punct", "P"},
                                                               {"connectorpunctuation", "Pc"},
                                                               {"dashpunctuation", "Pd"},
                                                               {"openpunctuation", "Ps"},
                                                               {"closepunctuation", "Pe"},
                                                               {"initialpunctuation", "Pi"},
                                                               {"finalpunctuation", "Pf"},
                                                               {"otherpunctuation", "Po"},
                                                               {"symbol", "S"},
                                                               {"mathsymbol", "Sm"},
                                                               {"currencysymbol", "Sc"},
                                                               {"modifiersymbol", "Sk"},
                                                               {"othersymbol", "So"},
                                                               {"separator", "Z"},
                                                               {"spaceseparator", "Zs"},
                                                               {"lineseparator", "Zl"},
                                                               {"paragraphseparator", "Zp"},
                                                               {"other", "C"},
                                                               {"control", "Cc"},
                                                               {"cntrl", "Cc"},
                                                               {"format", "Cf"},
                                                               {"unassigned", "Cn"},
                                                               {"privateuse", "Co"},
                                                               {"surrogate", "Cs"},
                                                               {"lc", "L&"}};

// Those for which PCRE2 has Oniguruma's members, or newer_members() what it lacks; and their short
// names.
constexpr std::pair<const char*, const char*> kProperties[] = {
    {"alphabetic", "Alphabetic"},
    {"alpha", "Alphabetic"},
    {"uppercase", "Uppercase"},
    {"upper", "Uppercase"},
    {"lowercase", "Lowercase"},
    {"lower", "Lowercase"},
    {"cased", "Cased"},
    {"ideographic", "Ideographic"},
    {"ideo", "Ideographic"},
    {"unifiedideograph", "Unified_Ideograph"},
    {"uideo", "Unified_Ideograph"},
    {"idstart", "ID_Start"},
    {"ids", "ID_Start"},
    {"idcontinue", "ID_Continue"},
    {"idc", "ID_Continue"},
    {"xidstart", "XID_Start"},
    {"xids", "XID_Start"},
    {"xidcontinue", "XID_Continue"},
    {"xidc", "XID_Continue"},
    {"math", "Math"},
    {"dash", "Dash"},
    {"diacritic", "Diacritic"},
    {"dia", "Diacritic"},
    {"extender", "Extender"},
    {"ext", "Extender"},
    {"emoji", "Emoji"},
    {"emojipresentation", "Emoji_Presentation"},
    {"emojimodifier", "Emoji_Modifier"},
    {"emojimodifierbase", "Emoji_Modifier_Base"},
    {"emojicomponent", "Emoji_Component"},
    {"extendedpictographic", "Extended_Pictographic"},
    {"hexdigit", "Hex_Digit"},
    {"quotationmark", "Quotation_Mark"},
    {"qmark", "Quotation_Mark"},
    {"radical", "Radical"},
    {"variationselector", "Variation_Selector"},
    {"regionalindicator", "Regional_Indicator"},
    {"joincontrol", "Join_Control"},
    {"noncharactercodepoint", "Noncharacter_Code_Point"},
    {"patternwhitespace", "Pattern_White_Space"},
    {"defaultignorablecodepoint", "Default_Ignorable_Code_Point"},
    {"di", "Default_Ignorable_Code_Point"}};

// Scripts that have gained members, by their codes.
constexpr std::pair<const char*, const char*> kScriptCodes[] = {{"arab", "arabic"},
                                                                {"bali", "balinese"},
                                                                {"zyyy", "common"},
                                                                {"cyrl", "cyrillic"},
                                                                {"deva", "devanagari"},
                                                                {"egyp", "egyptianhieroglyphs"},
                                                                {"hani", "han"},
                                                                {"hira", "hiragana"},
                                                                {"knda", "kannada"},
                                                                {"kana", "katakana"},
                                                                {"kits", "khitansmallscript"},
                                                                {"khoj", "khojki"},
                                                                {"laoo", "lao"},
                                                                {"latn", "latin"},
                                                                {"mymr", "myanmar"},
                                                                {"kawi", "kawi"},
                                                                {"nagm", "nagmundari"},
                                                                {"gara", "garay"},
                                                                {"gukh", "gurungkhema"},
                                                                {"krai", "kiratrai"},
                                                                {"onao", "olonal"},
                                                                {"sunu", "sunuwar"},
                                                                {"todr", "todhri"},
                                                                {"tutg", "tulutigalari"}};

template <class Table>
const char* looked_up(const Table& table, std::string_view name) {
  for (const auto& [known, value] : table) {
    if (name == known) {
      return value;
    }
  }
  return nullptr;
}

std::string without_marks(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-') {
      plain.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    }
  }
  return plain;
}

CharacterSet category_set(const std::string& category) {
  if (category == "Cn" || category == "C" || category == "Mn") {
    // They have lost members: to all others, or (U+1171E) to Mc.
    const CharacterSet gone(category == "Mn" ? R"(\x{1171E})" : newer_ranges(""));
    CharacterSet set = CharacterSet(concat("\\p{", category, "}")).intersection(gone.negated());
    if (category != "Cn") {
      set.add(CharacterSet(newer_ranges(category)));
    }
    return set;
  }
  const std::string newer = category == "L&"
                                ? newer_ranges("Lu") + newer_ranges("Ll") + newer_ranges("Lt")
                                : newer_ranges(category);
  return CharacterSet(concat("\\p{", category, "}", newer));
}

CharacterSet with_newer(const std::string& pcre2, const NewerMembers* newer) {
  std::string items = newer != nullptr && newer->unknown ? std::string() : pcre2;
  return CharacterSet(items + (newer == nullptr ? "" : newer->ranges));
}

// Whitespace, controls, what is unassigned and surrogates have no glyph.
CharacterSet graph_set() {
  CharacterSet without = category_set("Cn");
  without.add(CharacterSet(concat(kSpace, R"(\p{Cc}\p{Cs})")));
  return without.negated();
}

CharacterSet digit_set() { return category_set("Nd"); }

CharacterSet united(CharacterSet first, const CharacterSet& second) {
  first.add(second);
  return first;
}

// Characters that have another case.
const std::vector<uint32_t>& cased_characters() {
  static const std::vector<uint32_t> characters = [] {
    std::vector<uint32_t> found;
    for (utf8proc_int32_t c = 'A'; c < 0x20000; ++c) {
      if (utf8proc_tolower(c) != c || utf8proc_toupper(c) != c || utf8proc_totitle(c) != c) {
        found.push_back(static_cast<uint32_t>(c));
      }
    }
    return found;
  }();
  return characters;
}

}  // namespace
}  // namespace character_sets

void CharacterSet::add(const CharacterSet& other) {
  items_ += other.items_;
  others_.insert(others_.end(), other.others_.begin(), other.others_.end());
}

CharacterSet CharacterSet::negated() const {
  CharacterSet set;
  if (empty()) {
    set.others_.emplace_back(character_sets::kAnything);
  } else if (others_.empty()) {
    set.others_.push_back(concat("[^", items_, "]"));
  } else if (items_.empty() && others_.size() == 1 && others_[0].starts_with("[^")) {
    set.items_ = others_[0].substr(2, others_[0].size() - 3);
  } else {
    set.others_.push_back(concat("(?:(?!", expression(), ")", character_sets::kAnything, ")"));
  }
  return set;
}

CharacterSet CharacterSet::intersection(const CharacterSet& other) const {
  CharacterSet set;
  set.others_.push_back(concat("(?:(?=", other.expression(), ")", expression(), ")"));
  return set;
}

CharacterSet CharacterSet::with_cases() const {
  const RegularExpression members(expression());
  CharacterSet set = *this;
  const auto has = [&](uint32_t c) { return members.matches(utf8(c)); };
  const auto add = [&](uint32_t c) {
    char item[16];
    std::snprintf(item, sizeof(item), "\\x{%X}", c);
    set.items_ += item;
  };
  for (const uint32_t c : character_sets::cased_characters()) {
    if (has(c)) {
      add(c);  // PCRE2 adds its other cases
    }
  }
  for (const auto& [first, last, lower] : kNewerCases) {
    for (uint32_t i = 0; i <= last - first; ++i) {
      if (has(first + i) || has(lower + i)) {
        add(first + i);
        add(lower + i);
      }
    }
  }
  return set;
}

std::string CharacterSet::expression() const {
  if (empty()) {
    return "(?!)";
  }
  if (others_.empty()) {
    return concat("[", items_, "]");
  }
  if (items_.empty() && others_.size() == 1) {
    return others_[0];
  }
  std::string text = "(?:";
  if (!items_.empty()) {
    text += concat("[", items_, "]|");
  }
  for (const std::string& other : others_) {
    text += concat(other, "|");
  }
  text.back() = ')';
  return text;
}

CharacterSet space_set() { return CharacterSet(character_sets::kSpace); }

CharacterSet hex_digit_set() { return CharacterSet("0-9A-Fa-f"); }

CharacterSet word_set() {
  CharacterSet set = property_set("Alphabetic");
  set.add(character_sets::category_set("M"));
  set.add(character_sets::category_set("Nd"));
  set.add(character_sets::category_set("Pc"));
  return set;
}

CharacterSet word_set_outside() {
  return character_sets::united(word_set(), CharacterSet(R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})"));
}

CharacterSet property_set(std::string_view name) {
  using namespace character_sets;  // NOLINT(google-build-using-namespace): what is above
  std::string plain = without_marks(name);
  if (plain == "space" || plain == "whitespace") {
    return space_set();
  }
  if (plain == "word") {
    return word_set();
  }
  if (plain == "alnum") {
    return united(property_set("Alphabetic"), digit_set());
  }
  if (plain == "any") {
    return CharacterSet(R"(\x{0}-\x{10FFFF})");
  }
  if (plain == "ascii") {
    return CharacterSet(R"(\x{0}-\x{7F})");
  }
  if (plain == "assigned") {
    return category_set("Cn").negated();
  }
  if (plain == "blank") {
    return united(CharacterSet("\\t"), category_set("Zs"));
  }
  if (plain == "graph") {
    return graph_set();
  }
  if (plain == "print") {
    return united(graph_set(), category_set("Zs"));
  }
  if (plain == "xdigit") {
    return hex_digit_set();
  }
  if (const char* category = looked_up(kCategories, plain)) {
    return category_set(category);
  }
  if (name.size() <= 2) {
    std::string category = plain;
    category[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(category[0])));
    return category_set(category);
  }
  if (const char* property = looked_up(kProperties, plain)) {
    std::string key = without_marks(property);
    key.erase(0, key.starts_with("xid") ? 1 : 0);  // these have gained the same
    return with_newer(concat("\\p{", property, "}"), newer_members(key));
  }
  if (const size_t value = plain.find_first_of("=:"); value != std::string::npos) {
    plain.erase(0, value + 1);
  }
  const char* long_name = looked_up(kScriptCodes, plain);
  return with_newer(concat("\\p{sc:", plain, "}"),
                    newer_members(long_name == nullptr ? plain : long_name));
}

CharacterSet posix_set(std::string_view name) {
  if (name == "punct") {  // of POSIX, as Oniguruma has it
    return character_sets::united(character_sets::category_set("P"),
                                  character_sets::category_set("S"));
  }
  for (const char* known : {"alpha", "alnum", "ascii", "blank", "cntrl", "digit", "graph", "lower",
                            "print", "space", "upper", "word", "xdigit"}) {
    if (name == known) {
      return property_set(name);
    }
  }
  throw ValueError(concat("[:", name, ":] is no class of characters"));
}

}  // namespace tapestry::data::huggingface
