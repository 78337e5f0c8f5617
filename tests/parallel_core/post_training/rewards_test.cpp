#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/post_training/rewards/reward_function.h"

namespace tapestry::post_training {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Completions of one prompt, with their columns.
class Judged {
 public:
  explicit Judged(const std::vector<std::string>& texts, ordered_json columns = {{"answer", 12}}) {
    line_ = {{"prompt", "5 + 7 = "}};
    line_.update(columns);
    for (const std::string& text : texts) {
      ids_.emplace_back(text.size() + 1, 65);
    }
    for (size_t i = 0; i < texts.size(); ++i) {
      all_.push_back({.line = &line_, .text = texts[i], .prompt_ids = {}, .ids = ids_[i]});
    }
  }
  Judged(const Judged&) = delete;
  Judged& operator=(const Judged&) = delete;
  std::vector<double> by(RewardFunction& function) const { return function.rewards(all_); }
  std::vector<double> by(const std::string& text, double timeout = 20) const {
    return by(*make_reward_functions({text}, timeout).front());
  }

 private:
  ordered_json line_;
  std::vector<std::vector<int32_t>> ids_;
  std::vector<JudgedCompletion> all_;
};

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Rewards, PatternsAreFoundOrMatchAll) {
  const Judged judged({"12", "a 12 b", "", "x\n12"});
  EXPECT_THAT(judged.by("regex: \\b12\\b"), ElementsAre(1, 1, 0, 1));
  EXPECT_THAT(judged.by("format: [0-9]+"), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(judged.by("format:.*"), ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(judged.by("format: (?s).*"), ElementsAre(1, 1, 1, 1));
}

TEST(Rewards, ExactlyTheColumn) {
  const Judged judged({" 12\n", "12.0", "", "13"});
  EXPECT_THAT(judged.by("exact: answer"), ElementsAre(1, 0, 0, 0));
  const Judged text({"twelve", "12"}, {{"answer", " twelve "}});
  EXPECT_THAT(text.by("exact: answer"), ElementsAre(1, 0));
  const Judged none({"12", ""}, {{"answer", nullptr}});
  for (const double reward : none.by("exact: answer")) {
    EXPECT_TRUE(std::isnan(reward));
  }
  EXPECT_EQ(make_reward_functions({"exact: answer"}, 1).front()->column(), "answer");
}

TEST(Rewards, ExactlyTheFirstMatchOfAPattern) {
  const Judged judged({"so\n#### 12 or #### 13", "#### 13 #### 12", "12", "####12"});
  EXPECT_THAT(judged.by("exact: answer #### (\\d+)"), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(judged.by("exact: answer   \\d+"), ElementsAre(1, 0, 1, 1));
}

TEST(Rewards, Lengths) {
  const Judged judged({"", "abc", "abcdefg"});  // 1, 4, 8 tokens
  EXPECT_THAT(judged.by("length: 2..4"), ElementsAre(0, 1, 0));
  EXPECT_THAT(judged.by("length: 4"), ElementsAre(0.25, 1, 0));
}

TEST(Rewards, NamesAreKindsAndNumbers) {
  const auto functions =
      make_reward_functions({"regex: a", "exact: answer", "regex: b", "program: cat"}, 1);
  ASSERT_EQ(functions.size(), 4);
  EXPECT_EQ(functions[0]->name(), "regex");
  EXPECT_EQ(functions[1]->name(), "exact");
  EXPECT_EQ(functions[2]->name(), "regex_2");
  EXPECT_EQ(functions[3]->name(), "program");
}

TEST(Rewards, TextsThatAreNone) {
  const auto refused = [](const std::string& text) {
    return error_of([&] { make_reward_functions({text}, 1); });
  };
  EXPECT_THAT(refused("exact"), AllOf(HasSubstr("'exact'"), HasSubstr("KIND: ARGUMENT")));
  EXPECT_THAT(refused("judge: x"), AllOf(HasSubstr("'judge'"), HasSubstr("regex, exact")));
  EXPECT_THAT(refused("regex: ("), HasSubstr("no regular expression"));
  EXPECT_THAT(refused("exact: answer ("), HasSubstr("no regular expression"));
  EXPECT_THAT(refused("length: 4..2"), HasSubstr("MIN..MAX"));
  EXPECT_THAT(refused("length: 0"), HasSubstr("MIN..MAX"));
}

// A pattern that takes for ever on some text ends no run.
TEST(Rewards, PatternsOfTooManySteps) {
  const Judged judged({std::string(40, 'a') + "b", "aaa"});
  EXPECT_THAT(judged.by("format: (a|aa)+(a|aa)+(a|aa)+(a|aa)+$"), ElementsAre(0, 0));
}

// ---------------------------------------------------------------------------------- programs

class RewardPrograms : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("rewards-" + std::to_string(::getpid()) + "-" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  // A shell script that runs for each line of its input, $line.
  std::string script(const std::string& for_each_line) const {
    std::ofstream(path("reward.sh")) << "while IFS= read -r line; do\n"
                                     << for_each_line << "\ndone\n";
    return "program: exec /bin/sh " + path("reward.sh");
  }

  std::filesystem::path folder_;
};

TEST_F(RewardPrograms, GetTheLineAndAnswerInOrder) {
  const Judged judged({"12", "13", "z\"\n"});
  const std::string program = script(
      "printf '%s\\n' \"$line\" >> " + path("seen") +
      "\ncase \"$line\" in *'\"completion\":\"12\"'*) echo 1.5;; *'13'*) echo null;; *) echo "
      "-2e-1;; esac");
  const auto function = std::move(make_reward_functions({program}, 20).front());
  const std::vector<double> rewards = judged.by(*function);
  EXPECT_EQ(rewards[0], 1.5);
  EXPECT_TRUE(std::isnan(rewards[1]));
  EXPECT_EQ(rewards[2], -0.2);
  EXPECT_EQ(judged.by(*function)[2], -0.2) << "the same program is asked again";
  std::ifstream seen(path("seen"));
  std::string line;
  std::vector<std::string> completions;
  while (std::getline(seen, line)) {
    const auto json = ordered_json::parse(line);
    EXPECT_EQ(json["prompt"], "5 + 7 = ");
    EXPECT_EQ(json["answer"], 12);
    EXPECT_EQ(json["completion_ids"].size(), json["completion"].get<std::string>().size() + 1);
    completions.push_back(json["completion"]);
  }
  EXPECT_THAT(completions, ElementsAre("12", "13", "z\"\n", "12", "13", "z\"\n"));
}

// Far more than pipes hold, both ways and on standard error, by a program that reads all of its
// input before it answers.
TEST_F(RewardPrograms, NeverBlockOnFullPipes) {
  const std::vector<std::string> texts(300, std::string(3000, 'x'));
  const Judged judged(texts);
  const std::string program =
      "program: head -n 300 > " + path("all") + "; head -c 300000 /dev/zero | tr '\\0' e >&2; " +
      "awk '{ for (i = 0; i < 1000; ++i) printf \" \"; print (length($0) > 3000) }' " +
      path("all") + "; cat > /dev/null";
  const std::vector<double> rewards = judged.by(program);
  EXPECT_EQ(rewards, std::vector<double>(300, 1.0));
}

TEST_F(RewardPrograms, ThatEndAreStartedOnceMore) {
  const Judged judged({"a", "b", "c"});
  // Ends behind each second answer.
  const std::string program =
      "program: read -r line; echo 1; read -r line && echo 2 && echo gone >> " + path("ends");
  EXPECT_THAT(judged.by(program), ElementsAre(1, 2, 1));
  std::ifstream ends(path("ends"));
  std::string line;
  EXPECT_TRUE(std::getline(ends, line));
}

TEST_F(RewardPrograms, ThatEndAgainAreAnError) {
  const Judged judged({"good", "the bad one"});
  const std::string program =
      script("case \"$line\" in *bad*) echo went wrong >&2; exit 3;; *) echo 1;; esac");
  EXPECT_THAT(error_of([&] { judged.by(program); }),
              AllOf(HasSubstr("reward.sh"), HasSubstr("exit code 3"), HasSubstr("1 of 2 answers"),
                    HasSubstr("'the bad one'"), HasSubstr("'5 + 7 = '")));
  EXPECT_THAT(error_of([&] { judged.by("program: kill -SEGV $$"); }), HasSubstr("signal 11"));
  EXPECT_THAT(error_of([&] { judged.by("program: /no/such/program"); }),
              HasSubstr("exit code 127"));
}

TEST_F(RewardPrograms, ThatHangAreKilled) {
  const std::string program =
      "program: echo $$ >> " + path("pids") + "; read -r line; echo 1; trap '' TERM; sleep 1000";
  // The second start was asked for the rest alone, and answered the first of it.
  EXPECT_THAT(error_of([&] {
                Judged({"a", "b", "c"}).by(program, 0.3);
              }),
              AllOf(HasSubstr("has not answered for 0.3 s"), HasSubstr("reward_timeout"),
                    HasSubstr("flush"), HasSubstr("after 2 of 3 answers")));
  std::ifstream pids(path("pids"));
  int count = 0;
  for (pid_t pid = 0; pids >> pid; ++count) {
    EXPECT_NE(::kill(pid, 0), 0) << "no zombie and nothing that runs is left";
  }
  EXPECT_GE(count, 2);
}

TEST_F(RewardPrograms, ThatAnswerNonsense) {
  const Judged judged({"a", "b"});
  for (const std::string line : {"one", "nan", "[1]", "1 2", "\"1\"", "true", "1e999"}) {
    EXPECT_THAT(
        error_of([&] { judged.by(script("echo '" + line + "'")); }),
        AllOf(HasSubstr("answered '" + line + "'"), HasSubstr("completion 1"), HasSubstr("'a'")));
  }
  EXPECT_THAT(error_of([&] { judged.by(script("echo 1; echo 2; echo 3")); }),
              HasSubstr("more lines than there were completions"));
}

// One line too many that comes late is found before the next batch gets it for an answer.
TEST_F(RewardPrograms, LateLines) {
  const Judged judged({"a"});
  const auto function =
      std::move(make_reward_functions({script("echo 1; (sleep 0.2; echo 7) &")}, 20).front());
  EXPECT_THAT(judged.by(*function), ElementsAre(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_THAT(error_of([&] { judged.by(*function); }), HasSubstr("too many is '7'"));
}

TEST_F(RewardPrograms, EndWithTheirOwner) {
  const Judged judged({"a"});
  {
    const auto function = std::move(
        make_reward_functions(
            {"program: echo $$ > " + path("pid") + "; read -r line; echo 1; sleep 1000"}, 20)
            .front());
    EXPECT_THAT(judged.by(*function), ElementsAre(1));
  }
  pid_t pid = 0;
  std::ifstream(path("pid")) >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_NE(::kill(pid, 0), 0);
}

}  // namespace
}  // namespace tapestry::post_training
