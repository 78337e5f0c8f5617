// What the fuzzers run: readers of files that may have been torn, damaged or made to do harm.
//
// The same functions are run by libFuzzer (libfuzzer/entry.cpp, preset `fuzz`) and, over the corpus
// and its mutations, by the ordinary tests (replay_test.cpp).
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::fuzz {

/// A folder in memory, where the system has such a file system, that an input's files are put into.
class InputFolder {
 public:
  InputFolder();
  InputFolder(const InputFolder&) = delete;
  InputFolder& operator=(const InputFolder&) = delete;
  ~InputFolder();

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  void put(std::string_view name, std::string_view content);
  /// Several files: "=== NAME\n", the content, "\n", and so on. Names that are not made of letters,
  /// digits, '.', '_' and '-' are passed over, and so is what follows the eighth file.
  void put_bundle(std::string_view input);
  /// Removes what was put.
  void clear();

 private:
  std::string path_;
  std::vector<std::string> names_;
};

struct Target {
  const char* name;  ///< also that of its corpus
  void (*put)(InputFolder& folder, std::string_view input);
  /// Reads all that there is to read. Throws what the readers throw.
  void (*read)(const InputFolder& folder);
  size_t memory_factor = 64;  ///< of what readers may hold: see allowed_memory()
};

/// For what readers promise of what they give out. An input that breaks it is a find.
inline void must_hold(bool holds, const char* rule) {
  if (!holds) {
    throw std::logic_error(rule);
  }
}

std::span<const Target> file_targets();  ///< safetensors, index, ckpt, npy
std::span<const Target>
checkpoint_targets();  ///< manifest, training_state, hf_config, adapter_config
std::span<const Target> accuracy_targets();   ///< curves, checklist
std::span<const Target> chat_targets();       ///< chat_template
std::span<const Target> sft_targets();        ///< sft_jsonl
std::span<const Target> tokenizer_targets();  ///< tokenizer_json
std::span<const Target> gguf_targets();       ///< gguf

/// Runs a target on an input. Returns what is wrong; empty if nothing is: the readers took it, or
/// threw IoError, ValueError or TypeError with a message that names a file of the folder, and never
/// held more memory than allowed_memory().
std::string fault_of(const Target& target, InputFolder& folder, std::string_view input);

/// Bytes that readers may hold at a time for an input, `factor` for each of its bytes and some for
/// themselves: JSON in memory takes some forty times its text, where that is all brackets.
size_t allowed_memory(size_t input_bytes, size_t factor);

}  // namespace tapestry::fuzz
