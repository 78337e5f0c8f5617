#include "parallel_core/inference/stopped_text.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

StoppedText::StoppedText(const data::Tokenizer& tokenizer,
                         std::span<const int32_t> prompt,
                         std::vector<std::string> stops)
    : stream_(tokenizer), stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    check<ValueError>(!stop.empty(),
                      "a stop string is empty, expected a text that ends the answer");
  }
  for (const int32_t id : prompt) {
    prompt_text_ += stream_.add(id);
  }
}

std::string StoppedText::add(int32_t id) { return stopped() ? "" : take(stream_.add(id), false); }

std::string StoppedText::finish() { return stopped() ? "" : take(stream_.finish(), true); }

std::string StoppedText::take(const std::string& piece, bool last) {
  held_ += piece;
  size_t found = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at < found || (at == found && at != std::string::npos && stop.size() > stop_.size())) {
      found = at;
      stop_ = stop;
    }
  }
  // Before what has been found; else before the longest end that a stop string begins with.
  size_t certain = std::min(found, held_.size());
  if (found == std::string::npos && !last) {
    for (const std::string& stop : stops_) {
      for (size_t length = std::min(stop.size() - 1, held_.size()); length > 0; --length) {
        if (held_.compare(held_.size() - length, length, stop, 0, length) == 0) {
          certain = std::min(certain, held_.size() - length);
          break;
        }
      }
    }
  }
  std::string out = held_.substr(0, certain);
  held_.erase(0, certain);
  text_ += out;
  return out;
}

}  // namespace tapestry
