// Which of llama.cpp's ways to split text a tokenizer.json of byte-level BPE asks for, and what it
// would say of one.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tapestry {

/// What llama.cpp is told of the way.
struct GgufPre {
  std::string name;  ///< tokenizer.ggml.pre
  /// Whether pieces that are tokens as a whole are taken before any merge ("ignore_merges").
  bool takes_whole_pieces = false;
  std::vector<std::string> remarks;  ///< where llama.cpp departs from the file
};

/// Compares the normalizer and the pre-tokenizer of a tokenizer.json, components and patterns, with
/// those that are known: GPT-2, Llama 3, Qwen2, DeepSeek LLM, Coder and V3, Tekken, SmolLM, GPT-4o.
/// ValueError, naming `file` and the component, for any other, because a wrong name gives wrong ids
/// without a word.
GgufPre gguf_pre(const nlohmann::json& tokenizer, const std::string& file);

/// What a tokenizer.json says of a way, as JSON.
struct GgufSplitting {
  std::string normalizer;
  std::string pre_tokenizer;
  bool takes_whole_pieces = false;
};
/// The same backwards. ValueError, naming `file`, for a name that is not known.
GgufSplitting gguf_splitting(const std::string& name, const std::string& file);

}  // namespace tapestry
