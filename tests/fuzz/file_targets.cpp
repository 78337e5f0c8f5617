// Files of tensors.
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <vector>

#include "autograd/io/mindspore_ckpt.h"
#include "autograd/io/npy.h"
#include "autograd/io/safetensors.h"
#include "autograd/io/safetensors_directory.h"
#include "autograd/tensor/error.h"
#include "tests/fuzz/targets.h"

namespace tapestry::fuzz {

namespace {

// Whole and in two parts, which have to be the same bytes.
template <class Files>
void read_tensor(const Files& files, const std::string& name) {
  const SafetensorsEntry& entry = files.entry(name);
  const size_t bytes = entry.end - entry.begin;
  std::vector<std::byte> parts(bytes);
  files.read_bytes(name, 0, bytes / 2, parts.data());
  files.read_bytes(name, bytes / 2, bytes - bytes / 2, parts.data() + bytes / 2);
  bool refused = false;
  try {
    files.read_bytes(name, bytes / 2, bytes - bytes / 2 + 1, parts.data());
  } catch (const IndexError&) {
    refused = true;
  }
  must_hold(refused, "bytes behind the tensor are given out");
  std::vector<std::byte> whole(bytes);
  try {
    files.read(name, whole.data());
  } catch (const TypeError&) {
    must_hold(!entry.dtype, "a dtype of ours is refused");
    return;
  }
  must_hold(
      entry.dtype && entry.shape.numel() * size_of(*entry.dtype) == static_cast<int64_t>(bytes),
      "shape and size of a tensor disagree");
  must_hold(bytes == 0 || std::memcmp(whole.data(), parts.data(), bytes) == 0,
            "a tensor's parts are not the whole");
}

void read_safetensors(const InputFolder& folder) {
  const SafetensorsReader reader(folder.file("x.safetensors"));
  for (const auto& [name, entry] : reader.entries()) {
    read_tensor(reader, name);
  }
}

void read_index(const InputFolder& folder) {
  const SafetensorsDirectory files(folder.path());
  for (const std::string& name : files.names()) {
    read_tensor(files, name);
  }
}

void read_ckpt(const InputFolder& folder) {
  const MindsporeCkptReader file(folder.file("x.ckpt"));
  for (const std::string& name : file.names()) {
    std::optional<DType> dtype;
    try {
      dtype = file.dtype(name);
    } catch (const TypeError&) {
      continue;
    }
    const auto bytes = static_cast<size_t>(file.shape(name).numel() * size_of(*dtype));
    std::vector<std::byte> parts(bytes);
    file.read_bytes(name, 0, bytes / 2, parts.data());
    file.read_bytes(name, bytes / 2, bytes - bytes / 2, parts.data() + bytes / 2);
    std::vector<std::byte> whole(bytes);
    file.read(name, whole.data());
    must_hold(bytes == 0 || std::memcmp(whole.data(), parts.data(), bytes) == 0,
              "a tensor's parts are not the whole");
  }
}

void read_npy_file(const InputFolder& folder) {
  const NpyArray array = read_npy(folder.file("x.npy"));
  must_hold(array.shape.numel() * size_of(array.dtype) == static_cast<int64_t>(array.bytes.size()),
            "shape and size of an array disagree");
}

}  // namespace

std::span<const Target> file_targets() {
  static constexpr std::array targets = {
      Target{
          "safetensors",
          [](InputFolder& folder, std::string_view input) { folder.put("x.safetensors", input); },
          read_safetensors},
      Target{"index", [](InputFolder& folder, std::string_view input) { folder.put_bundle(input); },
             read_index},
      Target{"ckpt",
             [](InputFolder& folder, std::string_view input) { folder.put("x.ckpt", input); },
             read_ckpt},
      Target{"npy", [](InputFolder& folder, std::string_view input) { folder.put("x.npy", input); },
             read_npy_file}};
  return targets;
}

}  // namespace tapestry::fuzz
