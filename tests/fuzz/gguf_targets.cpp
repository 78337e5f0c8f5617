// GGUF files of models.
#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include "interop/architectures/registry.h"
#include "interop/gguf/gguf_texts.h"
#include "interop/gguf/gguf_weights.h"
#include "parallel_core/config/schema/schema.h"
#include "tests/fuzz/targets.h"

namespace tapestry::fuzz {

namespace {

// Tables of families are of the process, not of an input.
void put_gguf(InputFolder& folder, std::string_view input) {
  must_hold(!architectures::all().empty(), "there are no families");
  folder.put("x.gguf", input);
}

void read_gguf(const InputFolder& folder) {
  const std::string path = folder.file("x.gguf");
  const GgufFile file(path);
  for (const auto& [name, entry] : file.tensors()) {
    must_hold(gguf_bytes(entry.type, entry.shape.numel()) == entry.bytes,
              "shape and size of a tensor disagree");
    std::byte last{};
    file.read_bytes(name, entry.bytes - 1, 1, &last);
  }
  const PackedFiles files = gguf_folder(path);
  must_hold(files.contains("config.json") && files.contains("tokenizer_config.json"),
            "a file of the folder is missing");
  const GgufWeights weights(path);
  for (const std::string& name : weights.names()) {
    const auto bytes = static_cast<size_t>(weights.shape(name).numel()) *
                       static_cast<size_t>(size_of(weights.dtype(name)));
    std::vector<std::byte> whole(bytes);
    weights.read(name, whole.data());
    std::vector<std::byte> parts(bytes);
    weights.read_bytes(name, 0, bytes / 2, parts.data());
    weights.read_bytes(name, bytes / 2, bytes - bytes / 2, parts.data() + bytes / 2);
    must_hold(std::memcmp(whole.data(), parts.data(), bytes) == 0,
              "a tensor's parts are not the whole");
  }
}

}  // namespace

std::span<const Target> gguf_targets() {
  static constexpr std::array targets = {Target{"gguf", put_gguf, read_gguf}};
  return targets;
}

}  // namespace tapestry::fuzz
