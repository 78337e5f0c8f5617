// The library `tokenizers` asks several tables of several ages. Its normalizers and its Punctuation
// know Unicode 9 and 8, and take what came later for unassigned: these are such characters.
#pragma once

#include <cstdint>

namespace tapestry::data::huggingface {

/// What Punctuation and BertPreTokenizer cut at, beyond ASCII: P of Unicode 8.
bool is_old_punctuation(uint32_t code_point);
/// What StripAccents removes: M of Unicode 9.
bool is_old_mark(uint32_t code_point);
/// What BertNormalizer removes of accents: Mn of Unicode 8.
bool is_old_nonspacing_mark(uint32_t code_point);
/// What BertNormalizer removes as control characters: Cc, Cf and Co of Unicode 8.
bool is_old_control(uint32_t code_point);
/// Whether Unicode 9 gives it a decomposition or a combining class, if Unicode 14 does.
bool is_old_in_normal_forms(uint32_t code_point);

}  // namespace tapestry::data::huggingface
