#include "autograd/io/strict_json.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "autograd/io/safetensors_header.h"

namespace tapestry {

using nlohmann::json;

namespace {

constexpr int kMaxDepth = 16;
// Where members keep their order, finding one takes as many steps as there are.
constexpr size_t kMaxOrderedMembers = 20'000;

template <class Json>
Json read_strictly(const InputFile& file,
                   std::string_view field,
                   uint64_t max_bytes,
                   size_t max_members) {
  if (file.size() > max_bytes) {
    file.fail(0, field, file.size(), " bytes are above the limit of ", max_bytes);
  }
  std::string text(file.size(), '\0');
  file.read_at(0, text.data(), text.size(), field);
  if (const size_t zero = text.find('\0'); zero != std::string::npos) {
    file.fail(zero, field, "not valid JSON: a zero byte");
  }
  std::vector<std::set<std::string>> keys;
  const auto callback = [&](int depth, typename Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) {
      file.fail(0, field, "nested more than ", kMaxDepth, " deep");
    }
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key &&
               !keys.back().insert(parsed.template get_ref<const std::string&>()).second) {
      file.fail(0, safetensors::json_string(parsed.template get_ref<const std::string&>()),
                "the key appears twice");
    }
    if (!keys.empty() && keys.back().size() > max_members) {
      file.fail(0, field, "an object of more than ", max_members, " members");
    }
    return true;
  };
  try {
    return Json::parse(text, callback);
  } catch (const typename Json::out_of_range& error) {  // a number beyond the range of a double
    const std::string_view what = error.what();
    file.fail(0, field, what.substr(std::min(what.size(), what.find("] ") + 2)));
  } catch (const typename Json::parse_error& error) {
    const std::string_view what = error.what();
    file.fail(error.byte > 0 ? error.byte - 1 : 0, field,
              "not valid JSON: ", what.substr(std::min(what.size(), what.find(": ") + 2)));
  }
}

}  // namespace

json read_strict_json(const InputFile& file, std::string_view field, uint64_t max_bytes) {
  return read_strictly<json>(file, field, max_bytes, SIZE_MAX);
}

nlohmann::ordered_json read_strict_ordered_json(const InputFile& file,
                                                std::string_view field,
                                                uint64_t max_bytes) {
  return read_strictly<nlohmann::ordered_json>(file, field, max_bytes, kMaxOrderedMembers);
}

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace tapestry
