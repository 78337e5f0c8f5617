// Tokenizers of Hugging Face.
#include <array>
#include <string>
#include <vector>

#include "tests/fuzz/targets.h"
#include "text/tokenizers/huggingface/huggingface_tokenizer.h"
#include "text/tokenizers/huggingface/normal_form.h"
#include "text/tokenizers/text_stream.h"

namespace tapestry::fuzz {

namespace {

const char* const kTexts[] = {
    "The river's 12 345 lights, isn't it?  \n\n\tdef f(x):\n    return x\r\n",
    "<s> <|endoftext|><unk>\u2581a <0x41>",
    "\xC3\xA9 e\xCC\x81 \xE6\x97\xA5\xE6\x9C\xAC \xED\x95\x9C \xF0\x9F\x98\x80 \xEF\xAC\x81",
    "\xFF\xE2\x82 a\xF0\x9F",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
};

// The file alone, or "=== vocab.json", "=== merges.txt" and so on.
void put_tokenizer(InputFolder& folder, std::string_view input) {
  // Tables of Unicode, which are of the process, not of an input.
  for (const bool compatible : {false, true}) {
    for (const bool composed : {false, true}) {
      data::huggingface::NormalForm(compatible, composed);
    }
  }
  if (input.starts_with("=== ")) {
    folder.put_bundle(input);
  } else {
    folder.put("tokenizer.json", input);
  }
}

void read_tokenizer(const InputFolder& folder) {
  const data::HuggingFaceTokenizer tokenizer(folder.path());
  const int64_t size = tokenizer.vocab_size();
  must_hold(size > 0, "a tokenizer has no ids");
  for (const std::vector<int32_t>& ids : {tokenizer.ids_before(), tokenizer.ids_after()}) {
    must_hold(tokenizer.decode(ids).size() < (size_t{1} << 20U), "special ids have a long text");
  }
  for (const char* text : kTexts) {
    const data::Encoding encoding = tokenizer.encode_with_spans(text);
    must_hold(encoding.ids == tokenizer.encode(text), "ids depend on whether places are asked for");
    must_hold(encoding.ids == tokenizer.encode(text), "ids depend on what was encoded before");
    must_hold(encoding.spans.size() == encoding.ids.size(), "an id has no place");
    const auto length = static_cast<int64_t>(std::string_view(text).size());
    for (const data::TextSpan& span : encoding.spans) {
      must_hold(span.begin >= 0 && span.begin <= span.end && span.end <= length,
                "an id is of a place outside of the text");
    }
    data::TextStream stream(tokenizer);
    std::string streamed;
    for (const int32_t id : encoding.ids) {
      must_hold(id >= 0 && id < size, "an id is outside of the vocabulary");
      streamed += stream.add(id);
    }
    must_hold(streamed + stream.finish() == tokenizer.decode(encoding.ids),
              "text that streams is another");
    must_hold(tokenizer.decode_with_special(encoding.ids).size() < (size_t{1} << 24U),
              "a text has grown without bound");
  }
}

constexpr std::array<Target, 1> kTokenizerTargets = {
    {{"tokenizer_json", put_tokenizer, read_tokenizer}}};

}  // namespace

std::span<const Target> tokenizer_targets() { return kTokenizerTargets; }

}  // namespace tapestry::fuzz
