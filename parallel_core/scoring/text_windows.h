// A long text in pieces that a model can see.
#pragma once

#include <cstdint>
#include <vector>

namespace tapestry {

/// Tokens [begin, end) of a text, of which those from `first` of them on are scored.
struct TextWindow {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t first = 1;
  bool operator==(const TextWindow&) const = default;
};

/// Windows that score each of the tokens [first, tokens) once, the last token of each after as many
/// as the model takes, `context`: the first window scores all that it holds, each other one
/// `stride` further tokens, so that a scored token stands behind at least context + 1 - stride
/// others, or behind all there are. ValueError unless 1 <= stride <= context and 1 <= first <=
/// context.
std::vector<TextWindow> text_windows(int64_t tokens,
                                     int64_t first,
                                     int64_t context,
                                     int64_t stride);

}  // namespace tapestry
