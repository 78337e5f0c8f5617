#include "parallel_core/training/ranks/equal_configurations.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/dist_checkpointing/agreement.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;

constexpr const char* kProgramKey = "program";

// What a rank has been given: for each key its value, and for a path what it leads to.
struct GivenKey {
  std::string value;
  std::string target;
};
using GivenKeys = std::map<std::string, GivenKey>;

// The note in which the linker has put a digest of the whole program; elf(5), dl_iterate_phdr(3).
int find_build_id(dl_phdr_info* info, size_t /*size*/, void* found) {
  constexpr size_t kAlign = 4;
  for (int at = 0; at < info->dlpi_phnum; ++at) {
    const ElfW(Phdr)& header = info->dlpi_phdr[at];
    if (header.p_type != PT_NOTE || header.p_align > kAlign) {
      continue;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): where the loader has put the program
    const auto* note = reinterpret_cast<const unsigned char*>(info->dlpi_addr + header.p_vaddr);
    const unsigned char* end = note + header.p_memsz;
    while (static_cast<size_t>(end - note) >= sizeof(ElfW(Nhdr))) {
      ElfW(Nhdr) head;
      std::memcpy(&head, note, sizeof(head));
      const unsigned char* name = note + sizeof(head);
      const size_t name_room = (head.n_namesz + kAlign - 1) / kAlign * kAlign;
      const size_t text_room = (head.n_descsz + kAlign - 1) / kAlign * kAlign;
      if (static_cast<size_t>(end - name) < name_room + text_room) {
        break;
      }
      if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == sizeof("GNU") &&
          std::memcmp(name, "GNU", sizeof("GNU")) == 0) {
        auto* text = static_cast<std::string*>(found);
        for (size_t i = 0; i < head.n_descsz; ++i) {
          char digits[3];
          std::snprintf(digits, sizeof(digits), "%02x", name[name_room + i]);
          *text += digits;
        }
        break;
      }
      note = name + name_room + text_room;
    }
  }
  return 1;  // the program comes first, libraries of the system after it
}

// Empty where the linker has written none.
std::string build_id() {
  std::string id;
  dl_iterate_phdr(find_build_id, &id);
  return id;
}

std::string place_of(const std::string& path) {
  std::error_code error;
  const fs::path place = fs::absolute(path, error);
  return error ? path : place.lexically_normal().string();
}

std::string target_of(const std::string& path) {
  std::error_code error;
  const fs::path target = fs::weakly_canonical(path, error);
  return error ? place_of(path) : target.string();
}

// The texts of a key that holds a path, or several, mapped and put together again.
std::string mapped(const config::Value& value, std::string (*map)(const std::string&)) {
  if (value.is<std::string>()) {
    const auto& path = value.as<std::string>();
    return path.empty() ? path : map(path);
  }
  std::string all;
  if (value.is<config::Value::List>()) {
    for (const config::Value& item : value.as<config::Value::List>()) {
      all += concat(all.empty() ? "" : ", ", mapped(item, map));
    }
    return concat("[", all, "]");
  }
  return config::to_yaml(value);
}

GivenKeys keys_of(const AllConfig& config) {
  GivenKeys keys;
  for (const ResolvedKey& line : resolved_keys(config)) {
    const std::string name = concat(line.section, ".", line.key);
    if (name != "training_config.num_threads") {
      keys[name] = {.value = line.value, .target = line.value};
    }
  }
  for (const config::Section& section : config::schema()) {
    for (const config::Key& key : section.keys) {
      const auto found = keys.find(
          concat(section.name == "model_config" ? config.model_section : std::string(section.name),
                 ".", key.name));
      if (key.path && found != keys.end()) {
        const config::Value value = key.field.get(config);
        found->second = {.value = mapped(value, place_of), .target = mapped(value, target_of)};
      }
    }
  }
  const std::string id = build_id();
  keys[kProgramKey] = {.value = concat("build ", id), .target = id};
  return keys;
}

