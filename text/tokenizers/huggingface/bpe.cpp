#include "text/tokenizers/huggingface/bpe.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "text/tokenizers/huggingface/aligned_text.h"
#include "text/tokenizers/huggingface/byte_characters.h"

namespace tapestry::data::huggingface {
namespace bpe {
namespace {

constexpr uint32_t kNone = ~uint32_t{0};
constexpr size_t kFew = 24;

std::string shown_token(std::string_view token) {
  constexpr size_t kMost = 60;
  return concat("\"", token.substr(0, kMost), token.size() > kMost ? "..." : "", "\"");
}

uint64_t pair_key(uint32_t first, uint32_t second) { return uint64_t{first} << 32U | second; }

int32_t id_or_none(const Vocabulary& vocabulary, std::string_view token) {
  return vocabulary.find(token).value_or(-1);
}

// "left right", or ["left", "right"].
std::pair<std::string_view, std::string_view> sides(const Component& component,
                                                    const Json& entry,
                                                    size_t number) {
  if (entry.is_string()) {
    const std::string_view text = entry.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
             entry[1].is_string()) {
    return {entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>()};
  }
  component.fail(
      concat("merges[", number, "] is ", entry.dump().substr(0, 80), ", expected two tokens"));
}

}  // namespace
}  // namespace bpe

using bpe::id_or_none;
using bpe::kNone;

Bpe::Bpe(const Component& component, bool bytes)
    : Model(Vocabulary::of_ids(component.json().value("vocab", Json()), "model.vocab")),
      prefix_(component.text("continuing_subword_prefix", "")),
      suffix_(component.text("end_of_word_suffix", "")),
      fuse_unk_(component.flag("fuse_unk", false)),
      byte_fallback_(component.flag("byte_fallback", false)),
      ignore_merges_(component.flag("ignore_merges", false)) {
  if (component.has("dropout") && component.json()["dropout"] != 0) {
    component.fail("dropout is not implemented, expected null");
  }
  if (component.has("unk_token")) {
    const std::string token = component.text("unk_token");
    unk_id_ = vocabulary().find(token);
    // An empty one is how files say that there is none.
    if (!unk_id_ && !token.empty()) {
      component.fail(concat("unk_token ", bpe::shown_token(token), " is not in the vocabulary"));
    }
  }
  is_fallback_.resize(static_cast<size_t>(vocabulary().size()));
  takes_bytes_ = bytes && prefix_.empty() && suffix_.empty();
  for (size_t byte = 0; byte < id_of_byte_.size(); ++byte) {
    id_of_byte_[byte] = id_or_none(vocabulary(), character_of_byte(static_cast<uint8_t>(byte)));
    takes_bytes_ = takes_bytes_ && id_of_byte_[byte] >= 0;
    char code[8];
    std::snprintf(code, sizeof(code), "<0x%02X>", static_cast<unsigned>(byte));
    id_of_fallback_[byte] = id_or_none(vocabulary(), code);
    if (id_of_fallback_[byte] >= 0) {
      is_fallback_[static_cast<size_t>(id_of_fallback_[byte])] = true;
    }
    if (byte < id_of_ascii_.size()) {
      id_of_ascii_[byte] = id_or_none(vocabulary(), std::string(1, static_cast<char>(byte)));
    }
  }
  read_merges(component);
  if (takes_bytes_ && ignore_merges_) {
    for (int64_t id = 0; id < vocabulary().size(); ++id) {
      const std::string* token = vocabulary().token(id);
      if (const auto raw = token == nullptr ? std::nullopt : bytes_of_token(*token)) {
        tokens_of_bytes_.emplace(*raw, static_cast<int32_t>(id));
      }
    }
  }
  learn_neighbours();
}

void Bpe::read_merges(const Component& component) {
  const Json& list = component.list("merges");
  check<ValueError>(list.size() < MergeTable::kNoRank, "model.merges: ", list.size(),
                    " are too many");
  merges_ = MergeTable(list.size());
  std::string product;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto [left, right] = bpe::sides(component, list[i], i);
    const auto token = [&](std::string_view text) {
      const auto id = vocabulary().find(text);
      if (!id) {
        component.fail(
            concat("merges[", i, "]: ", bpe::shown_token(text), " is not in the vocabulary"));
      }
      return *id;
    };
    const int32_t left_id = token(left);
    const int32_t right_id = token(right);
    product = left;
    product += right.substr(std::min(prefix_.size(), right.size()));
    merges_bytes_ = merges_bytes_ || is_fallback_[static_cast<size_t>(left_id)] ||
                    is_fallback_[static_cast<size_t>(right_id)];
    merges_.insert(left_id, right_id, {static_cast<uint32_t>(i), token(product)});
  }
}

