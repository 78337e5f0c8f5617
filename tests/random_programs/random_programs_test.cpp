// The stored programs, or those of the file that TAPESTRY_RANDOM_PROGRAMS names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tests/random_programs/interpreter.h"

namespace tapestry::random_programs {
namespace {

using ::testing::HasSubstr;

void expect_what_pytorch_gives(const std::string& stored) {
  const char* named = std::getenv("TAPESTRY_RANDOM_PROGRAMS");
  const std::string path = named != nullptr ? named : "tests/random_programs/" + stored;
  std::ifstream file(path);
  ASSERT_TRUE(file) << "cannot read " << path;
  const std::vector<Program> programs = read_programs(file);
  ASSERT_FALSE(programs.empty()) << path << " has no programs";
  Totals totals;
  int64_t stricter = 0;
  for (const Program& program : programs) {
    const Report report = run_program(program, totals);
    stricter += report.outcome == Outcome::kStricter ? 1 : 0;
    EXPECT_NE(report.outcome, Outcome::kDiffers)
        << "seed " << program.seed << ", statement " << report.statement << ", "
        << program.statements[report.statement].text << ": " << report.reason;
  }
  std::cout << programs.size() << " programs, " << totals.statements << " statements, "
            << totals.tensors << " tensors compared (" << totals.zeros
            << " zeros in one library, none in the other), " << totals.refusals
            << " refusals alike, " << stricter
            << " programs end with a refusal of this library alone:\n";
  for (const auto& [reason, count] : totals.stricter) {
    std::cout << "  " << count << " " << reason << "\n";
  }
  for (const auto& [dtype, ratio] : totals.worst) {
    std::cout << "  largest distance, " << dtype << ": " << ratio << " of its bound\n";
  }
  EXPECT_LE(stricter * 10, static_cast<int64_t>(programs.size()));
}

TEST(RandomPrograms, GiveWhatPyTorchGives) { expect_what_pytorch_gives("sample.txt"); }

TEST(RandomPrograms, SaveWhatPyTorchSaves) {
  if (std::getenv("TAPESTRY_RANDOM_PROGRAMS") == nullptr) {  // those have been run above
    expect_what_pytorch_gives("saved.txt");
  }
}

// The interpreter finds what it is there for.
Report run(const std::string& text) {
  std::istringstream in(text);
  Totals totals;
  return run_program(read_programs(in).at(0), totals);
}

const char* const kProgram =
    "program 1\n"
    "leaf a f32 [2] grad values 2 3\n"
    "b = square a\n"
    "  b f32 [2] r 1e-5 4 9\n"
    "c = sum b axes=[] keepdim=0\n"
    "  c f32 [] r 1e-5 13\n"
    "backward c - roots=1\n"
    "  a.grad f32 [2] ? 1e-5 4 6\n"
    "backward c - roots=1\n"
    "  refused released\n";

std::string with(const std::string& what, const std::string& by) {
  std::string text = kProgram;
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

TEST(RandomProgramsInterpreter, AcceptsARightProgram) {
  const Report report = run(kProgram);
  EXPECT_EQ(report.outcome, Outcome::kAgrees) << report.reason;
  EXPECT_EQ(report.statement, 3U);
}

TEST(RandomProgramsInterpreter, FindsEveryKindOfDifference) {
  const std::vector<std::array<const char*, 3>> kCases{
      {"1e-5 4 9", "1e-5 4 9.1", "b element 1 is 9, expected 9.1"},
      {"1e-5 4 6", "1e-5 nan 6", "a.grad element 0"},
      {"b f32 [2] r", "b f64 [2] r", "expected f64 [2]"},
      {"b f32 [2] r", "b f32 [2,1] r", "expected f32 [2, 1]"},
      {"b f32 [2] r", "b f32 [2] l", "requires_grad"},
      {"b f32 [2] r", "b f32 [2] rl", "is_leaf"},
      {"a.grad f32 [2] ? 1e-5 4 6", "a.grad none", "expected none"},
      {"c f32 [] r 1e-5 13", "a.grad f32 [2] ? 1e-5 4 6", "undefined"},
      {"  c f32 [] r 1e-5 13", "  refused version", "is accepted, PyTorch refuses it: version"},
      {"b = square a", "b = bmm a a", "is refused: bmm"},
      {"b = square a", "b x = square a", "1 results"}};
  for (const auto& [what, by, reason] : kCases) {
    const Report report = run(with(what, by));
    EXPECT_EQ(report.outcome, Outcome::kDiffers) << by;
    EXPECT_THAT(report.reason, HasSubstr(reason)) << by;
  }
}

TEST(RandomProgramsInterpreter, LooksAtTheEndForWhatChangedUnseen) {
  const Report report =
      run("program 1\n"
          "leaf a f32 [2] values 2 3\n"
          "b = clone a\n"
          "  b f32 [2] l 0 2 3\n"
          "zero_ b\n");
  EXPECT_EQ(report.outcome, Outcome::kDiffers);
  EXPECT_THAT(report.reason, HasSubstr("at the end, b element 0 is 0"));
}

TEST(RandomProgramsInterpreter, TellsAStatedRefusalFromADifference) {
  const Report report =
      run("program 1\n"
          "leaf a f32 [2] grad values 2 3\n"
          "b = square a\n"
          "c = slice b axis=0 start=0 stop=1 step=1\n"
          "zero_ b\n");
  EXPECT_EQ(report.outcome, Outcome::kStricter);
  EXPECT_EQ(report.statement, 2U);
}

TEST(RandomProgramsInterpreter, TakesNoGradientForZeros) {
  EXPECT_EQ(run("program 1\n"
                "leaf a f32 [] grad values 2\n"
                "leaf b f32 [] grad values 2\n"
                "c d = grad b - a b roots=1\n"
                "  c f32 [] ? 0 0\n"
                "  d f32 [] ? 0 1\n"
                "e = add c d\n"
                "  e f32 [] ? 0 1\n"
                "backward b - roots=1\n"
                "  a.grad f32 [] ? 0 0\n"
                "  b.grad f32 [] ? 0 1\n")
                .reason,
            "");
}

// That a gradient is zero may be seen in its formula, or only in its values.
TEST(RandomProgramsInterpreter, TakesAZeroWithoutAGraphForOneWhoseGraphLeadsNowhere) {
  const std::string begin =
      "program 1\n"
      "leaf a f32 [] grad values 2\n"
      "leaf b f32 [] values 3\n";
  EXPECT_EQ(run(begin + "c = grad b - a roots=1\n  c none\n").reason, "");
  EXPECT_EQ(run(begin + "c d = grad a - a b roots=1\n  c f32 [] ? 0 1\n  d none\n").reason, "");
  EXPECT_EQ(run(begin + "c = grad b - a roots=1\n  c f32 [] ? 0 1\n").outcome, Outcome::kDiffers);
}

TEST(RandomProgramsInterpreter, NamesALineThatItCannotRead) {
  const auto message = [](const std::string& text) {
    std::istringstream in(text);
    try {
      read_programs(in);
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message("program 1\nleaf a f33 [2] values 1 2\n"),
              HasSubstr("line 2: unknown dtype"));
  EXPECT_THAT(message("program 1\nleaf a f32 [2] values 1\n"), HasSubstr("line 2"));
  EXPECT_THAT(message("program 1\nleaf a f32 2 values 1\n"), HasSubstr("not a list: 2"));
  EXPECT_THAT(message("t1 = neg a\n"), HasSubstr("no program has begun"));
  EXPECT_THAT(message("program 1\n  t1 none\n"), HasSubstr("no statement"));
}

}  // namespace
}  // namespace tapestry::random_programs
