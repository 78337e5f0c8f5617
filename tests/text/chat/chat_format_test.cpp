// Folders of models.
#include "text/chat/chat_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "tests/message_of.h"

namespace tapestry::chat {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ChatFormatFolder : public ::testing::Test {
 protected:
  ChatFormatFolder() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / (std::string("tapestry_chat_") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~ChatFormatFolder() override { fs::remove_all(folder_); }

  void put(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  std::string path() const { return folder_.string(); }

  const Json messages_ = Json::array({{{"role", "user"}, {"content", "Hi"}}});

 private:
  fs::path folder_;
};

TEST_F(ChatFormatFolder, HasNoneWithoutATemplate) {
  EXPECT_FALSE(read_chat_format(path()));
  put("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": null})");
  EXPECT_FALSE(read_chat_format(path()));
}

TEST_F(ChatFormatFolder, TakesTheTemplateAndTokensOfTheTokenizerConfig) {
  put("tokenizer_config.json",
      R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "unk_token": null,
          "add_bos_token": true,
          "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}{{ pad_token }}{{ unk_token is defined }}{{ tools is none }}{% if add_generation_prompt %}>{% endif %}"})");
  put("special_tokens_map.json", R"({"eos_token": "<other>", "pad_token": {"content": "<pad>"}})");
  const auto format = read_chat_format(path());
  ASSERT_TRUE(format);
  EXPECT_EQ(format->bos_token, "<s>");
  EXPECT_EQ(format->eos_token, "</s>");
  EXPECT_EQ(format->render(messages_, true), "<s>Hi</s><pad>FalseTrue>");
  EXPECT_EQ(format->render(messages_, false, {{"tools", Json::array()}}),
            "<s>Hi</s><pad>FalseFalse");
}

TEST_F(ChatFormatFolder, TakesTheFileBeforeTheConfigAndItsBytesAsTheyAre) {
  put("tokenizer_config.json", R"({"chat_template": "config"})");
  put("chat_template.json", R"({"chat_template": "json"})");
  EXPECT_EQ(read_chat_format(path())->render(messages_, false), "json");
  put("chat_template.jinja", "file {{ messages[0].role }}\r\n\n");
  EXPECT_EQ(read_chat_format(path())->render(messages_, false), "file user\n");
}

TEST_F(ChatFormatFolder, TakesATemplateOfAListByName) {
  put("tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "plain"},
                            {"name": "tool_use", "template": "{{ tools | length }} tools"},
                            {"name": "rag", "template": "documents"}]})");
  const auto format = read_chat_format(path());
  EXPECT_EQ(format->render(messages_, false), "plain");
  EXPECT_EQ(format->render(messages_, false, {{"tools", {1, 2}}}), "2 tools");
  EXPECT_EQ(read_chat_format(path(), "rag")->render(messages_, false), "documents");
  EXPECT_THAT(message_of<ValueError>([&] { read_chat_format(path(), "none"); }),
              HasSubstr("there is no chat template 'none', there are: default, tool_use, rag"));
}

TEST_F(ChatFormatFolder, NamesFileAndFieldOfWhatIsWrong) {
  const auto failure = [&] { return message_of<IoError>([&] { read_chat_format(path()); }); };
  put("tokenizer_config.json", "{");
  EXPECT_THAT(failure(), HasSubstr("tokenizer_config.json: is no JSON"));
  put("tokenizer_config.json", "[]");
  EXPECT_THAT(failure(), HasSubstr("tokenizer_config.json: is a JSON array"));
  put("tokenizer_config.json", R"({"chat_template": 1})");
  EXPECT_THAT(failure(), HasSubstr("field chat_template: a JSON number"));
  put("tokenizer_config.json", R"({"chat_template": [{"name": "default"}]})");
  EXPECT_THAT(failure(), HasSubstr("field chat_template: an element has no text 'template'"));
  put("tokenizer_config.json", R"({"chat_template": "\n{{ x | escape }}"})");
  EXPECT_THAT(message_of<ValueError>([&] { read_chat_format(path()); }),
              HasSubstr("tokenizer_config.json:2: filter 'escape' is not known here"));
}

TEST_F(ChatFormatFolder, TakesListsOfMessagesAndObjectsOfVariablesAlone) {
  put("chat_template.jinja", "x");
  const auto format = read_chat_format(path());
  EXPECT_THAT(message_of<ValueError>([&] { format->render(Json::object(), false); }),
              HasSubstr("messages must be a list"));
  EXPECT_THAT(message_of<ValueError>([&] { format->render(messages_, false, Json::array()); }),
              HasSubstr("must be an object"));
}

TEST_F(ChatFormatFolder, TellsTheDayThatItIsGiven) {
  put("chat_template.jinja", "{{ strftime_now('%Y') if strftime_now is defined else 'fixed' }}");
  auto format = *read_chat_format(path());
  EXPECT_EQ(format.render(messages_, false), "fixed");
  format.now = 1'718'000'000;
  EXPECT_EQ(format.render(messages_, false), "2024");
}

}  // namespace
}  // namespace tapestry::chat
