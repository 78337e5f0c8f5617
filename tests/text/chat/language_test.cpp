// The language, against what Jinja2 makes of the same snippets (tests/data/make_chat_cases.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "tests/message_of.h"
#include "tests/says.h"
#include "text/chat/chat_template.h"

namespace tapestry::chat {
namespace {

using ::testing::HasSubstr;

std::string rendered(const std::string& source, const Json& variables) {
  return ChatTemplate(source).render(variables);
}

TEST(ChatLanguage, IsWhatJinja2Renders) {
  std::ifstream file("tests/data/chat_language/cases.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  const Json variables = Json::parse(line);
  int texts = 0;
  int errors = 0;
  int refused = 0;
  while (std::getline(file, line)) {
    const Json snippet = Json::parse(line);
    const auto source = snippet["template"].get<std::string>();
    SCOPED_TRACE(source);
    if (snippet.contains("text")) {
      ++texts;
      EXPECT_EQ(rendered(source, variables), snippet["text"].get<std::string>());
      continue;
    }
    const auto message = message_of<ValueError>([&] { rendered(source, variables); });
    EXPECT_THAT(message, HasSubstr("chat_template:"));
    if (snippet.contains("refused")) {
      ++refused;
      EXPECT_THAT(message, Says(snippet["refused"].get<std::string>()));
    } else {
      ++errors;
    }
  }
  EXPECT_GE(texts, 110);
  EXPECT_GE(errors, 40);
  EXPECT_GE(refused, 20);
}

// ---- What is refused is named with its line, when the template is read.

TEST(ChatLanguage, RefusesWithNameAndLineBeforeAnythingIsRendered) {
  const auto refusal = [](const std::string& source) {
    return message_of<ValueError>([&] { const ChatTemplate made(source, "folder/x.jinja"); });
  };
  EXPECT_THAT(refusal("a\n{% if false %}\n{{ x | escape }}\n{% endif %}"),
              HasSubstr("folder/x.jinja:3: filter 'escape' is not known here"));
  EXPECT_THAT(refusal("\n\n{% include 'x' %}"),
              HasSubstr("folder/x.jinja:3: statement 'include' is not known here"));
  EXPECT_THAT(refusal("{{ a is\n nothing }}"), HasSubstr(":2: test 'nothing' is not known here"));
  EXPECT_THAT(refusal("{{ a.\nencode('x') }}"), HasSubstr("method 'encode' is not known here"));
  EXPECT_THAT(refusal("{% for x in y %}\n{{ x }}"),
              Says(":2: ... template ends where ... 'endfor'"));
  EXPECT_THAT(refusal("{{ a"), HasSubstr(":1: a tag without its end '}}'"));
  EXPECT_THAT(refusal("\n{{ a ? b }}"), HasSubstr(":2: unexpected character '?'"));
  EXPECT_THAT(refusal("\xff"), HasSubstr("is not UTF-8"));
}

TEST(ChatLanguage, SaysTheLineOfWhatFailsWhenItIsRendered) {
  const auto failure = [](const std::string& source, const Json& variables) {
    return message_of<ValueError>([&] { rendered(source, variables); });
  };
  EXPECT_THAT(
      failure("{% for m in messages %}\n\n{{ m.a.b }}\n{% endfor %}", {{"messages", {{{"x", 1}}}}}),
      Says("chat_template:3: 'dict object' ... has no attribute ... 'a'"));
  EXPECT_THAT(failure("\n{{ raise_exception('roles\n differ') }}", Json::object()),
              HasSubstr("chat_template:2: roles\n differ"));
  EXPECT_THAT(failure("{% macro m(x) %}\n{{ x + 1 }}{% endmacro %}\n{{ m('a') }}", Json::object()),
              Says("chat_template:2: ... operands for + ... 'str' ... 'int'"));
}

// ---- Bounds.

TEST(ChatLanguage, StepsOutputAndNestingAreBounded) {
  const auto failure = [](const std::string& source) {
    return message_of<ValueError>(
        [&] { ChatTemplate(source).render(Json::object(), {.steps = 100'000, .bytes = 1 << 20}); });
  };
  const std::string many = "{% for a in range(100000) %}";
  EXPECT_THAT(failure(many + many + "{% endfor %}{% endfor %}"), HasSubstr("steps"));
  EXPECT_THAT(failure("{{ 'abc' * 10000000 }}"), HasSubstr("bytes"));
  EXPECT_THAT(failure("{% set ns = namespace(x='ab') %}{% for i in range(64) %}"
                      "{% set ns.x = ns.x + ns.x %}{% endfor %}"),
              HasSubstr("bytes"));
  EXPECT_THAT(failure("{% set ns = namespace(x=[1]) %}{% for i in range(64) %}"
                      "{% set ns.x = ns.x + ns.x %}{% endfor %}"),
              HasSubstr("steps"));
  EXPECT_THAT(failure("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}"),
              HasSubstr("nested more than"));
  EXPECT_THAT(failure("{% set ns = namespace(x=[]) %}{% for i in range(5000) %}"
                      "{% set ns.x = [ns.x] %}{% endfor %}"),
              HasSubstr("nested more than"));
  EXPECT_THAT(failure("{{ range(100001) }}"), HasSubstr("range: more than 100000"));
  EXPECT_THAT(failure("{{ range(-9223372036854775807, 9223372036854775807) }}"),
              HasSubstr("range: more than 100000"));
  EXPECT_THAT(message_of<ValueError>(
                  [] { ChatTemplate("{{ range(101) }}").render(Json::object(), {.steps = 100}); }),
              HasSubstr("steps"));
  EXPECT_EQ(rendered("{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807)"
                     " | list }}",
                     Json::object()),
            "[-9223372036854775807, 0]");
  // Lists that share their elements: comparing them would take 2^60 steps.
  EXPECT_THAT(failure("{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}"
                      "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}"
                      "{{ ns.a == ns.b }}"),
              HasSubstr("steps"));
  EXPECT_THAT(failure("{% set ns = namespace(a=[1]) %}{% for i in range(60) %}"
                      "{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a | tojson }}"),
              ::testing::AnyOf(HasSubstr("steps"), HasSubstr("bytes")));
}

// What a template does with long texts counts by their bytes, whatever the call.
TEST(ChatLanguage, StepsCountWorkNotCalls) {
  const std::string source =
      "{% set a = 'a' * 1200000 %}{% set b = 'a' * 600000 ~ 'b' %}{% set e = 'é' * 600000 %}"
      "{% set keys = {'k': 1} %}{% for i in range(20000) %}";
  for (const char* work : {"b in a",
                           "a.find(b)",
                           "a.rfind('b' ~ b)",
                           "a.count(b)",
                           "a.index('a', 5)",
                           "a.strip('b')",
                           "a.strip()",
                           "a.strip(a)",
                           "a.lstrip(b)",
                           "a | trim('a')",
                           "a.title()",
                           "a | title",
                           "a | upper | length",
                           "a | lower | length",
                           "a.capitalize()",
                           "a.splitlines()",
                           "(e ~ 'z').splitlines()",
                           "a.split('b')",
                           "a.rsplit(b)",
                           "a.split()",
                           "a.replace(b, '')",
                           "a.replace('', 'b')",
                           "a.replace('a', '')",
                           "a | replace('a', 'b')",
                           "a.partition(b)",
                           "a.startswith(a)",
                           "a.endswith(a)",
                           "a.removeprefix(a)",
                           "a.isdigit()",
                           "a is lower",
                           "a | int",
                           "a | float",
                           "a | indent",
                           "a[::-1] | length",
                           "e[5]",
                           "e[1:3]",
                           "e[::2] | length",
                           "e | length",
                           "a | list | length",
                           "a | reverse | length",
                           "a | tojson",
                           "[a] | string | length",
                           "a == b",
                           "a < a ~ 'b'",
                           "keys[a] is defined",
                           "keys.get(a)",
                           "a in keys",
                           "a | safe + a",
                           "'' + (a | safe)",
                           "[a, b] | join | length",
                           "'x'.join([a, b]) | length",
                           "a ~ b",
                           "a + b",
                           "[a, b] | sort | length",
                           "[a] | map(attribute=a) | list",
                           "[a, b] | unique | list | length",
                           "'b' * 1200000"}) {
    SCOPED_TRACE(work);
    const std::string expression = concat(source, "{% set x = ", work, " %}{% endfor %}");
    EXPECT_THAT(message_of<ValueError>(
                    [&] { ChatTemplate(expression).render(Json::object(), {.steps = 200'000}); }),
                HasSubstr("chat_template:1: "));
  }
}

TEST(ChatLanguage, DeepSourcesAreRefused) {
  const auto refusal = [](const std::string& source) {
    return message_of<ValueError>([&] { const ChatTemplate made(source); });
  };
  const auto times = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) {
      out += text;
    }
    return out;
  };
  constexpr int kDeep = 100'000;
  EXPECT_THAT(refusal("{{ " + times("(", kDeep) + "a" + times(")", kDeep) + " }}"),
              HasSubstr("nested more than"));
  EXPECT_THAT(refusal("{{ " + times("[", kDeep) + times("]", kDeep) + " }}"),
              HasSubstr("nested more than"));
  EXPECT_THAT(refusal("{{ " + times("not ", kDeep) + "a }}"), HasSubstr("nested more than"));
  EXPECT_THAT(refusal("{{ " + times("-", kDeep) + "a }}"), HasSubstr("nested more than"));
  EXPECT_THAT(refusal("{{ a" + times("+a", kDeep) + " }}"), HasSubstr("nested more than"));
  EXPECT_THAT(refusal("{{ a" + times(".b", kDeep) + " }}"), HasSubstr("nested more than"));
  EXPECT_THAT(refusal("{{ a" + times("|list", kDeep) + " }}"), HasSubstr("nested more than"));
  EXPECT_THAT(refusal("{{ a" + times(" if b else c", kDeep) + " }}"),
              HasSubstr("nested more than"));
  EXPECT_THAT(refusal(times("{% if a %}", kDeep)), HasSubstr("nested more than"));
  EXPECT_THAT(refusal("{% set " + times("(", kDeep) + "a" + times(")", kDeep) + " = 1 %}"),
              HasSubstr("nested more than"));
}

TEST(ChatLanguage, VariablesAreJsonThatPythonCouldHold) {
  const ChatTemplate shown("{{ x }}");
  EXPECT_EQ(shown.render({{"x", {{"a", {1, 2.0, nullptr, true, "é"}}}}}),
            "{'a': [1, 2.0, None, True, 'é']}");
  EXPECT_THAT(message_of<ValueError>([&] { shown.render(Json::array()); }), HasSubstr("object"));
  EXPECT_THAT(message_of<ValueError>([&] {
                shown.render({{"x", UINT64_MAX}});
              }),
              HasSubstr("beyond 64 bits"));
  EXPECT_THAT(message_of<ValueError>([&] { shown.render({{"x", "\xff"}}); }), HasSubstr("UTF-8"));
  Json deep = 1;
  for (int i = 0; i < 300; ++i) {
    deep = Json::array({deep});
  }
  EXPECT_THAT(message_of<ValueError>([&] { shown.render({{"x", deep}}); }), HasSubstr("nested"));
}

TEST(ChatLanguage, TellsTheDayOnlyWhenItIsGiven) {
  const ChatTemplate dated("{{ strftime_now('%Y') if strftime_now is defined else 'no day' }}");
  EXPECT_EQ(dated.render(Json::object()), "no day");
  constexpr std::time_t kMidYear = 1'718'000'000;  // June 2024 in every time zone
  EXPECT_EQ(dated.render(Json::object(), {}, kMidYear), "2024");
  EXPECT_THAT(message_of<ValueError>(
                  [&] { ChatTemplate("{{ strftime_now('%Y') }}").render(Json::object()); }),
              HasSubstr("'strftime_now' is undefined"));
}

}  // namespace
}  // namespace tapestry::chat
