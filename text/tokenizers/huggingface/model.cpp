#include "text/tokenizers/huggingface/model.h"

#include "autograd/tensor/error.h"
#include "text/tokenizers/huggingface/bpe.h"
#include "text/tokenizers/huggingface/unigram.h"

namespace tapestry::data::huggingface {

void Model::encode(std::string_view piece, ModelSpace& space, std::vector<int32_t>& ids) const {
  const uint64_t hash = PieceCache::hash(piece);
  if (space.cache.append(piece, hash, ids)) {
    return;
  }
  encode_parts(piece, space);
  const size_t before = ids.size();
  for (const TokenPart& part : space.parts) {
    ids.push_back(part.id);
  }
  space.cache.store(piece, hash, std::span<const int32_t>(ids).subspan(before));
}

MadeModel make_model(const Json& json, bool bytes) {
  const Component component(json, "model");
  // Very old files do not say that theirs is BPE.
  if (component.type() == "BPE" || (component.type().empty() && component.has("merges"))) {
    auto model = std::make_unique<Bpe>(component, bytes);
    const bool takes_bytes = model->takes_bytes();
    return {std::move(model), takes_bytes};
  }
  if (component.type() == "Unigram") {
    return {std::make_unique<Unigram>(component), false};
  }
  component.refuse();
}

}  // namespace tapestry::data::huggingface
