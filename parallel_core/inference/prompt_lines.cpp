#include "parallel_core/inference/prompt_lines.h"

#include <sstream>
#include <string_view>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "text/util/file.h"

namespace tapestry {

namespace {

using Json = nlohmann::ordered_json;

std::shared_ptr<const Json> list_at(const Json& object, const char* key, const std::string& place) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    return nullptr;
  }
  check<ValueError>(found->is_array(), place, ": \"", key, "\" is no list");
  return std::make_shared<const Json>(*found);
}

std::optional<int64_t> count_at(const Json& object, const char* key, const std::string& place) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    return std::nullopt;
  }
  check<ValueError>(
      found->is_number_integer() && found->get<double>() >= 0 && found->get<double>() < 9e18, place,
      ": \"", key, "\" is ", found->dump(), ", expected an integer from 0 on");
  return found->get<int64_t>();
}

}  // namespace

PromptLine parse_prompt_line(const std::string& text, int64_t number, const std::string& place) {
  const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  check<ValueError>(object.is_object(), place,
                    R"(: is no JSON object, expected {"prompt": TEXT} or {"messages": [...]})");
  PromptLine out;
  out.line = number;
  if (const auto prompt = object.find("prompt"); prompt != object.end() && !prompt->is_null()) {
    check<ValueError>(prompt->is_string(), place, ": \"prompt\" is no text");
    out.prompt = prompt->get<std::string>();
    check<ValueError>(!out.prompt->empty(), place, ": \"prompt\" is empty");
  }
  out.messages = list_at(object, "messages", place);
  out.tools = list_at(object, "tools", place);
  check<ValueError>(
      out.prompt.has_value() != (out.messages != nullptr), place, ": has ",
      out.prompt ? "both" : "neither",
      out.prompt ? " \"prompt\" and \"messages\"; keep one" : " \"prompt\" nor \"messages\"");
  if (const auto id = object.find("id"); id != object.end()) {
    out.id = std::make_shared<const Json>(*id);
  }
  out.seed = count_at(object, "seed", place);
  out.max_new_tokens = count_at(object, "max_new_tokens", place);
  return out;
}

std::vector<PromptLine> read_prompt_lines(const std::string& file) {
  std::istringstream text(data::read_file(file));
  std::vector<PromptLine> out;
  int64_t number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      out.push_back(parse_prompt_line(line, number, concat(file, ":", number)));
    }
  }
  check<ValueError>(!out.empty(), file, ": has no prompts");
  return out;
}

}  // namespace tapestry
