#include "parallel_core/inference/stopped_text.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"
#include "text/util/utf8.h"

namespace tapestry {

StoppedText::StoppedText(const data::Tokenizer& tokenizer,
                         std::span<const int32_t> prompt,
                         std::vector<std::string> stops)
    : stream_(tokenizer), stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    check<ValueError>(!stop.empty(),
                      "a stop string is empty, expected a text that ends the answer");
  }
  // A second stream says what the first one holds back: bytes that are a newline, for example, as
  // long as more bytes could follow.
  data::TextStream whole(tokenizer);
  for (const int32_t id : prompt) {
    prompt_text_ += stream_.add(id);
    whole.add(id);
  }
  owed_ = whole.finish();
  owed_.resize(std::min(owed_.find("\xEF\xBF\xBD"), owed_.size()));
  owed_.resize(data::without_cut_character(owed_));
  prompt_text_ += owed_;
}

std::string StoppedText::without_prompt(std::string piece) {
  size_t same = 0;
  while (same < std::min(piece.size(), owed_.size()) && piece[same] == owed_[same]) {
    ++same;
  }
  if (same < std::min(piece.size(), owed_.size())) {
    owed_.clear();  // it became something else with what follows
  } else {
    owed_.erase(0, same);
  }
  return piece.substr(same);
}

std::string StoppedText::add(int32_t id) {
  return stopped() ? "" : take(without_prompt(stream_.add(id)), false);
}

std::string StoppedText::finish() {
  return stopped() ? "" : take(without_prompt(stream_.finish()), true);
}

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
