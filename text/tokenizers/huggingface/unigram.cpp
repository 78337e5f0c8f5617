#include "text/tokenizers/huggingface/unigram.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>

#include "autograd/tensor/error.h"
#include "text/tokenizers/huggingface/aligned_text.h"

namespace tapestry::data::huggingface {
namespace unigram {
namespace {

constexpr double kUnknownPenalty = 10;
constexpr uint32_t kUnreached = ~uint32_t{0};

Vocabulary read_tokens(const Component& component) {
  Vocabulary vocabulary;
  const Json& list = component.list("vocab");
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& entry = list[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      component.fail(
          concat("vocab[", i, "] is ", entry.dump().substr(0, 80), ", expected [token, score]"));
    }
    vocabulary.append(entry[0].get<std::string>());
  }
  return vocabulary;
}

}  // namespace
}  // namespace unigram

Unigram::Unigram(const Component& component)
    : Model(unigram::read_tokens(component)),
      byte_fallback_(component.flag("byte_fallback", false)) {
  double least = std::numeric_limits<double>::infinity();
  for (const Json& entry : component.list("vocab")) {
    scores_.push_back(entry[1].get<double>());
    least = std::min(least, scores_.back());
  }
  if (component.has("unk_id")) {
    const auto last = static_cast<int64_t>(scores_.size()) - 1;
    unk_id_ = static_cast<int32_t>(component.integer("unk_id", 0, last));
  }
  unknown_score_ = least - unigram::kUnknownPenalty;
  for (size_t byte = 0; byte < id_of_fallback_.size(); ++byte) {
    char code[8];
    std::snprintf(code, sizeof(code), "<0x%02X>", static_cast<unsigned>(byte));
    id_of_fallback_[byte] = vocabulary().find(code).value_or(-1);
  }
  build_trie();
}

void Unigram::build_trie() {
  // Tokens in order of their bytes: those below a node stand together.
  std::vector<int32_t> order;
  for (int64_t id = 0; id < vocabulary().size(); ++id) {
    const std::string& token = *vocabulary().token(id);
    if (!token.empty() && vocabulary().find(token) == id) {
      order.push_back(static_cast<int32_t>(id));
    }
  }
  const auto token = [&](size_t i) -> const std::string& { return *vocabulary().token(order[i]); };
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return *vocabulary().token(a) < *vocabulary().token(b); });
  struct Range {
    uint32_t node;
    size_t begin, end, depth;
  };
  root_.fill(-1);
  nodes_.resize(1);
  std::vector<Range> todo = {{0, 0, order.size(), 0}};
  for (size_t next = 0; next < todo.size(); ++next) {
    const Range range = todo[next];
    size_t begin = range.begin;
    if (begin < range.end && token(begin).size() == range.depth) {
      nodes_[range.node].id = order[begin++];
    }
    nodes_[range.node].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < range.end) {
      const auto byte = static_cast<uint8_t>(token(begin)[range.depth]);
      size_t end = begin;
      while (end < range.end && static_cast<uint8_t>(token(end)[range.depth]) == byte) {
        ++end;
      }
      if (range.node == 0) {
        root_[byte] = static_cast<int32_t>(nodes_.size());
      }
      todo.push_back({static_cast<uint32_t>(nodes_.size()), begin, end, range.depth + 1});
      nodes_.push_back({0, 0, byte, -1});
      ++nodes_[range.node].children;
      begin = end;
    }
  }
}

const Unigram::Node* Unigram::child(const Node& node, uint8_t byte) const {
  const Node* begin = nodes_.data() + node.first_child;
  const Node* end = begin + node.children;
  constexpr std::ptrdiff_t kFew = 8;
  if (end - begin > kFew) {
    begin = std::lower_bound(begin, end, byte,
                             [](const Node& n, uint8_t value) { return n.byte < value; });
    return begin != end && begin->byte == byte ? begin : nullptr;
  }
  for (; begin != end; ++begin) {
    if (begin->byte == byte) {
      return begin;
    }
  }
  return nullptr;
}

void Unigram::encode_parts(std::string_view piece, ModelSpace& space) const {
  check<ValueError>(piece.size() < std::numeric_limits<uint32_t>::max(), "a piece of ",
                    piece.size(), " bytes is too long to be encoded at once");
  const auto size = static_cast<uint32_t>(piece.size());
  std::vector<double>& score = space.score;      // of the best path to a place
  std::vector<uint32_t>& from = space.previous;  // where its last token begins
  std::vector<int32_t>& last = space.product;    // and which it is
  score.assign(size + 1, 0);
  from.assign(size + 1, unigram::kUnreached);
  last.assign(size + 1, 0);
  const auto offer = [&](uint32_t begin, uint32_t end, double path, int32_t id) {
    if (from[end] == unigram::kUnreached || path > score[end]) {
      score[end] = path;
      from[end] = begin;
      last[end] = id;
    }
  };
  size_t steps = 0;
  for (uint32_t at = 0; at < size;) {
    const auto length = static_cast<uint32_t>(character_length(piece, at));
    const double here = score[at];
    bool has_character = false;
    const int32_t root = root_[static_cast<uint8_t>(piece[at])];
    const Node* node = root < 0 ? nullptr : &nodes_[static_cast<size_t>(root)];
    for (uint32_t end = at + 1; node != nullptr; ++end) {
      if (node->id >= 0) {
        offer(at, end, scores_[static_cast<size_t>(node->id)] + here, node->id);
        has_character = has_character || end - at == length;
      }
      node = end < size ? child(*node, static_cast<uint8_t>(piece[end])) : nullptr;
      ++steps;
    }
    check<ValueError>(steps <= most_steps_for(size),
                      "the vocabulary has so many long tokens that "
                      "a piece of ",
                      size, " bytes takes more than ", most_steps_for(size),
                      " steps; split the text into smaller pieces (pre_tokenizer)");
    if (!has_character) {
      check<ValueError>(unk_id_.has_value(), "the character '", piece.substr(at, length),
                        "' is no token, and there is no unk_id");
      offer(at, at + length, unknown_score_ + here, *unk_id_);
    }
    at += length;
  }
  // Back from the end, what is unknown together.
  space.parts.clear();
  for (uint32_t end = size; end > 0;) {
    const uint32_t begin = from[end];
    if (unk_id_ && last[end] == *unk_id_ && !space.parts.empty() &&
        space.parts.back().id == *unk_id_ && space.parts.back().begin == end) {
      space.parts.back().begin = begin;
    } else {
      space.parts.push_back({last[end], begin, end});
    }
    end = begin;
  }
  std::reverse(space.parts.begin(), space.parts.end());
  if (!unk_id_) {
    return;
  }
  // What is unknown may be a token after all when it stands together, or bytes.
  const std::vector<TokenPart> found = space.parts;
  space.parts.clear();
  for (const TokenPart& part : found) {
    const std::string_view text = piece.substr(part.begin, part.end - part.begin);
    const auto known = part.id == *unk_id_ ? vocabulary().find(text) : part.id;
    if (known) {
      space.parts.push_back({*known, part.begin, part.end});
      continue;
    }
    const bool bytes = byte_fallback_ && std::all_of(text.begin(), text.end(), [&](char c) {
                         return id_of_fallback_[static_cast<uint8_t>(c)] >= 0;
                       });
    if (!bytes) {
      space.parts.push_back({part.id, part.begin, part.end, /*unknown=*/true});
      continue;
    }
    for (const char c : text) {
      space.parts.push_back({id_of_fallback_[static_cast<uint8_t>(c)], part.begin, part.end});
    }
  }
}

}  // namespace tapestry::data::huggingface
