#include "text/tokenizers/huggingface/added_tokens.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "autograd/tensor/error.h"
#include "text/tokenizers/huggingface/normal_form.h"

namespace tapestry::data::huggingface {
namespace added_tokens {
namespace {

// What regular expressions of Rust call a word character: Alphabetic, marks, decimal numbers,
// connectors, joiners.
bool is_word(uint32_t p) {
  const std::string_view category = general_category(p);
  return category[0] == 'L' || category[0] == 'M' || category == "Nd" || category == "Nl" ||
         category == "Pc" || p == 0x200C || p == 0x200D || (p >= 0x24B6 && p <= 0x24E9) ||
         (p >= 0x1F130 && p <= 0x1F149) || (p >= 0x1F150 && p <= 0x1F169) ||
         (p >= 0x1F170 && p <= 0x1F189);
}

}  // namespace
}  // namespace added_tokens

void AddedTokens::Trie::insert(std::string_view text, int32_t token) {
  if (text.empty()) {
    return;
  }
  first[static_cast<uint8_t>(text[0])] = true;
  uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    const auto& children = nodes[node].children;
    const auto found = std::find_if(children.begin(), children.end(),
                                    [&](const auto& child) { return child.first == byte; });
    if (found != children.end()) {
      node = found->second;
      continue;
    }
    const auto child = static_cast<uint32_t>(nodes.size());
    nodes[node].children.emplace_back(byte, child);
    nodes.emplace_back();
    node = child;
  }
  nodes[node].token = token;  // of those that are normalized alike the last
}

int32_t AddedTokens::Trie::longest(std::string_view text,
                                   size_t at,
                                   size_t& end,
                                   size_t& steps) const {
  int32_t token = -1;
  uint32_t node = 0;
  while (at < text.size()) {
    ++steps;
    const auto byte = static_cast<uint8_t>(text[at++]);
    const auto& children = nodes[node].children;
    const auto found = std::find_if(children.begin(), children.end(),
                                    [&](const auto& child) { return child.first == byte; });
    if (found == children.end()) {
      break;
    }
    node = found->second;
    if (nodes[node].token >= 0) {
      token = nodes[node].token;
      end = at;
    }
  }
  return token;
}

AddedTokens::AddedTokens(const Json& list,
                         const Vocabulary& vocabulary,
                         const Normalizer* normalizer,
                         NewIds new_ids) {
  if (list.is_null()) {
    return;
  }
  check<ValueError>(list.is_array(), "added_tokens: is ", list.type_name(), ", expected a list");
  for (size_t i = 0; i < list.size(); ++i) {
    const Component entry(list[i], concat("added_tokens[", i, "]"));
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - 1;
    add({entry.text("content"), static_cast<int32_t>(entry.integer("id", 0, kMost)),
         entry.flag("single_word", false), entry.flag("lstrip", false), entry.flag("rstrip", false),
         entry.flag("normalized", true), entry.flag("special", false), ""},
        vocabulary,
        entry.has("source") ? concat("added token of ", entry.text("source")) : entry.place(),
        new_ids);
  }
  for (AddedToken& token : tokens_) {
    AlignedText text({token.content}, false);
    if (token.normalized && normalizer != nullptr) {
      normalizer->apply(text);
    }
    token.decoded = text.text();
  }
  // Special ones first, as in the library: the last of those that look alike is found.
  for (const bool special : {true, false}) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const AddedToken& token = tokens_[i];
      if (special_.contains(token.content) != special) {
        continue;
      }
      (token.normalized ? normalized_ : raw_).insert(token.decoded, static_cast<int32_t>(i));
    }
  }
}

void AddedTokens::add(AddedToken token,
                      const Vocabulary& vocabulary,
                      const std::string& place,
                      NewIds new_ids) {
  if (token.content.empty()) {
    return;
  }
  const auto known = by_content_.find(token.content);
  const auto in_model = vocabulary.find(token.content);
  const int64_t next = std::max(size_, vocabulary.count());
  constexpr int64_t kMostHoles = 1'000'000;
  const bool said = new_ids == NewIds::kSaid && vocabulary.token(token.id) == nullptr &&
                    !by_id_.contains(token.id) && token.id < next + kMostHoles;
  const int64_t expected = known != by_content_.end() ? tokens_[known->second].id
                           : in_model                 ? *in_model
                           : said                     ? token.id
                                                      : next;
  check<ValueError>(token.id == expected, place, ": \"", token.content, "\" has the id ", token.id,
                    ", expected ", expected,
                    in_model ? ", its id in the vocabulary" : ", the next that is free");
  if (token.special) {
    special_.insert(token.content);
  }
  size_ = std::max<int64_t>(size_, token.id + 1);
  if (known != by_content_.end()) {
    tokens_[known->second] = std::move(token);
    return;
  }
  by_content_.emplace(token.content, tokens_.size());
  by_id_.insert_or_assign(token.id, tokens_.size());
  tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::by_id(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

void AddedTokens::split(const Slice& text, bool normalized, AddedTokenSink& sink) const {
  const Trie& trie = normalized ? normalized_ : raw_;
  const std::string_view all = text.text;
  size_t done = 0;
  size_t steps = 0;
  size_t spaces_to = 0;  // the end of the white space that the last such token has taken
  if (trie.nodes.size() > 1) {
    for (size_t at = 0; at < all.size();) {
      size_t end = at;
      const int32_t found =
          trie.first[static_cast<uint8_t>(all[at])] ? trie.longest(all, at, end, steps) : -1;
      check<ValueError>(steps <= most_steps_for(all.size()),
                        "added_tokens: they are so long and so alike that a text of ", all.size(),
                        " bytes takes more than ", most_steps_for(all.size()), " steps");
      if (found < 0) {
        ++at;
        continue;
      }
      size_t begin = at;
      at = end;
      const AddedToken& token = tokens_[static_cast<size_t>(found)];
      if (token.single_word &&
          ((begin > 0 && added_tokens::is_word(code_point_at(all, character_before(all, begin)))) ||
           (end < all.size() && added_tokens::is_word(code_point_at(all, end))))) {
        continue;
      }
      if (token.lstrip) {
        while (begin > done && is_white_space(code_point_at(all, character_before(all, begin)))) {
          begin = character_before(all, begin);
          ++steps;
        }
        // Not what the token before has taken.
        begin = std::max(begin, done);
      }
      if (token.rstrip) {
        end = std::max(end, spaces_to);
        while (end < all.size() && is_white_space(code_point_at(all, end))) {
          end += character_length(all, end);
        }
        spaces_to = end;
      }
      if (done < begin) {
        sink.stretch(text.part(done, begin));
      }
      sink.token(token, text.part(begin, end));
      done = end;
    }
  }
  if (done < all.size()) {
    sink.stretch(text.part(done, all.size()));
  }
}

}  // namespace tapestry::data::huggingface
