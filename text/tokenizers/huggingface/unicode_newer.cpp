#include "text/tokenizers/huggingface/unicode_newer.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace tapestry::data::huggingface {
namespace {

struct NewerRange {
  uint32_t first;
  uint32_t last;
  const char* category;
};

// Source: DerivedGeneralCategory.txt of Unicode 16 less that of Unicode 14.
constexpr NewerRange kNewerRanges[] = {
    {0x897, 0x897, "Mn"},     {0xCF3, 0xCF3, "Mc"},     {0xECE, 0xECE, "Mn"},
    {0x1B4E, 0x1B4F, "Po"},   {0x1B7F, 0x1B7F, "Po"},   {0x1C89, 0x1C89, "Lu"},
    {0x1C8A, 0x1C8A, "Ll"},   {0x2427, 0x2429, "So"},   {0x2FFC, 0x2FFF, "So"},
    {0x31E4, 0x31E5, "So"},   {0x31EF, 0x31EF, "So"},   {0xA7CB, 0xA7CC, "Lu"},
    {0xA7CD, 0xA7CD, "Ll"},   {0xA7DA, 0xA7DA, "Lu"},   {0xA7DB, 0xA7DB, "Ll"},
    {0xA7DC, 0xA7DC, "Lu"},   {0x105C0, 0x105F3, "Lo"}, {0x10D40, 0x10D49, "Nd"},
    {0x10D4A, 0x10D4D, "Lo"}, {0x10D4E, 0x10D4E, "Lm"}, {0x10D4F, 0x10D4F, "Lo"},
    {0x10D50, 0x10D65, "Lu"}, {0x10D69, 0x10D6D, "Mn"}, {0x10D6E, 0x10D6E, "Pd"},
    {0x10D6F, 0x10D6F, "Lm"}, {0x10D70, 0x10D85, "Ll"}, {0x10D8E, 0x10D8F, "Sm"},
    {0x10EC2, 0x10EC4, "Lo"}, {0x10EFC, 0x10EFF, "Mn"}, {0x1123F, 0x11240, "Lo"},
    {0x11241, 0x11241, "Mn"}, {0x11380, 0x11389, "Lo"}, {0x1138B, 0x1138B, "Lo"},
    {0x1138E, 0x1138E, "Lo"}, {0x11390, 0x113B5, "Lo"}, {0x113B7, 0x113B7, "Lo"},
    {0x113B8, 0x113BA, "Mc"}, {0x113BB, 0x113C0, "Mn"}, {0x113C2, 0x113C2, "Mc"},
    {0x113C5, 0x113C5, "Mc"}, {0x113C7, 0x113CA, "Mc"}, {0x113CC, 0x113CD, "Mc"},
    {0x113CE, 0x113CE, "Mn"}, {0x113CF, 0x113CF, "Mc"}, {0x113D0, 0x113D0, "Mn"},
    {0x113D1, 0x113D1, "Lo"}, {0x113D2, 0x113D2, "Mn"}, {0x113D3, 0x113D3, "Lo"},
    {0x113D4, 0x113D5, "Po"}, {0x113D7, 0x113D8, "Po"}, {0x113E1, 0x113E2, "Mn"},
    {0x116D0, 0x116E3, "Nd"}, {0x1171E, 0x1171E, "Mc"}, {0x11B00, 0x11B09, "Po"},
    {0x11BC0, 0x11BE0, "Lo"}, {0x11BE1, 0x11BE1, "Po"}, {0x11BF0, 0x11BF9, "Nd"},
    {0x11F00, 0x11F01, "Mn"}, {0x11F02, 0x11F02, "Lo"}, {0x11F03, 0x11F03, "Mc"},
    {0x11F04, 0x11F10, "Lo"}, {0x11F12, 0x11F33, "Lo"}, {0x11F34, 0x11F35, "Mc"},
    {0x11F36, 0x11F3A, "Mn"}, {0x11F3E, 0x11F3F, "Mc"}, {0x11F40, 0x11F40, "Mn"},
    {0x11F41, 0x11F41, "Mc"}, {0x11F42, 0x11F42, "Mn"}, {0x11F43, 0x11F4F, "Po"},
    {0x11F50, 0x11F59, "Nd"}, {0x11F5A, 0x11F5A, "Mn"}, {0x1342F, 0x1342F, "Lo"},
    {0x13439, 0x1343F, "Cf"}, {0x13440, 0x13440, "Mn"}, {0x13441, 0x13446, "Lo"},
    {0x13447, 0x13455, "Mn"}, {0x13460, 0x143FA, "Lo"}, {0x16100, 0x1611D, "Lo"},
    {0x1611E, 0x16129, "Mn"}, {0x1612A, 0x1612C, "Mc"}, {0x1612D, 0x1612F, "Mn"},
    {0x16130, 0x16139, "Nd"}, {0x16D40, 0x16D42, "Lm"}, {0x16D43, 0x16D6A, "Lo"},
    {0x16D6B, 0x16D6C, "Lm"}, {0x16D6D, 0x16D6F, "Po"}, {0x16D70, 0x16D79, "Nd"},
    {0x18CFF, 0x18CFF, "Lo"}, {0x1B132, 0x1B132, "Lo"}, {0x1B155, 0x1B155, "Lo"},
    {0x1CC00, 0x1CCEF, "So"}, {0x1CCF0, 0x1CCF9, "Nd"}, {0x1CD00, 0x1CEB3, "So"},
    {0x1D2C0, 0x1D2D3, "No"}, {0x1DF25, 0x1DF2A, "Ll"}, {0x1E030, 0x1E06D, "Lm"},
    {0x1E08F, 0x1E08F, "Mn"}, {0x1E4D0, 0x1E4EA, "Lo"}, {0x1E4EB, 0x1E4EB, "Lm"},
    {0x1E4EC, 0x1E4EF, "Mn"}, {0x1E4F0, 0x1E4F9, "Nd"}, {0x1E5D0, 0x1E5ED, "Lo"},
    {0x1E5EE, 0x1E5EF, "Mn"}, {0x1E5F0, 0x1E5F0, "Lo"}, {0x1E5F1, 0x1E5FA, "Nd"},
    {0x1E5FF, 0x1E5FF, "Po"}, {0x1F6DC, 0x1F6DC, "So"}, {0x1F774, 0x1F776, "So"},
    {0x1F77B, 0x1F77F, "So"}, {0x1F7D9, 0x1F7D9, "So"}, {0x1F8B2, 0x1F8BB, "So"},
    {0x1F8C0, 0x1F8C1, "So"}, {0x1FA75, 0x1FA77, "So"}, {0x1FA87, 0x1FA89, "So"},
    {0x1FA8F, 0x1FA8F, "So"}, {0x1FAAD, 0x1FAAF, "So"}, {0x1FABB, 0x1FABF, "So"},
    {0x1FAC6, 0x1FAC6, "So"}, {0x1FACE, 0x1FACF, "So"}, {0x1FADA, 0x1FADC, "So"},
    {0x1FADF, 0x1FADF, "So"}, {0x1FAE8, 0x1FAE9, "So"}, {0x1FAF7, 0x1FAF8, "So"},
    {0x1FBCB, 0x1FBEF, "So"}, {0x2B739, 0x2B739, "Lo"}, {0x2EBF0, 0x2EE5D, "Lo"},
    {0x31350, 0x323AF, "Lo"},
};

// Source: Scripts.txt, PropList.txt, DerivedCoreProperties.txt and emoji-data.txt, likewise.
constexpr NewerMembers kNewerMembers[] = {
    {"arabic", false, R"(\x{897}\x{10EC2}-\x{10EC4}\x{10EFC}-\x{10EFF})"},
    {"balinese", false, R"(\x{1B4E}-\x{1B4F}\x{1B7F})"},
    {"common", false,
     R"(\x{2427}-\x{2429}\x{2FFC}-\x{2FFF}\x{31E4}-\x{31E5}\x{31EF}\x{1CC00}-\x{1CCF9})"
     R"(\x{1CD00}-\x{1CEB3}\x{1D2C0}-\x{1D2D3}\x{1F6DC}\x{1F774}-\x{1F776})"
     R"(\x{1F77B}-\x{1F77F}\x{1F7D9}\x{1F8B2}-\x{1F8BB}\x{1F8C0}-\x{1F8C1})"
     R"(\x{1FA75}-\x{1FA77}\x{1FA87}-\x{1FA89}\x{1FA8F}\x{1FAAD}-\x{1FAAF})"
     R"(\x{1FABB}-\x{1FABF}\x{1FAC6}\x{1FACE}-\x{1FACF}\x{1FADA}-\x{1FADC}\x{1FADF})"
     R"(\x{1FAE8}-\x{1FAE9}\x{1FAF7}-\x{1FAF8}\x{1FBCB}-\x{1FBEF})"},
    {"cyrillic", false, R"(\x{1C89}-\x{1C8A}\x{1E030}-\x{1E06D}\x{1E08F})"},
    {"devanagari", false, R"(\x{11B00}-\x{11B09})"},
    {"egyptianhieroglyphs", false, R"(\x{1342F}\x{13439}-\x{13455}\x{13460}-\x{143FA})"},
    {"han", false, R"(\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"},
    {"hiragana", false, R"(\x{1B132})"},
    {"kannada", false, R"(\x{CF3})"},
    {"katakana", false, R"(\x{1B155})"},
    {"khitansmallscript", false, R"(\x{18CFF})"},
    {"khojki", false, R"(\x{1123F}-\x{11241})"},
    {"lao", false, R"(\x{ECE})"},
    {"latin", false, R"(\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{1DF25}-\x{1DF2A})"},
    {"myanmar", false, R"(\x{116D0}-\x{116E3})"},
    {"kawi", true, R"(\x{11F00}-\x{11F10}\x{11F12}-\x{11F3A}\x{11F3E}-\x{11F5A})"},
    {"nagmundari", true, R"(\x{1E4D0}-\x{1E4F9})"},
    {"garay", true, R"(\x{10D40}-\x{10D65}\x{10D69}-\x{10D85}\x{10D8E}-\x{10D8F})"},
    {"gurungkhema", true, R"(\x{16100}-\x{16139})"},
    {"kiratrai", true, R"(\x{16D40}-\x{16D79})"},
    {"olonal", true, R"(\x{1E5D0}-\x{1E5FA}\x{1E5FF})"},
    {"sunuwar", true, R"(\x{11BC0}-\x{11BE1}\x{11BF0}-\x{11BF9})"},
    {"todhri", true, R"(\x{105C0}-\x{105F3})"},
    {"tulutigalari", true,
     R"(\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}-\x{113C0})"
     R"(\x{113C2}\x{113C5}\x{113C7}-\x{113CA}\x{113CC}-\x{113D5}\x{113D7}-\x{113D8})"
     R"(\x{113E1}-\x{113E2})"},
    {"alphabetic", false,
     R"(\x{363}-\x{36F}\x{897}\x{C04}\x{CF3}\x{F82}-\x{F83}\x{1C89}-\x{1C8A})"
     R"(\x{1DD3}-\x{1DE6}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3})"
     R"(\x{10D4A}-\x{10D65}\x{10D69}\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{10EFC})"
     R"(\x{11080}-\x{11081}\x{1123F}-\x{11241}\x{11380}-\x{11389}\x{1138B}\x{1138E})"
     R"(\x{11390}-\x{113B5}\x{113B7}-\x{113C0}\x{113C2}\x{113C5}\x{113C7}-\x{113CA})"
     R"(\x{113CC}-\x{113CD}\x{113D1}\x{113D3}\x{11BC0}-\x{11BE0}\x{11F00}-\x{11F10})"
     R"(\x{11F12}-\x{11F3A}\x{11F3E}-\x{11F40}\x{1342F}\x{13441}-\x{13446})"
     R"(\x{13460}-\x{143FA}\x{16100}-\x{1612E}\x{16D40}-\x{16D6C}\x{18CFF}\x{1B132})"
     R"(\x{1B155}\x{1DF25}-\x{1DF2A}\x{1E030}-\x{1E06D}\x{1E08F}\x{1E4D0}-\x{1E4EB})"
     R"(\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"},
    {"uppercase", false, R"(\x{1C89}\x{A7CB}-\x{A7CC}\x{A7DA}\x{A7DC}\x{10D50}-\x{10D65})"},
    {"lowercase", false,
     R"(\x{10FC}\x{1C8A}\x{A7CD}\x{A7DB}\x{A7F2}-\x{A7F4}\x{AB69}\x{10D70}-\x{10D85})"
     R"(\x{1DF25}-\x{1DF2A}\x{1E030}-\x{1E06D})"},
    {"emoji", false,
     R"(\x{1F6DC}\x{1FA75}-\x{1FA77}\x{1FA87}-\x{1FA89}\x{1FA8F}\x{1FAAD}-\x{1FAAF})"
     R"(\x{1FABB}-\x{1FABF}\x{1FAC6}\x{1FACE}-\x{1FACF}\x{1FADA}-\x{1FADC}\x{1FADF})"
     R"(\x{1FAE8}-\x{1FAE9}\x{1FAF7}-\x{1FAF8})"},
    {"emojipresentation", false,
     R"(\x{1F6DC}\x{1FA75}-\x{1FA77}\x{1FA87}-\x{1FA89}\x{1FA8F}\x{1FAAD}-\x{1FAAF})"
     R"(\x{1FABB}-\x{1FABF}\x{1FAC6}\x{1FACE}-\x{1FACF}\x{1FADA}-\x{1FADC}\x{1FADF})"
     R"(\x{1FAE8}-\x{1FAE9}\x{1FAF7}-\x{1FAF8})"},
    {"emojimodifierbase", false, R"(\x{1FAF7}-\x{1FAF8})"},
    {"ideographic", false, R"(\x{18CFF}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"},
    {"unifiedideograph", false, R"(\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"},
    {"idstart", false,
     R"(\x{1C89}-\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3})"
     R"(\x{10D4A}-\x{10D65}\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240})"
     R"(\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1})"
     R"(\x{113D3}\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33})"
     R"(\x{1342F}\x{13441}-\x{13446}\x{13460}-\x{143FA}\x{16100}-\x{1611D})"
     R"(\x{16D40}-\x{16D6C}\x{18CFF}\x{1B132}\x{1B155}\x{1DF25}-\x{1DF2A})"
     R"(\x{1E030}-\x{1E06D}\x{1E4D0}-\x{1E4EB}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739})"
     R"(\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"},
    {"idcontinue", false,
     R"(\x{897}\x{CF3}\x{ECE}\x{1C89}-\x{1C8A}\x{200C}-\x{200D}\x{30FB}\x{A7CB}-\x{A7CD})"
     R"(\x{A7DA}-\x{A7DC}\x{FF65}\x{105C0}-\x{105F3}\x{10D40}-\x{10D65})"
     R"(\x{10D69}-\x{10D6D}\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{10EFC}-\x{10EFF})"
     R"(\x{1123F}-\x{11241}\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5})"
     R"(\x{113B7}-\x{113C0}\x{113C2}\x{113C5}\x{113C7}-\x{113CA}\x{113CC}-\x{113D3})"
     R"(\x{113E1}-\x{113E2}\x{116D0}-\x{116E3}\x{11BC0}-\x{11BE0}\x{11BF0}-\x{11BF9})"
     R"(\x{11F00}-\x{11F10}\x{11F12}-\x{11F3A}\x{11F3E}-\x{11F42}\x{11F50}-\x{11F5A})"
     R"(\x{1342F}\x{13440}-\x{13455}\x{13460}-\x{143FA}\x{16100}-\x{16139})"
     R"(\x{16D40}-\x{16D6C}\x{16D70}-\x{16D79}\x{18CFF}\x{1B132}\x{1B155})"
     R"(\x{1CCF0}-\x{1CCF9}\x{1DF25}-\x{1DF2A}\x{1E030}-\x{1E06D}\x{1E08F})"
     R"(\x{1E4D0}-\x{1E4F9}\x{1E5D0}-\x{1E5FA}\x{2B739}\x{2EBF0}-\x{2EE5D})"
     R"(\x{31350}-\x{323AF})"},
    {"math", false, R"(\x{10D8E}-\x{10D8F})"},
    {"dash", false, R"(\x{10D6E})"},
    {"diacritic", false,
     R"(\x{E3A}\x{1734}\x{1A60}\x{1BE6}\x{1BF2}-\x{1BF3}\x{A806}\x{A82C})"
     R"(\x{10A38}-\x{10A3A}\x{10A3F}\x{10D4E}\x{10D69}-\x{10D6D}\x{10EFD}-\x{10EFF})"
     R"(\x{1133B}\x{113CE}-\x{113D0}\x{113D2}-\x{113D3}\x{113E1}-\x{113E2})"
     R"(\x{11F41}-\x{11F42}\x{11F5A}\x{13447}-\x{13455}\x{1612F}\x{16D6B}-\x{16D6C})"
     R"(\x{1E030}-\x{1E06D}\x{1E5EE}-\x{1E5EF})"},
    {"extender", false,
     R"(\x{A71}\x{AFB}\x{10D4E}\x{10D6A}\x{10D6F}\x{11237}\x{113D2}-\x{113D3}\x{1E5EF})"},
    {"cased", false,
     R"(\x{10FC}\x{1C89}-\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{A7F2}-\x{A7F4})"
     R"(\x{AB69}\x{10D50}-\x{10D65}\x{10D70}-\x{10D85}\x{1DF25}-\x{1DF2A})"
     R"(\x{1E030}-\x{1E06D})"},
};

}  // namespace

