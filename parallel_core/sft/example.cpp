#include "parallel_core/sft/example.h"

#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::sft {
namespace {

// The value of a member; null where it is missing.
const Json& member_of(const Json& object, const char* name) {
  static const Json kNone;
  const auto found = object.find(name);
  return found == object.end() ? kNone : *found;
}

Json parse_object(std::string_view line, const std::string& place) {
  Json object;
  try {
    object =
        Json::parse(line, [&place](int depth, Json::parse_event_t /*event*/, Json& /*parsed*/) {
          check<ValueError>(depth <= kMaxNesting, place, ": nests arrays and objects more than ",
                            kMaxNesting, " deep");
          return true;
        });
  } catch (const Json::exception& error) {
    throw ValueError(concat(place, ": is not valid JSON in UTF-8: ", error.what()));
  }
  check<ValueError>(object.is_object(), place, ": is a JSON ", object.type_name(),
                    ", expected an object with \"prompt\" and \"completion\", \"messages\", or "
                    "\"text\"");
  return object;
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

}  // namespace

Example parse_example(std::string_view line, const std::string& place) {
  Json object = parse_object(line, place);
  const auto has = [&](const char* name) { return !member_of(object, name).is_null(); };
  const bool prompted = has("prompt") || has("completion");
  const int kinds = (prompted ? 1 : 0) + (has("messages") ? 1 : 0) + (has("text") ? 1 : 0);
  check<ValueError>(kinds > 0, place,
                    ": has none of \"prompt\" with \"completion\", \"messages\", \"text\"");
  check<ValueError>(kinds == 1, place,
                    ": has more than one of \"prompt\" with \"completion\", \"messages\", "
                    "\"text\"; keep the one that is meant");
  Example example;
  if (prompted) {
    example.kind = ExampleKind::kPrompt;
    example.prompt = string_of(object, "prompt", place);
    example.completion = string_of(object, "completion", place);
  } else if (has("text")) {
    example.completion = string_of(object, "text", place);
  } else {
    example.kind = ExampleKind::kMessages;
    check_messages(member_of(object, "messages"), place);
    example.messages = std::move(object["messages"]);
  }
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
