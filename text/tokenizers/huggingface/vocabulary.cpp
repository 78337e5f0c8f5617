#include "text/tokenizers/huggingface/vocabulary.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::data::huggingface {

Vocabulary Vocabulary::of_ids(const Json& json, const std::string& place) {
  check<ValueError>(json.is_object(), place, ": is ", json.type_name(),
                    R"(, expected {"token": id, ...})");
  constexpr uint64_t kSomeHoles = 1024;
  const uint64_t limit = 2 * json.size() + kSomeHoles;
  Vocabulary vocabulary;
  vocabulary.ids_.reserve(json.size());
  for (auto entry = json.begin(); entry != json.end(); ++entry) {
    check<ValueError>(entry->is_number_unsigned() && entry->get<uint64_t>() < limit, place, ": \"",
                      entry.key(), "\" has the id ", entry->dump().substr(0, 40),
                      ", expected an integer below ", limit, ", as there are ", json.size(),
                      " tokens");
    const auto id = entry->get<size_t>();
    if (id >= vocabulary.tokens_.size()) {
      vocabulary.tokens_.resize(id + 1, nullptr);
    }
    check<ValueError>(vocabulary.tokens_[id] == nullptr, place, ": \"", entry.key(), "\" and \"",
                      vocabulary.tokens_[id] == nullptr ? "" : *vocabulary.tokens_[id],
                      "\" have the same id ", id);
    vocabulary.texts_.push_back(entry.key());
    vocabulary.tokens_[id] = &vocabulary.texts_.back();
    vocabulary.ids_.emplace(vocabulary.texts_.back(), static_cast<int32_t>(id));
  }
  return vocabulary;
}

void Vocabulary::append(std::string token) {
  texts_.push_back(std::move(token));
  tokens_.push_back(&texts_.back());
  ids_.insert_or_assign(texts_.back(), static_cast<int32_t>(tokens_.size() - 1));
}

}  // namespace tapestry::data::huggingface
