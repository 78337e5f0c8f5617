#include "text/tokenizers/huggingface/component.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::data::huggingface {
namespace {

constexpr int kDeepestJson = 64;
constexpr size_t kMostParts = 64;

// Brackets outside of texts; what is no JSON is told by the parser.
bool is_too_deep(std::string_view bytes) {
  int depth = 0;
  bool in_text = false;
  for (size_t at = 0; at < bytes.size(); ++at) {
    const char c = bytes[at];
    if (in_text) {
      at += c == '\\' ? 1 : 0;
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepestJson) {
        return true;
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Json parse_json(const std::string& bytes, const std::string& path) {
  check<IoError>(!is_too_deep(bytes), path, ": is nested more than ", kDeepestJson, " deep");
  try {
    return Json::parse(bytes);
  } catch (const Json::exception& error) {
    const std::string_view what = error.what();
    throw IoError(concat(
        path, ": is not valid JSON: ", what.substr(std::min(what.size(), what.find("] ") + 2))));
  }
}

Component::Component(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
  check<ValueError>(json.is_object(), place_, ": is ", json.type_name(), ", expected an object");
  const auto found = json.find("type");
  type_ = found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool Component::has(const char* key) const {
  const auto found = json_.find(key);
  return found != json_.end() && !found->is_null();
}

const Json& Component::at(const char* key) const {
  const auto found = json_.find(key);
  if (found == json_.end()) {
    fail(concat("has no \"", key, "\""));
  }
  return *found;
}

std::string Component::text(const char* key) const {
  const Json& value = at(key);
  if (!value.is_string()) {
    fail(concat("\"", key, "\" is ", value.type_name(), ", expected a text"));
  }
  return value.get<std::string>();
}

std::string Component::text(const char* key, const std::string& otherwise) const {
  return has(key) ? text(key) : otherwise;
}

bool Component::flag(const char* key) const {
  const Json& value = at(key);
  if (!value.is_boolean()) {
    fail(concat("\"", key, "\" is ", value.type_name(), ", expected true or false"));
  }
  return value.get<bool>();
}

bool Component::flag(const char* key, bool otherwise) const {
  return has(key) ? flag(key) : otherwise;
}

int64_t Component::integer(const char* key, int64_t least, int64_t most) const {
  const Json& value = at(key);
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() <= static_cast<uint64_t>(most)
                        : value.is_number_integer() && value.get<int64_t>() <= most;
  if (!fits || value.get<int64_t>() < least) {
    fail(concat("\"", key, "\" is ", value.is_number() ? value.dump() : value.type_name(),
                ", expected an integer of ", least, " .. ", most));
  }
  return value.get<int64_t>();
}

const Json& Component::list(const char* key) const {
  const Json& value = at(key);
  if (!value.is_array()) {
    fail(concat("\"", key, "\" is ", value.type_name(), ", expected a list"));
  }
  return value;
}

Pattern Component::pattern(const char* key) const {
  const Json& value = at(key);
  try {
    if (value.is_string()) {
      return Pattern::literal(value.get_ref<const std::string&>());
    }
    if (value.is_object() && value.size() == 1 && value.begin()->is_string()) {
      const auto& text = value.begin()->get_ref<const std::string&>();
      if (value.begin().key() == "String") {
        return Pattern::literal(text);
      }
      if (value.begin().key() == "Regex") {
        return Pattern::regex(text);
      }
    }
  } catch (const ValueError& error) {
    fail(error.what());
  }
  fail(concat("\"", key, R"(" is not {"String": ...} or {"Regex": ...})"));
}

std::vector<Component> Component::parts(const char* key) const {
  const Json& found = list(key);
  if (found.size() > kMostParts) {
    fail(concat("\"", key, "\" has ", found.size(), " entries, expected at most ", kMostParts));
  }
  std::vector<Component> parts;
  for (size_t i = 0; i < found.size(); ++i) {
    parts.emplace_back(found[i], concat(place_, ".", key, "[", i, "]"));
  }
  return parts;
}

void Component::fail(const std::string& what) const {
  throw ValueError(concat(place_, type_.empty() ? "" : " (" + type_ + ")", ": ", what));
}

void Component::refuse() const {
  throw ValueError(type_.empty()
                       ? concat(place_, ": has no type")
                       : concat(place_, ": a component of type ", type_, " is not implemented"));
}

}  // namespace tapestry::data::huggingface