// Which characters a merge has ever brought together; only where every character has tokens, so
// that those without one cannot become neighbours of others or one token together.
void Bpe::learn_neighbours() {
  can_cut_ = !takes_bytes_ && !merges_bytes_ && prefix_.empty() && suffix_.empty() &&
             byte_fallback_ &&
             std::all_of(id_of_fallback_.begin(), id_of_fallback_.end(),
                         [](int32_t id) { return id >= 0; });
  if (!can_cut_) {
    return;
  }
  for (int64_t id = 0; id < vocabulary().size(); ++id) {
    // Tokens that no merge makes are not needed, but do no harm.
    const std::string* token = vocabulary().token(id);
    if (token == nullptr) {
      continue;
    }
    for (size_t at = 0, length = 0; at < token->size(); at += length) {
      length = character_length(*token, at);
      if (at + length >= token->size()) {
        break;
      }
      const uint32_t first = code_point_at(*token, at);
      const uint32_t second = code_point_at(*token, at + length);
      if (first < 0x80 && second < 0x80) {
        ascii_neighbours_[first][second] = true;
      } else {
        neighbours_.insert(bpe::pair_key(first, second));
      }
    }
  }
}

bool Bpe::cuts_before(std::string_view piece, size_t at) const {
  const uint32_t first = code_point_at(piece, character_before(piece, at));
  const uint32_t second = code_point_at(piece, at);
  return first < 0x80 && second < 0x80 ? !ascii_neighbours_[first][second]
                                       : !neighbours_.contains(bpe::pair_key(first, second));
}

std::optional<int32_t> Bpe::whole_token(std::string_view piece) const {
  if (!takes_bytes_) {
    return vocabulary().find(piece);
  }
  const auto found = tokens_of_bytes_.find(std::string(piece));
  return found == tokens_of_bytes_.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

void Bpe::encode(std::string_view piece, ModelSpace& space, std::vector<int32_t>& ids) const {
  if (!can_cut_) {
    Model::encode(piece, space, ids);
    return;
  }
  if (ignore_merges_) {
    if (const auto whole = whole_token(piece)) {
      ids.push_back(*whole);
      return;
    }
  }
  size_t begin = 0;
  size_t at = character_length(piece, 0);
  while (at < piece.size()) {
    if (cuts_before(piece, at)) {
      encode_merged(piece.substr(begin, at - begin), space, ids);
      begin = at;
    }
    at += character_length(piece, at);
  }
  encode_merged(piece.substr(begin), space, ids);
}

// A part that a piece was cut into: merges alone.
void Bpe::encode_merged(std::string_view piece,
                        ModelSpace& space,
                        std::vector<int32_t>& ids) const {
  const uint64_t hash = PieceCache::hash(piece);
  if (space.cache.append(piece, hash, ids)) {
    return;
  }
  begin_with_characters(piece, space);
  merge_few(space);
  const size_t before = ids.size();
  for (const TokenPart& part : space.parts) {
    ids.push_back(part.id);
  }
  space.cache.store(piece, hash, std::span<const int32_t>(ids).subspan(before));
}

void Bpe::encode_parts(std::string_view piece, ModelSpace& space) const {
  check<ValueError>(piece.size() < std::numeric_limits<uint32_t>::max(), "a piece of ",
                    piece.size(), " bytes is too long to be encoded at once");
  if (ignore_merges_) {
    if (const auto whole = whole_token(piece)) {
      space.parts.assign(1, {*whole, 0, static_cast<uint32_t>(piece.size())});
      return;
    }
  }
  if (takes_bytes_) {
    begin_with_bytes(piece, space);
    merge_few(space);
    return;
  }
  if (!can_cut_) {
    begin_with_characters(piece, space);
    merge_few(space);
    return;
  }
  std::vector<TokenPart> all;
  size_t begin = 0;
  const auto take = [&](size_t end) {
    begin_with_characters(piece.substr(begin, end - begin), space);
    merge_few(space);
    for (const TokenPart& part : space.parts) {
      all.push_back({part.id, part.begin + static_cast<uint32_t>(begin),
                     part.end + static_cast<uint32_t>(begin)});
    }
    begin = end;
  };
  for (size_t at = character_length(piece, 0); at < piece.size();
       at += character_length(piece, at)) {
    if (cuts_before(piece, at)) {
      take(at);
    }
  }
  take(piece.size());
  space.parts = std::move(all);
}

void Bpe::begin_with_bytes(std::string_view piece, ModelSpace& space) const {
  space.parts.resize(piece.size());
  for (uint32_t at = 0; at < piece.size(); ++at) {
    space.parts[at] = {id_of_byte_[static_cast<uint8_t>(piece[at])], at, at + 1};
  }
}

int32_t Bpe::id_of_character(std::string_view character) const {
  return character.size() == 1 ? id_of_ascii_[static_cast<uint8_t>(character[0])]
                               : id_or_none(vocabulary(), character);
}

// Where tokens stand is told by their lengths, one behind the other, as the library does it: what
// has no token moves those behind it.
void Bpe::begin_with_characters(std::string_view piece, ModelSpace& space) const {
  space.parts.clear();
  uint32_t at = 0;
  uint32_t unknown = 0;  // bytes of a token for what is unknown that is still to be written
  const auto add = [&](int32_t id, uint32_t length) {
    space.parts.push_back({id, at, at + length});
    at += length;
  };
  std::string spelt;
  for (size_t from = 0, length = 0; from < piece.size(); from += length) {
    length = character_length(piece, from);
    std::string_view character = piece.substr(from, length);
    const bool first = from == 0;
    const bool last = from + length == piece.size();
    if ((!first && !prefix_.empty()) || (last && !suffix_.empty())) {
      spelt = first ? std::string() : prefix_;
      spelt += character;
      spelt += last ? suffix_ : std::string();
      character = spelt;
    }
    const int32_t id = id_of_character(character);
    if (id >= 0) {
      if (unknown > 0) {
        add(*unk_id_, unknown);
        unknown = 0;
      }
      add(id, static_cast<uint32_t>(length));
      continue;
    }
    if (byte_fallback_ && fall_back_to_bytes(character, at, space)) {
      continue;
    }
    if (unk_id_) {
      if (unknown > 0 && !fuse_unk_) {
        add(*unk_id_, unknown);
        unknown = 0;
      }
      unknown += static_cast<uint32_t>(length);
    }
  }
  if (unknown > 0) {
    add(*unk_id_, unknown);
  }
}

bool Bpe::fall_back_to_bytes(std::string_view text, uint32_t& at, ModelSpace& space) const {
  for (const char c : text) {
    if (id_of_fallback_[static_cast<uint8_t>(c)] < 0) {
      return false;
    }
  }
  for (const char c : text) {
    space.parts.push_back({id_of_fallback_[static_cast<uint8_t>(c)], at, at + 1});
    ++at;
  }
  return true;
}

// Looks at all pairs for each merge, which is fastest where there are not many.
void Bpe::merge_few(ModelSpace& space) const {
  std::vector<TokenPart>& parts = space.parts;
  if (parts.size() > bpe::kFew) {
    merge_many(space);
    return;
  }
  std::array<MergeTable::Merge, bpe::kFew> merges;
  size_t count = parts.size();
  for (size_t i = 0; i + 1 < count; ++i) {
    merges[i] = merges_.find(parts[i].id, parts[i + 1].id);
  }
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      best = merges[i].rank < merges[best].rank ? i : best;
    }
    if (merges[best].rank == MergeTable::kNoRank) {
      break;
    }
    parts[best].id = merges[best].product;
    parts[best].end = parts[best + 1].end;
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      parts[i] = parts[i + 1];
      merges[i - 1] = merges[i];
    }
    if (best > 0) {
      merges[best - 1] = merges_.find(parts[best - 1].id, parts[best].id);
    }
    if (best + 1 < count) {
      merges[best] = merges_.find(parts[best].id, parts[best + 1].id);
    }
  }
  parts.resize(count);
}

