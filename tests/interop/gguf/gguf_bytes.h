// GGUF files made by hand, so that anything about them can be wrong.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tapestry::testing {

template <class T>
std::string raw(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}
inline std::string gguf_string(const std::string& text) {
  return raw<uint64_t>(text.size()) + text;
}

// Values with their types.
inline std::string u32(uint32_t value) { return raw<uint32_t>(4) + raw(value); }
inline std::string u64(uint64_t value) { return raw<uint32_t>(10) + raw(value); }
inline std::string i32(int32_t value) { return raw<uint32_t>(5) + raw(value); }
inline std::string f32(float value) { return raw<uint32_t>(6) + raw(value); }
inline std::string boolean(uint8_t value) { return raw<uint32_t>(7) + raw(value); }
inline std::string text(const std::string& value) { return raw<uint32_t>(8) + gguf_string(value); }
inline std::string texts(const std::vector<std::string>& values) {
  std::string out = raw<uint32_t>(9) + raw<uint32_t>(8) + raw<uint64_t>(values.size());
  for (const std::string& value : values) {
    out += gguf_string(value);
  }
  return out;
}
template <class T>
std::string numbers(uint32_t type, const std::vector<T>& values) {
  std::string out = raw<uint32_t>(9) + raw<uint32_t>(type) + raw<uint64_t>(values.size());
  for (const T value : values) {
    out += raw(value);
  }
  return out;
}

struct HandTensor {
  std::string name;
  std::vector<uint64_t> sizes;  // the fastest first
  uint32_t type = 0;
  std::string bytes;
  int64_t shift = 0;  // added to the offset
};

/// A file in parts.
struct HandFile {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<std::pair<std::string, std::string>> metadata;  // key, type and value
  std::vector<HandTensor> tensors;
  uint64_t alignment = 32;
  int64_t more_entries = 0;  // added to the counts
  int64_t more_tensors = 0;

  std::string* find(const std::string& key) {
    for (auto& [name, value] : metadata) {
      if (name == key) {
        return &value;
      }
    }
    return nullptr;
  }
  void set(const std::string& key, const std::string& value) {
    if (std::string* found = find(key)) {
      *found = value;
    } else {
      metadata.emplace_back(key, value);
    }
  }
  void erase(const std::string& key) {
    std::erase_if(metadata, [&](const auto& entry) { return entry.first == key; });
  }
  HandTensor& tensor(const std::string& name) {
    for (HandTensor& one : tensors) {
      if (one.name == name) {
        return one;
      }
    }
    throw std::out_of_range(name);
  }
  std::string header() const {
    std::string out = magic + raw(version) +
                      raw(static_cast<uint64_t>(tensors.size()) + more_tensors) +
                      raw(static_cast<uint64_t>(metadata.size()) + more_entries);
    for (const auto& [key, value] : metadata) {
      out += gguf_string(key) + value;
    }
    uint64_t offset = 0;
    for (const HandTensor& tensor : tensors) {
      out += gguf_string(tensor.name) + raw(static_cast<uint32_t>(tensor.sizes.size()));
      for (const uint64_t size : tensor.sizes) {
        out += raw(size);
      }
      out += raw(tensor.type) + raw(offset + static_cast<uint64_t>(tensor.shift));
      offset += (tensor.bytes.size() + alignment - 1) / alignment * alignment;
    }
    return out;
  }
  std::string bytes() const {
    std::string out = header();
    const auto pad = [&] { out.resize((out.size() + alignment - 1) / alignment * alignment); };
    pad();
    for (const HandTensor& tensor : tensors) {
      out += tensor.bytes;
      pad();
    }
    return out;
  }
};

inline std::string floats(size_t count, float step = 0.01F) {
  std::string out;
  for (size_t i = 0; i < count; ++i) {
    out += raw(static_cast<float>(i % 17) * step - 0.05F);
  }
  return out;
}

/// A model of the architecture llama, of one layer and 32 channels, with a byte-level tokenizer of
/// `tokens` tokens: the 256 bytes, a merge, and tokens of its own.
inline HandFile small_llama(const std::vector<std::string>& tokens) {
  HandFile file;
  const auto rows = static_cast<uint64_t>(tokens.size());
  const auto tensor = [&](const std::string& name, std::vector<uint64_t> sizes) {
    uint64_t count = 1;
    for (const uint64_t size : sizes) {
      count *= size;
    }
    file.tensors.push_back({name, std::move(sizes), 0, floats(count)});
  };
  std::vector<int32_t> types(tokens.size(), 1);
  types.back() = 3;
  file.metadata = {{"general.architecture", text("llama")},
                   {"general.type", text("model")},
                   {"general.name", text("small")},
                   {"llama.block_count", u32(1)},
                   {"llama.context_length", u32(64)},
                   {"llama.embedding_length", u32(32)},
                   {"llama.feed_forward_length", u32(64)},
                   {"llama.attention.head_count", u32(2)},
                   {"llama.attention.head_count_kv", u32(1)},
                   {"llama.attention.layer_norm_rms_epsilon", f32(1e-5F)},
                   {"llama.vocab_size", u32(static_cast<uint32_t>(rows))},
                   {"llama.rope.freq_base", f32(10000)},
                   {"llama.rope.dimension_count", u32(16)},
                   {"tokenizer.ggml.model", text("gpt2")},
                   {"tokenizer.ggml.pre", text("gpt-2")},
                   {"tokenizer.ggml.tokens", texts(tokens)},
                   {"tokenizer.ggml.token_type", numbers<int32_t>(5, types)},
                   {"tokenizer.ggml.merges", texts({"a b"})},
                   {"tokenizer.ggml.eos_token_id", u32(static_cast<uint32_t>(rows - 1))},
                   {"tokenizer.ggml.add_bos_token", boolean(0)}};
  tensor("token_embd.weight", {32, rows});
  tensor("blk.0.attn_norm.weight", {32});
  tensor("blk.0.attn_q.weight", {32, 32});
  tensor("blk.0.attn_k.weight", {32, 16});
  tensor("blk.0.attn_v.weight", {32, 16});
  tensor("blk.0.attn_output.weight", {32, 32});
  tensor("blk.0.ffn_norm.weight", {32});
  tensor("blk.0.ffn_gate.weight", {32, 64});
  tensor("blk.0.ffn_up.weight", {32, 64});
  tensor("blk.0.ffn_down.weight", {64, 32});
  tensor("output_norm.weight", {32});
  tensor("output.weight", {32, rows});
  return file;
}

}  // namespace tapestry::testing
