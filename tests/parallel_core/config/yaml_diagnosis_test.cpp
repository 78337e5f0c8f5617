#include "parallel_core/config/yaml/yaml_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "parallel_core/config/config.h"
#include "parallel_core/config/read/foreign_names.h"
#include "parallel_core/config/read/scalar_advice.h"
#include "parallel_core/config/read/unknown_names.h"

namespace tapestry::config {
namespace {

using ::testing::HasSubstr;

RawNode parsed(const std::string& text, std::vector<std::string>& errors) {
  return parse_yaml(text, {"f.yaml"}, /*fixed_place=*/false, errors);
}

std::string error_of(const std::string& text) {
  std::vector<std::string> errors;
  parsed(text, errors);
  return errors.empty() ? "(accepted)" : errors.front();
}

TEST(YamlDiagnosis, TextThatLooksOddIsNoMistake) {
  for (const char* text : {
           "a:\n  b: 'it''s'\n  c: it's\n",  // apostrophes
           "a:\n  b: \"x\\\"y\"\n  c: 1\n",  // an escaped quote
           "a:  # don't\n  b: 1\n",          // a comment
           "a:\n  b: [1,\n    2,\n    3]\n  c: {d: 1,\n    e: 2}\n",
           "a:\n  b: \"over\n    two lines\"\n  c: 1\n",
           "a:\n  b: |\n    'open: 1\n    \"open\n  c: 1\n",  // a block of text
           "a:\n  b:\n  - 0.9\n  - 0.95\n  c: 1\n",
           "a:\n  b:\n    - cell: x\n      rank: 3\n    - cell: y\n  c: 1\n",
           "a:\n\n  # b\n  b: 1\n  \n  c: http://x:80/y\n",
           "%YAML 1.2\n---\na: {b: '[', c: \"{\"}\n...\n",
       }) {
    EXPECT_EQ(error_of(text), "(accepted)") << text;
  }
}

TEST(YamlDiagnosis, TheFirstMistakeIsNamed) {
  const auto at = [](const std::string& text, const std::string& place, const std::string& what) {
    const std::string error = error_of(text);
    EXPECT_THAT(error, ::testing::StartsWith("f.yaml:" + place)) << text;
    EXPECT_THAT(error, HasSubstr(what)) << text;
  };
  at("a:\n  b: [1, 2\n  c: 1\nd:\n  e: 2\n",
     "2:6: a.b: ", "the bracket [ is not closed; add the ]");
  at("a:\n  b: {x: 1\nd:\n  e: 2\n", "2:6: a.b: ", "add the }");
  at("a:\n  b: \"1\n  c: 1\n", "2:6: a.b: ", "the quote \" is not closed");
  at("a:\n  b: 1\n   c: 2\n", "3:4: ", "further than `b` above it");
  at("a:\n    b: 1\n  c: 2\n", "3:3: a.c: ", "begin after 0 or 4 spaces");
  at("a\n  b: 1\n", "1:1: a: ", "a colon is missing after `a`");
  at("a: b: 1\n", "1:1: a: ", "two colons on one line");
  at("a:\n  b: *x\n", "2:6: a.b: ", "&x, which must stand further up");
  at("a:\n  b: 1\n\t\n  c: 2\n", "3:1: ", "a tab stands on this empty line");
  at("a:\n  b: %x\n", "2:6: a.b: ", "no value begins with %");
}

TEST(YamlDiagnosis, ShowsTheLine) {
  EXPECT_THAT(error_of("a:\n\tb: 1\n"), HasSubstr("\n    2 |  b: 1\n      | ^"));
  EXPECT_EQ(source_excerpt("x", 7, 1), "");
}

TEST(YamlDiagnosis, NoTextMakesItFail) {
  const std::string pieces = "ab:-#'\"[]{}*&%@`<|> \t\n,=1\xef\xbc\x9a\xc2\xa0";
  uint32_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (int k = 0; k < 24; ++k) {
      state = state * 1664525U + 1013904223U;
      text += pieces[(state >> 16U) % pieces.size()];
    }
    misread_fault(text);
    const YamlFault fault = yaml_fault(text, {3, 4, "parser"});
    EXPECT_NE(fault.message, "");
    EXPECT_GE(fault.line, 1);
    key_path_of_line(text, fault.line);
    source_excerpt(text, fault.line, fault.column);
    encoding_fault(text, "f");
  }
}

TEST(YamlDiagnosis, Encodings) {
  EXPECT_FALSE(encoding_fault("a: \xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80\n", "f"));
  const auto message = [](const char* text) {
    const auto fault = encoding_fault(text, "f.yaml");
    return fault ? concat(fault->line, ":", fault->column, " ", fault->message) : std::string();
  };
  EXPECT_THAT(message("a: 1\nb: \xfc\n"), HasSubstr("2:4 the byte 0xfc is no UTF-8; in Latin-1"));
  EXPECT_THAT(message("\xfe\xff"), HasSubstr("UTF-16"));
  EXPECT_THAT(message("\xc0\x80"), HasSubstr("1:1 the byte 0xc0"));
  EXPECT_THAT(message("\xed\xa0\x80"), HasSubstr("0xed"));
  EXPECT_THAT(message("\x80"), HasSubstr("this is no YAML file"));
}

TEST(NumberMeant, ReadsWhatIsNoYamlNumber) {
  const std::vector<std::pair<const char*, double>> numbers = {
      {"1_000", 1000}, {"1,000", 1000},  {"1,000,000", 1e6},  {"0x10", 16},
      {"0o17", 15},    {"0b101", 5},     {"1e3", 1000},       {"10k", 10000},
      {"2**10", 1024}, {"2^3", 8},       {"8*1024", 8192},    {"1/8", 0.125},
      {"10%", 0.1},    {"0,001", 0.001}, {"3e\u22124", 3e-4}, {"6*10**-4", 6e-4},
      {"7,", 7},       {"1e- 4", 1e-4},  {"0.1f", 0.1f}};
  for (const auto& [text, number] : numbers) {
    const std::optional<double> meant = number_meant(text);
    ASSERT_TRUE(meant) << text;
    EXPECT_NEAR(*meant, number, 1e-7 * number) << text;
  }
  for (const char* text : {"", "x", "one", "1/0", "k", "1,2,3", "--1", "0x", "1e999", "*", "2**"}) {
    EXPECT_FALSE(number_meant(text)) << text;
  }
}

// A row for a name that is known here would never be shown, one that points nowhere would mislead.
TEST(ForeignNames, StandForKeysThatThereAre) {
  std::set<std::string_view> names;
  for (const ForeignName& row : foreign_names()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " twice";
    EXPECT_FALSE(row.here.empty() && row.note.empty()) << row.name;
    EXPECT_EQ(row.use == ForeignName::Use::kNothing,
              row.use != ForeignName::Use::kMessage && row.here.empty())
        << row.name;
    for (const std::string_view here : split_text(row.here, '|')) {
      const size_t dot = here.find('.');
      EXPECT_NE(find_key(here.substr(0, dot), here.substr(dot + 1)), nullptr) << here;
    }
    for (const Section& section : schema()) {
      for (const Key& key : section.keys) {
        EXPECT_FALSE(key.name == row.name && row.here == concat(section.name, ".", key.name))
            << row.name;
      }
    }
  }
}

TEST(MergeKeys, TakeWhatIsNotGiven) {
  std::vector<std::string> errors;
  const RawNode root = parsed(
      "x-a: &a {p: 1, q: 2}\nx-b: &b {q: 3, r: 4}\nx-c: &c\n  <<: *b\n  s: 5\n"
      "one:\n  q: 6\n  <<: [*a, *c]\ntwo:\n  <<: *a\n  p: 7\nthree: {<<: *c, \"<<\": 8}\n",
      errors);
  EXPECT_THAT(errors, ::testing::IsEmpty());
  const auto shown = [&](const char* name) {
    std::string text;
    for (const auto& [key, value] : root.entries) {
      if (key.scalar == name) {
        for (const auto& [inner, number] : value.entries) {
          text += inner.scalar + number.scalar + number.place.text().substr(6) + " ";
        }
      }
    }
    return text;
  };
  EXPECT_EQ(shown("one"), "q6:7:6 p1:1:13 s5:5:6 r4:2:19 ");
  EXPECT_EQ(shown("two"), "p7:11:6 q2:1:19 ");
  EXPECT_EQ(shown("three"), "<<8:12:23 s5:5:6 q3:2:13 r4:2:19 ");
}

}  // namespace
}  // namespace tapestry::config
