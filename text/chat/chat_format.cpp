#include "text/chat/chat_format.h"

#include <algorithm>
#include <filesystem>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/packed_folder.h"
#include "autograd/tensor/error.h"

namespace tapestry::chat {

namespace {

constexpr uint64_t kMaxBytes = uint64_t{64} << 20U;
constexpr std::string_view kTemplateFile = "chat_template.jinja";
constexpr std::string_view kTemplateJson = "chat_template.json";
constexpr std::string_view kTokenizerConfig = "tokenizer_config.json";
constexpr std::string_view kSpecialTokens = "special_tokens_map.json";

std::string path_in(const std::string& folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
}

bool is_there(const std::string& folder, std::string_view name) {
  return path_exists(path_in(folder, name));
}

std::string read_whole(const std::string& folder, std::string_view name) {
  return read_file(path_in(folder, name), kMaxBytes);
}

// A file that is an object; empty if it is not there.
Json read_object(const std::string& folder, std::string_view name) {
  if (!is_there(folder, name)) {
    return Json::object();
  }
  const std::string path = path_in(folder, name);
  Json json;
  try {
    json = Json::parse(read_whole(folder, name));
  } catch (const Json::exception& error) {
    throw IoError(concat(path, ": is no JSON: ", error.what()));
  }
  if (!json.is_object()) {
    throw IoError(concat(path, ": is a JSON ", json.type_name(), ", an object is expected"));
  }
  return json;
}

struct NamedTemplates {
  std::string path;
  std::vector<std::pair<std::string, std::string>> sources;  ///< of one without a name: "default"
};

NamedTemplates templates_in(const Json& json, const std::string& path) {
  NamedTemplates found{path, {}};
  const auto entry = json.find("chat_template");
  if (entry == json.end() || entry->is_null()) {
    return found;
  }
  if (entry->is_string()) {
    found.sources.emplace_back("default", entry->get<std::string>());
    return found;
  }
  const auto text_in = [&](const Json& item, const char* key) {
    const auto value = item.is_object() ? item.find(key) : item.end();
    if (!item.is_object() || value == item.end() || !value->is_string()) {
      throw IoError(concat(path, ": field chat_template: an element has no text '", key, "'"));
    }
    return value->get<std::string>();
  };
  if (!entry->is_array()) {
    throw IoError(concat(path, ": field chat_template: a JSON ", entry->type_name(),
                         ", a text or a list is expected"));
  }
  for (const Json& item : *entry) {
    found.sources.emplace_back(text_in(item, "name"), text_in(item, "template"));
  }
  return found;
}

NamedTemplates templates_of(const std::string& folder, const Json& tokenizer_config) {
  if (is_there(folder, kTemplateFile)) {
    return {path_in(folder, kTemplateFile), {{"default", read_whole(folder, kTemplateFile)}}};
  }
  NamedTemplates found =
      templates_in(read_object(folder, kTemplateJson), path_in(folder, kTemplateJson));
  return found.sources.empty() ? templates_in(tokenizer_config, path_in(folder, kTokenizerConfig))
                               : found;
}

const std::string* find_source(const NamedTemplates& templates, std::string_view name) {
  for (const auto& [known, source] : templates.sources) {
    if (known == name) {
      return &source;
    }
  }
  return nullptr;
}

// "bos_token": "<s>" or {"content": "<s>", ...}.
std::optional<std::string> token_in(const Json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_object()) {
    const auto content = value.find("content");
    if (content != value.end() && content->is_string()) {
      return content->get<std::string>();
    }
  }
  return std::nullopt;
}

void add_tokens(const Json& json, std::vector<std::pair<std::string, std::string>>& tokens) {
  for (const auto& [key, value] : json.items()) {
    const std::optional<std::string> token =
        key.ends_with("_token") ? token_in(value) : std::nullopt;
    const bool is_known =
        std::any_of(tokens.begin(), tokens.end(),
                    [&name = key](const auto& entry) { return entry.first == name; });
    if (token && !is_known) {
      tokens.emplace_back(key, *token);
    }
  }
}

}  // namespace

std::string ChatFormat::render(const Json& messages, bool add_generation_prompt) const {
  return render(messages, add_generation_prompt, Json::object());
}

std::string ChatFormat::render(const Json& messages,
                               bool add_generation_prompt,
                               const Json& extra,
                               GenerationMarks* marks) const {
  if (!messages.is_array()) {
    throw ValueError(
        concat("chat: messages must be a list of objects, not a JSON ", messages.type_name()));
  }
  if (!extra.is_object()) {
    throw ValueError(
        concat("chat: further variables must be an object, not a JSON ", extra.type_name()));
  }
  Json variables = {{"tools", nullptr}, {"documents", nullptr}};
  for (const auto& [name, token] : special_tokens) {
    variables[name] = token;
  }
  variables["messages"] = messages;
  variables["add_generation_prompt"] = add_generation_prompt;
  for (const auto& [name, value] : extra.items()) {
    variables[name] = value;
  }
  const bool has_tools = !variables["tools"].is_null();
  const ChatTemplate& used = has_tools && tool_template ? *tool_template : *chat_template;
  return used.render(variables, {}, now, marks);
}

std::vector<std::string_view> chat_format_files() {
  return {kTemplateFile, kTemplateJson, kTokenizerConfig, kSpecialTokens};
}

std::optional<ChatFormat> read_chat_format(const std::string& folder, const std::string& name) {
  const Json config = read_object(folder, kTokenizerConfig);
  const NamedTemplates templates = templates_of(folder, config);
  if (templates.sources.empty()) {
    return std::nullopt;
  }
  const std::string* source = find_source(templates, name);
  if (source == nullptr) {
    std::string known;
    for (const auto& entry : templates.sources) {
      known += (known.empty() ? "" : ", ") + entry.first;
    }
    throw ValueError(
        concat(templates.path, ": there is no chat template '", name, "', there are: ", known));
  }
  ChatFormat format;
  format.chat_template = std::make_shared<ChatTemplate>(*source, templates.path);
  if (const std::string* for_tools = find_source(templates, "tool_use");
      for_tools != nullptr && name == "default") {
    format.tool_template =
        std::make_shared<ChatTemplate>(*for_tools, templates.path + " (tool_use)");
  }
  add_tokens(config, format.special_tokens);
  add_tokens(read_object(folder, kSpecialTokens), format.special_tokens);
  for (const auto& [key, token] : format.special_tokens) {
    if (key == "bos_token") {
      format.bos_token = token;
    } else if (key == "eos_token") {
      format.eos_token = token;
    }
  }
  return format;
}

}  // namespace tapestry::chat
