#include "parallel_core/sft/example.h"

#include <utility>

#include "autograd/tensor/error.h"
#include "text/sources/json_line.h"

namespace tapestry::sft {
namespace {

constexpr const char* kKinds =
    "\"prompt\" with \"completion\", \"messages\", \"text\", \"instruction\" with \"output\" "
    "(Alpaca), \"conversations\" (ShareGPT)";

// The value of a member; null where it is missing.
const Json& member_of(const Json& object, const char* name) {
  static const Json kNone;
  const auto found = object.find(name);
  return found == object.end() ? kNone : *found;
}

std::string string_of(const Json& object, const char* name, const std::string& place) {
  const Json& value = member_of(object, name);
  check<ValueError>(value.is_string(), place, ": \"", name, "\" is a JSON ", value.type_name(),
                    ", expected a string",
                    value.is_array()
                        ? "; a conversation is written whole, with its answers, in \"messages\""
                        : "");
  return value.get<std::string>();
}

void check_messages(const Json& messages, const std::string& place) {
  check<ValueError>(messages.is_array() && !messages.empty(), place, ": \"messages\" is ",
                    messages.is_array() ? "empty" : concat("a JSON ", messages.type_name()),
                    ", expected an array of {\"role\", \"content\"}");
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    check<ValueError>(message.is_object(), place, ": messages[", i, "] is a JSON ",
                      message.type_name(), ", expected an object with \"role\" and \"content\"");
    const Json& role = member_of(message, "role");
    check<ValueError>(role.is_string(), place, ": messages[", i, "].role ",
                      role.is_null() ? "is missing" : concat("is a JSON ", role.type_name()),
                      ", expected a string such as \"user\" or \"assistant\"");
    const Json& content = member_of(message, "content");
    check<ValueError>(content.is_null() || content.is_string() || content.is_array(), place,
                      ": messages[", i, "].content is a JSON ", content.type_name(),
                      ", expected a string");
  }
}

Json message_of(const char* role, std::string content) {
  return {{"role", role}, {"content", std::move(content)}};
}

// Alpaca's {"instruction", "input", "output"}, perhaps with "system" and, as LLaMA-Factory has it,
// a "history" of [question, answer].
Json messages_of_instruction(const Json& object, const std::string& place) {
  Json messages = Json::array();
  const auto optional = [&](const char* name) {
    return member_of(object, name).is_null() ? std::string() : string_of(object, name, place);
  };
  if (std::string system = optional("system"); !system.empty()) {
    messages.push_back(message_of("system", std::move(system)));
  }
  if (const Json& history = member_of(object, "history"); !history.is_null()) {
    check<ValueError>(history.is_array(), place, ": \"history\" is a JSON ", history.type_name(),
                      ", expected an array of [question, answer]");
    for (const Json& turn : history) {
      check<ValueError>(
          turn.is_array() && turn.size() == 2 && turn[0].is_string() && turn[1].is_string(), place,
          ": \"history\" has an entry that is not [question, answer]");
      messages.push_back(message_of("user", turn[0].get<std::string>()));
      messages.push_back(message_of("assistant", turn[1].get<std::string>()));
    }
  }
  std::string question = string_of(object, "instruction", place);
  if (const std::string input = optional("input"); !input.empty()) {
    question += (question.empty() ? "" : "\n\n") + input;
  }
  messages.push_back(message_of("user", std::move(question)));
  messages.push_back(message_of("assistant", string_of(object, "output", place)));
  return messages;
}

// The role that a name of ShareGPT's "from" means; null for one that is not known.
const char* role_of_speaker(const std::string& speaker) {
  static constexpr std::pair<const char*, const char*> kRoles[] = {{"human", "user"},
                                                                   {"user", "user"},
                                                                   {"gpt", "assistant"},
                                                                   {"assistant", "assistant"},
                                                                   {"chatgpt", "assistant"},
                                                                   {"bing", "assistant"},
                                                                   {"bard", "assistant"},
                                                                   {"model", "assistant"},
                                                                   {"system", "system"},
                                                                   {"tool", "tool"},
                                                                   {"function", "tool"},
                                                                   {"observation", "tool"},
                                                                   {"function_response", "tool"}};
  for (const auto& [name, role] : kRoles) {
    if (speaker == name) {
      return role;
    }
  }
  return nullptr;
}

// ShareGPT's "conversations" of {"from", "value"}, perhaps with "system"; entries that are messages
// already stay.
Json messages_of_turns(Json& object, const std::string& place) {
  Json& turns = object["conversations"];
  check<ValueError>(turns.is_array() && !turns.empty(), place, ": \"conversations\" is ",
                    turns.is_array() ? "empty" : concat("a JSON ", turns.type_name()),
                    ", expected an array of {\"from\", \"value\"}");
  Json messages = Json::array();
  if (!member_of(object, "system").is_null()) {
    messages.push_back(message_of("system", string_of(object, "system", place)));
  }
  for (size_t i = 0; i < turns.size(); ++i) {
    Json& turn = turns[i];
    const std::string here = concat(place, ": conversations[", i, "]");
    check<ValueError>(turn.is_object(), here, " is a JSON ", turn.type_name(),
                      ", expected an object with \"from\" and \"value\"");
    if (turn.contains("role")) {
      messages.push_back(std::move(turn));
      continue;
    }
    const std::string speaker = string_of(turn, "from", here);
    const char* const role = role_of_speaker(speaker);
    check<ValueError>(role != nullptr, here, ".from is \"", speaker,
                      "\", expected human, gpt, system or tool (or one of their other names)");
    messages.push_back(message_of(role, string_of(turn, "value", here)));
  }
  return messages;
}

}  // namespace

