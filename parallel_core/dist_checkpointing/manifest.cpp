#include "parallel_core/dist_checkpointing/manifest.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "autograd/io/crc32c.h"
#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/strict_json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kFormatVersion = 1;
constexpr uint64_t kMaxManifestBytes = 64U << 20U;
constexpr size_t kReadBytes = size_t{4} << 20U;

std::optional<uint32_t> parse_crc(const json& value) {
  if (!value.is_string() || value.get_ref<const std::string&>().size() != 8) {
    return std::nullopt;
  }
  uint32_t crc = 0;
  for (const char digit : value.get_ref<const std::string&>()) {
    const bool decimal = digit >= '0' && digit <= '9';
    if (!decimal && (digit < 'a' || digit > 'f')) {
      return std::nullopt;
    }
    crc = crc * 16 + static_cast<uint32_t>(decimal ? digit - '0' : digit - 'a' + 10);
  }
  return crc;
}

// Of the manifest's own members, so that a bit of it that has changed is not taken for one of the
// files that it names. `manifest` without the member that holds it; the order says nothing.
constexpr const char* kOwnChecksum = "manifest_crc32c";
uint32_t own_checksum(const json& manifest) {
  const std::string text = manifest.dump();
  return crc32c(text.data(), text.size());
}

// What bytes [begin, end) of a file contribute to its checksum.
uint32_t checksum_part(const InputFile& file, uint64_t begin, uint64_t end) {
  std::vector<std::byte> buffer(std::min<uint64_t>(kReadBytes, end - begin));
  uint32_t crc = 0;
  for (uint64_t at = begin; at < end;) {
    const size_t bytes = std::min<uint64_t>(buffer.size(), end - at);
    file.read_at(at, buffer.data(), bytes, "content");
    crc = crc32c(buffer.data(), bytes, crc);
    at += bytes;
  }
  return begin == end ? 0 : crc32c_moved(crc, file.size() - end);
}

void check_sizes(const std::string& folder, const Manifest& manifest) {
  for (const auto& [name, expected] : manifest.files) {
    const std::string path = (fs::path(folder) / name).string();
    std::error_code error;
    check<IoError>(fs::is_regular_file(path, error), path,
                   ": is missing, but the manifest of the checkpoint names it");
    const uintmax_t bytes = fs::file_size(path, error);
    check<IoError>(!error && bytes == expected.bytes, path, ": has ", bytes, " bytes, but ",
                   expected.bytes, " were written: it is ",
                   bytes < expected.bytes ? "truncated" : "not the file of this checkpoint");
  }
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  nlohmann::ordered_json text;
  text["format_version"] = kFormatVersion;
  text["step"] = manifest.step;
  text["files"] = nlohmann::ordered_json::object();
  for (const auto& [name, file] : manifest.files) {
    text["files"][name] = {{"bytes", file.bytes}, {"crc32c", crc32c_text(file.crc32c)}};
  }
  text[kOwnChecksum] = crc32c_text(own_checksum(json::parse(text.dump())));
  return text.dump(2) + "\n";
}

std::optional<Manifest> read_manifest(const std::string& folder) {
  const std::string path = (fs::path(folder) / kManifestFile).string();
  std::error_code error;
  if (!fs::exists(path, error)) {
    return std::nullopt;
  }
  json content = read_strict_json(InputFile(path), "manifest", kMaxManifestBytes);
  check<IoError>(content.is_object(), path, ": is not a JSON object");
  const auto member = [&](const char* name) {
    const auto found = content.find(name);
    return found == content.end() ? json() : *found;
  };
  check<IoError>(member("format_version") == kFormatVersion, path, ": format_version is ",
                 member("format_version").dump(), ", this program knows ", kFormatVersion);
  // Checkpoints of before this member was written have none.
  if (const auto own = content.find(kOwnChecksum); own != content.end()) {
    const std::optional<uint32_t> expected = parse_crc(*own);
    content.erase(own);
    check<IoError>(expected && own_checksum(content) == *expected, path,
                   ": its content is not what was written (", kOwnChecksum,
                   "): it has been altered");
  }
  const json step = member("step");
  check<IoError>(step.is_number_unsigned() && step.get<uint64_t>() <= INT64_MAX, path,
                 ": step is no number of a step");
  check<IoError>(member("files").is_object(), path, ": has no list `files`");
  Manifest manifest{.step = step.get<int64_t>()};
  for (const auto& [name, file] : content["files"].items()) {
    const bool whole = file.is_object() && file.contains("bytes") && file.contains("crc32c");
    const std::optional<uint32_t> crc = whole ? parse_crc(file["crc32c"]) : std::nullopt;
    check<IoError>(is_plain_file_name(name) && crc && file["bytes"].is_number_unsigned(), path,
                   ": files: the entry of ", json(name).dump(), " is not a size and a checksum");
    manifest.files[name] = {.bytes = file["bytes"].get<uint64_t>(), .crc32c = *crc};
  }
  return manifest;
}

void verify_checkpoint(const std::string& folder,
                       bool checksums,
                       ProcessGroup& world,
                       CheckpointPart of) {
  std::optional<Manifest> manifest;
  all_or_none(world, [&] {
    manifest = read_manifest(folder);
    if (manifest) {
      std::erase_if(manifest->files, [&](const auto& file) {
        return of == CheckpointPart::kWeights && !is_weights_file(file.first);
      });
      check_sizes(folder, *manifest);
    }
  });
  if (!manifest || !checksums) {
    return;
  }
  std::vector<uint32_t> parts;
  all_or_none_on_disk(world, [&] {
    const auto ranks = static_cast<uint64_t>(world.size());
    const auto rank = static_cast<uint64_t>(world.rank());
    for (const auto& [name, expected] : manifest->files) {
      const InputFile file((fs::path(folder) / name).string());
      const uint64_t share = expected.bytes / ranks + 1;
      parts.push_back(checksum_part(file, std::min(rank * share, expected.bytes),
                                    std::min((rank + 1) * share, expected.bytes)));
    }
  });
  xor_over(world, parts);
  auto found = parts.begin();
  for (const auto& [name, expected] : manifest->files) {
    check<IoError>(*found == expected.crc32c, (fs::path(folder) / name).string(),
                   ": its content is not what was written (CRC-32C ", crc32c_text(*found),
                   ", expected ", crc32c_text(expected.crc32c), "): it has been altered");
    ++found;
  }
}

std::string fault_of_checkpoint(const std::string& folder, bool checksums, CheckpointPart of) {
  try {
    verify_checkpoint(folder, checksums, *single_process_group(), of);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace tapestry