// The same with a heap of pairs, in which those are passed over that are no longer there.
void Bpe::merge_many(ModelSpace& space) const {
  std::vector<TokenPart>& parts = space.parts;
  const auto count = static_cast<uint32_t>(parts.size());
  space.next.resize(count);
  space.previous.resize(count);
  space.rank.assign(count, MergeTable::kNoRank);
  space.product.resize(count);
  space.heap.clear();
  const auto look = [&](uint32_t at) {
    const MergeTable::Merge merge = space.next[at] == kNone
                                        ? MergeTable::Merge{}
                                        : merges_.find(parts[at].id, parts[space.next[at]].id);
    space.rank[at] = merge.rank;
    space.product[at] = merge.product;
    return merge.rank != MergeTable::kNoRank;
  };
  const auto entry = [&](uint32_t at) { return uint64_t{space.rank[at]} << 32U | at; };
  for (uint32_t i = 0; i < count; ++i) {
    space.next[i] = i + 1 < count ? i + 1 : kNone;
    space.previous[i] = i > 0 ? i - 1 : kNone;
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (look(i)) {
      space.heap.push_back(entry(i));
    }
  }
  std::make_heap(space.heap.begin(), space.heap.end(), std::greater<>());
  const auto push = [&](uint32_t at) {
    if (look(at)) {
      space.heap.push_back(entry(at));
      std::push_heap(space.heap.begin(), space.heap.end(), std::greater<>());
    }
  };
  while (!space.heap.empty()) {
    std::pop_heap(space.heap.begin(), space.heap.end(), std::greater<>());
    const uint64_t top = space.heap.back();
    space.heap.pop_back();
    const auto at = static_cast<uint32_t>(top);
    if (space.rank[at] != static_cast<uint32_t>(top >> 32U)) {
      continue;
    }
    const uint32_t gone = space.next[at];
    parts[at].id = space.product[at];
    parts[at].end = parts[gone].end;
    space.next[at] = space.next[gone];
    if (space.next[gone] != kNone) {
      space.previous[space.next[gone]] = at;
    }
    space.rank[gone] = MergeTable::kNoRank;
    parts[gone].id = -1;
    push(at);
    if (space.previous[at] != kNone) {
      push(space.previous[at]);
    }
  }
  parts.erase(
      std::remove_if(parts.begin(), parts.end(), [](const TokenPart& part) { return part.id < 0; }),
      parts.end());
}

}  // namespace tapestry::data::huggingface
