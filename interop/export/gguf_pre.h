// Which of llama.cpp's ways to split text a tokenizer.json of byte-level BPE asks for.
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

}  // namespace tapestry
