#include "parallel_core/scoring/text_windows.h"

#include <algorithm>

#include "autograd/tensor/error.h"

namespace tapestry {

std::vector<TextWindow> text_windows(int64_t tokens,
                                     int64_t first,
                                     int64_t context,
                                     int64_t stride) {
  check<ValueError>(stride >= 1 && stride <= context, "the stride is ", stride,
                    ", expected 1 to the context of ", context, " tokens");
  check<ValueError>(first >= 1 && first <= context, "the first token that is scored is token ",
                    first, ", expected 1 to the context of ", context, " tokens");
  std::vector<TextWindow> windows;
  for (int64_t scored = first; scored < tokens;) {
    // The last token of a window is only scored: the model takes those before it.
    const int64_t end = std::min(tokens, windows.empty() ? context + 1 : scored + stride);
    const int64_t begin = std::max<int64_t>(end - context - 1, 0);
    windows.push_back({begin, end, scored - begin});
    scored = end;
  }
  return windows;
}

}  // namespace tapestry