std::string text_of(const GivenKeys& keys) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, key] : keys) {
    json[name] = {key.value, key.target};
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

GivenKeys parse_keys(const std::string& text) {
  GivenKeys keys;
  const nlohmann::json json = nlohmann::json::parse(text);
  for (const auto& [name, pair] : json.items()) {
    keys[name] = {.value = pair.at(0).get<std::string>(), .target = pair.at(1).get<std::string>()};
  }
  return keys;
}

// FNV-1a of 64 bits: a short text that stands for a long one.
std::string hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const unsigned char c : text) {
    hash = (hash ^ c) * 0x100000001b3U;
  }
  return std::to_string(hash);
}

// "rank 3", "ranks 0-2, 5".
std::string ranks_text(const std::vector<size_t>& ranks) {
  std::string text;
  for (size_t at = 0; at < ranks.size();) {
    size_t end = at;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) {
      ++end;
    }
    text += concat(text.empty() ? "" : ", ", ranks[at],
                   end == at ? std::string() : concat("-", ranks[end]));
    at = end + 1;
  }
  return concat(ranks.size() == 1 ? "rank " : "ranks ", text);
}

// What ranks have been given that were given the same.
struct AlikeRanks {
  std::vector<size_t> ranks;
  GivenKeys keys;
};

// "  KEY: VALUE on ranks 0-2, VALUE on rank 3"; empty if all have the same.
std::string key_difference(const std::string& name, const std::vector<AlikeRanks>& kinds) {
  std::map<std::string, std::vector<size_t>> by_value;
  std::set<std::string> targets;
  for (const AlikeRanks& kind : kinds) {
    const auto found = kind.keys.find(name);
    const bool is_there = found != kind.keys.end();
    std::vector<size_t>& ranks = by_value[is_there ? found->second.value : std::string("nothing")];
    ranks.insert(ranks.end(), kind.ranks.begin(), kind.ranks.end());
    targets.insert(is_there ? found->second.target : std::string("nothing"));
  }
  if (by_value.size() == 1 || targets.size() == 1) {
    return {};
  }
  std::vector<std::pair<std::vector<size_t>, std::string>> groups;  // by their first ranks
  for (auto& [value, members] : by_value) {
    std::sort(members.begin(), members.end());
    groups.emplace_back(std::move(members), value);
  }
  std::sort(groups.begin(), groups.end());
  std::string text;
  for (const auto& [members, value] : groups) {
    text +=
        concat(text.empty() ? "" : ", ", value.empty() ? "''" : value, " on ", ranks_text(members));
  }
  return concat("\n  ", name, ": ", text);
}

// The first rank of each kind shows its text: of thousands, few differ, and nobody has room for
// what each has been given.
std::vector<AlikeRanks> given_to_all(ProcessGroup& world,
                                     const std::vector<std::string>& hashes,
                                     const std::string& own) {
  std::map<std::string, size_t> kind_of;
  std::vector<AlikeRanks> kinds;
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    const auto [kind, is_new] = kind_of.emplace(hashes[rank], kinds.size());
    if (is_new) {
      kinds.emplace_back();
    }
    kinds[kind->second].ranks.push_back(rank);
  }
  for (AlikeRanks& kind : kinds) {
    const auto root = static_cast<int>(kind.ranks.front());
    kind.keys = parse_keys(broadcast_text(world, own, root));
  }
  return kinds;
}

}  // namespace

void check_equal_configurations(const AllConfig& config, ProcessGroup& world) {
  if (world.size() == 1) {
    return;
  }
  const std::string own = text_of(keys_of(config));
  const std::vector<std::string> hashes = all_gather_text(world, hash_of(own));
  if (std::adjacent_find(hashes.begin(), hashes.end(), std::not_equal_to<>()) == hashes.end()) {
    return;
  }
  std::set<std::string> names;
  const std::vector<AlikeRanks> kinds = given_to_all(world, hashes, own);
  for (const AlikeRanks& kind : kinds) {
    for (const auto& [name, key] : kind.keys) {
      names.insert(name);
    }
  }
  std::string text;
  for (const std::string& name : names) {
    text += key_difference(name, kinds);
  }
  check<ValueError>(text.empty(),
                    "the ranks of this job have been given different runs, and would train "
                    "different models:",
                    text,
                    "\nStart all of them with one program and the same file, options, directory "
                    "and environment");
}

}  // namespace tapestry
