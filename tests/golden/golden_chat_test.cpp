// Conversations whose text Jinja2 made, set up as transformers do.
//
// Reads the directory in TAPESTRY_GOLDEN_CHAT (cases.jsonl, templates/NAME.jinja), else the
// project's own small set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "tests/message_of.h"
#include "text/chat/chat_template.h"

namespace tapestry::chat {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path golden_folder() {
  const char* given = std::getenv("TAPESTRY_GOLDEN_CHAT");
  return given != nullptr && *given != '\0' ? fs::path(given) : fs::path("tests/data/golden_chat");
}

std::string read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<Json> golden_cases() {
  std::vector<Json> cases;
  std::ifstream file(golden_folder() / "cases.jsonl");
  for (std::string line; std::getline(file, line);) {
    cases.push_back(Json::parse(line));
  }
  return cases;
}

Json variables_of(const Json& golden) {
  Json variables = golden.value("extra", Json::object());
  for (const char* key : {"messages", "add_generation_prompt", "bos_token", "eos_token"}) {
    if (golden.contains(key)) {
      variables[key] = golden[key];
    }
  }
  return variables;
}

TEST(GoldenChat, EveryConversationHasItsText) {
  const std::vector<Json> cases = golden_cases();
  ASSERT_FALSE(cases.empty()) << golden_folder() << " has no cases";
  std::map<std::string, ChatTemplate> templates;
  int texts = 0;
  int errors = 0;
  for (const Json& golden : cases) {
    const auto name = golden["template"].get<std::string>();
    SCOPED_TRACE(name + ", case " + golden.value("n", Json()).dump());
    auto found = templates.find(name);
    if (found == templates.end()) {
      const fs::path path = golden_folder() / "templates" / (name + ".jinja");
      found = templates.emplace(name, ChatTemplate(read_bytes(path), path.string())).first;
    }
    const Json variables = variables_of(golden);
    if (golden.contains("text")) {
      ++texts;
      EXPECT_EQ(found->second.render(variables), golden["text"].get<std::string>());
      continue;
    }
    ++errors;
    EXPECT_THAT(message_of<ValueError>([&] { found->second.render(variables); }),
                HasSubstr(golden["error"].get<std::string>()));
  }
  std::cout << cases.size() << " cases: " << texts << " texts, " << errors << " errors, "
            << templates.size() << " templates\n";
}

}  // namespace
}  // namespace tapestry::chat