Example parse_example(const std::string& line, const std::string& place) {
  data::JsonLine parsed = data::parse_json_line(line, place, kMaxNesting);
  Json& object = parsed.value;
  const auto has = [&](const char* name) { return !member_of(object, name).is_null(); };
  const bool prompted = has("prompt") || has("completion");
  const bool instructed = has("instruction") && has("output");
  const int kinds = (prompted ? 1 : 0) + (has("messages") ? 1 : 0) + (has("text") ? 1 : 0) +
                    (instructed && !prompted && !has("messages") && !has("text") ? 1 : 0) +
                    (has("conversations") && !has("messages") ? 1 : 0);
  check<ValueError>(kinds > 0, place, ": has none of ", kKinds);
  check<ValueError>(kinds == 1, place, ": has more than one of ", kKinds,
                    "; keep the one that is meant");
  Example example;
  if (prompted) {
    example.kind = ExampleKind::kPrompt;
    example.prompt = string_of(object, "prompt", place);
    example.completion = string_of(object, "completion", place);
    data::check_no_lone_surrogate(parsed, example.prompt, place);
  } else if (has("text")) {
    example.completion = string_of(object, "text", place);
  } else {
    example.kind = ExampleKind::kMessages;
    example.messages = has("messages")        ? std::move(object["messages"])
                       : has("conversations") ? messages_of_turns(object, place)
                                              : messages_of_instruction(object, place);
    check_messages(example.messages, place);
    if (parsed.has_lone_surrogate) {
      data::check_no_lone_surrogate(parsed, example.messages.dump(), place);
    }
  }
  data::check_no_lone_surrogate(parsed, example.completion, place);
  if (has("tools")) {
    check<ValueError>(example.kind == ExampleKind::kMessages, place,
                      ": has \"tools\" without \"messages\"");
    check<ValueError>(member_of(object, "tools").is_array(), place, ": \"tools\" is a JSON ",
                      member_of(object, "tools").type_name(), ", expected an array");
    example.tools = std::move(object["tools"]);
  }
  return example;
}

}  // namespace tapestry::sft
