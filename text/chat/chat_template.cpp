#include "text/chat/chat_template.h"

#include <utility>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "text/chat/interpreter.h"
#include "text/chat/parser.h"
#include "text/chat/text.h"
#include "text/util/utf8.h"

namespace tapestry::chat {

namespace {

// JSON as the values that Python's json.loads makes.
class Variables {
 public:
  Variables(jinja::Run& run, const std::string& name) : run_(run), name_(name) {}

  jinja::Value value_of(const Json& json, int level) const {
    if (level > jinja::kMaxValueDepth) {
      throw ValueError(
          concat(name_, ": a variable is nested more than ", jinja::kMaxValueDepth, " deep"));
    }
    switch (json.type()) {
      case Json::value_t::null:
        return jinja::None{};
      case Json::value_t::boolean:
        return jinja::Value(json.get<bool>());
      case Json::value_t::number_integer:
        return jinja::Value(json.get<int64_t>());
      case Json::value_t::number_unsigned:
        return unsigned_value(json.get<uint64_t>());
      case Json::value_t::number_float:
        return jinja::Value(json.get<double>());
      case Json::value_t::string:
        return jinja::Value(checked_text(json.get_ref<const std::string&>()));
      case Json::value_t::array: {
        jinja::Values items;
        for (const Json& item : json) {
          items.push_back(value_of(item, level + 1));
        }
        return run_.list(std::move(items));
      }
      case Json::value_t::object: {
        auto dict = std::make_shared<jinja::Dict>();
        for (const auto& [key, value] : json.items()) {
          run_.set(*dict, jinja::Value(checked_text(key)), value_of(value, level + 1));
        }
        return run_.dict(std::move(dict));
      }
      default:
        throw ValueError(concat(name_, ": a variable is no JSON"));
    }
  }

 private:
  jinja::Value unsigned_value(uint64_t number) const {
    if (number > static_cast<uint64_t>(INT64_MAX)) {
      throw ValueError(concat(name_, ": a variable has the integer ", number,
                              ", which is beyond 64 bits with a sign"));
    }
    return jinja::Value(static_cast<int64_t>(number));
  }

  const std::string& checked_text(const std::string& text) const {
    if (!data::is_valid_utf8(text)) {
      throw ValueError(concat(name_, ": a variable has a text that is not UTF-8"));
    }
    return text;
  }

  jinja::Run& run_;
  const std::string& name_;
};

}  // namespace

struct ChatTemplate::Parsed {
  std::string source;
  std::string name;
  jinja::Syntax syntax;
};

ChatTemplate::ChatTemplate(std::string source, std::string name) {
  auto parsed = std::make_shared<Parsed>();
  parsed->source = std::move(source);
  parsed->name = std::move(name);
  parsed->syntax = jinja::parse(parsed->source, parsed->name);
  parsed_ = std::move(parsed);
}

const std::string& ChatTemplate::source() const { return parsed_->source; }
const std::string& ChatTemplate::name() const { return parsed_->name; }

std::string ChatTemplate::render(const Json& variables,
                                 const RenderLimits& limits,
                                 std::optional<std::time_t> now,
                                 GenerationMarks* marks) const {
  const std::string& name = parsed_->name;
  if (!variables.is_object()) {
    throw ValueError(
        concat(name, ": the variables must be an object, not a JSON ", variables.type_name()));
  }
  jinja::Run run(name, limits, now);
  const auto scope = std::make_shared<jinja::Scope>(nullptr);
  const Variables converted(run, name);
  const std::vector<std::string>& names = parsed_->syntax.names;
  for (size_t i = 0; i < names.size(); ++i) {
    if (const auto found = variables.find(names[i]); found != variables.end()) {
      scope->set(static_cast<jinja::Symbol>(i), converted.value_of(*found, 1));
    }
  }
  std::string text = jinja::Interpreter(run, parsed_->syntax).render(scope);
  if (marks != nullptr) {
    *marks = run.marks();
  }
  return text;
}

}  // namespace tapestry::chat