std::string newer_ranges(std::string_view category) {
  std::string ranges;
  const auto append = [&](uint32_t first, uint32_t last) {
    char text[32];
    std::snprintf(text, sizeof(text), "\\x{%X}-\\x{%X}", first, last);
    ranges += text;
  };
  uint32_t first = 0;
  uint32_t last = 0;
  for (const NewerRange& range : kNewerRanges) {
    if (!std::string_view(range.category).starts_with(category)) {
      continue;
    }
    if (first != 0 && range.first == last + 1) {
      last = range.last;
      continue;
    }
    if (first != 0) {
      append(first, last);
    }
    first = range.first;
    last = range.last;
  }
  if (first != 0) {
    append(first, last);
  }
  return ranges;
}

const char* newer_category(uint32_t code_point) {
  const auto* after =
      std::upper_bound(std::begin(kNewerRanges), std::end(kNewerRanges), code_point,
                       [](uint32_t point, const NewerRange& range) { return point < range.first; });
  if (after == std::begin(kNewerRanges) || code_point > std::prev(after)->last) {
    return nullptr;
  }
  return std::prev(after)->category;
}

const NewerMembers* newer_members(std::string_view name) {
  const auto* found = std::find_if(std::begin(kNewerMembers), std::end(kNewerMembers),
                                   [&](const NewerMembers& entry) { return name == entry.name; });
  return found == std::end(kNewerMembers) ? nullptr : found;
}

}  // namespace tapestry::data::huggingface
