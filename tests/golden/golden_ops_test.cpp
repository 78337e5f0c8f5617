// The ctest test `golden_ops`: the cases of TAPESTRY_GOLDEN_OPS (a directory), else the project's
// own small set; and that the comparison notices what it has to.
#include "tests/golden/golden_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "autograd/tensor/factory.h"

namespace tapestry::golden {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kOwnCases = "tests/data/golden_ops";

TEST(GoldenOps, CasesAgree) {
  const char* directory = std::getenv("TAPESTRY_GOLDEN_OPS");
  const Report report = run_golden_ops(directory != nullptr ? directory : kOwnCases);
  std::cout << report;
  EXPECT_THAT(report.failures, IsEmpty());
}

// A scratch copy of some of the project's own files.
class GoldenRunner : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() /
                 ("golden_ops_" + std::to_string(::getpid()) + "_" +
                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  void copy(const std::string& op, const std::string& as) {
    for (const char* extension : {".json", ".safetensors"}) {
      fs::copy_file(fs::path(kOwnCases) / (op + extension), directory_ / (as + extension));
    }
  }
  // Replaces every occurrence of one text in a file by another.
  void replace(const std::string& file, const std::string& from, const std::string& to) {
    std::ifstream in(directory_ / file);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    ASSERT_THAT(text, HasSubstr(from));
    for (size_t at = text.find(from); at != std::string::npos;
         at = text.find(from, at + to.size())) {
      text.replace(at, from.size(), to);
    }
    write(file, text);
  }
  void write(const std::string& file, const std::string& text) {
    std::ofstream(directory_ / file) << text;
  }
  Report run() const { return run_golden_ops(directory_.string()); }

  fs::path directory_;
};

TEST_F(GoldenRunner, PassesOverFilesBesideTheCases) {
  copy("mul", "mul");
  write("measured_spread.json", R"({"mul": 1e-7})");
  write("notes.json", "not JSON");
  write("README.md", "text");
  const Report report = run();
  EXPECT_THAT(report.failures, IsEmpty());
  EXPECT_GT(report.cases(), 0);
}

TEST_F(GoldenRunner, FailsWithoutCases) {
  EXPECT_THAT(run().failures, ::testing::ElementsAre(HasSubstr("no cases")));
  EXPECT_THAT(run_golden_ops((directory_ / "missing").string()).failures,
              ::testing::ElementsAre(HasSubstr("is not a directory")));
}

TEST_F(GoldenRunner, FailsOnAnUnknownOperation) {
  copy("mul", "mull");
  replace("mull.json", R"("op": "mul")", R"("op": "mull")");
  EXPECT_THAT(run().failures, ::testing::Contains(HasSubstr("'mull' is not known")));
}

TEST_F(GoldenRunner, ListsChains) {
  copy("mul", "mul");
  copy("mul", "chain_a");
  replace("chain_a.json", R"("op": "mul")", R"("op": "chain_a")");
  const Report report = run();
  EXPECT_THAT(report.failures, IsEmpty());
  EXPECT_THAT(report.skipped, ::testing::ElementsAre(HasSubstr("chain_a")));
}

TEST_F(GoldenRunner, NoticesAnotherFunction) {
  copy("mul", "div");
  replace("div.json", R"("op": "mul")", R"("op": "div")");
  const Report report = run();
  EXPECT_THAT(report.failures, ::testing::Contains(HasSubstr("output")));
  EXPECT_THAT(report.failures, ::testing::Contains(HasSubstr("grad.a")));
  EXPECT_THAT(report.failures, ::testing::Contains(HasSubstr("grad2.b")));
}

TEST_F(GoldenRunner, NoticesAnIgnoredArgument) {
  copy("mul", "mul");
  replace("mul.json", R"("attrs": {})", R"("attrs": {"alpha": 2})");
  EXPECT_THAT(run().failures, ::testing::Each(HasSubstr("attribute alpha was not used")));
  EXPECT_FALSE(run().failures.empty());
}

TEST_F(GoldenRunner, NoticesAMissingFile) {
  copy("mul", "mul");
  fs::remove(directory_ / "mul.safetensors");
  EXPECT_THAT(run().failures, ::testing::ElementsAre(HasSubstr("there is no")));
}

TEST_F(GoldenRunner, NoticesADamagedFile) {
  copy("mul", "mul");
  fs::resize_file(directory_ / "mul.safetensors", 100);
  EXPECT_FALSE(run().failures.empty());
}

TEST(GoldenCompare, DistanceIsRelativeToTheScale) {
  const Tensor expected = tensor({1, -2, 4});
  const Tensor actual = tensor({1, -2, 4.002F});
  EXPECT_NEAR(compare(actual, expected, 4, 1e-3).worst, 5e-4, 1e-7);
  EXPECT_THAT(compare(actual, expected, 4, 1e-3).problem, IsEmpty());
  EXPECT_THAT(compare(actual, expected, 4, 1e-4).problem, HasSubstr("element 2"));
}

TEST(GoldenCompare, KindsOfNumbersMatter) {
  const Tensor expected = tensor({INFINITY, NAN, 1});
  EXPECT_THAT(compare(tensor({INFINITY, NAN, 1}), expected, 1, 1e-3).problem, IsEmpty());
  EXPECT_THAT(compare(tensor({-INFINITY, NAN, 1}), expected, 1, 1e-3).problem,
              HasSubstr("element 0"));
  EXPECT_THAT(compare(tensor({INFINITY, 0, 1}), expected, 1, 1e-3).problem, HasSubstr("element 1"));
  EXPECT_THAT(compare(tensor({INFINITY, NAN, NAN}), expected, 1, 1e-3).problem,
              HasSubstr("element 2"));
  EXPECT_THAT(compare(expected.to(kFloat64), expected, 1, 1e-3).problem, HasSubstr("float64"));
  EXPECT_THAT(compare(expected.view({3, 1}), expected, 1, 1e-3).problem, HasSubstr("[3, 1]"));
}

TEST(GoldenPresent, LayoutsKeepTheValues) {
  const Tensor x = tensor({1, 2, 3, 4, 5, 6}).view({2, 3});
  const Tensor permuted = present(x, {{"kind", "permuted"}, {"perm", {1, 0}}});
  EXPECT_EQ(permuted.strides(), (Strides{1, 2}));
  EXPECT_EQ(permuted.to_vector<float>(), x.to_vector<float>());
  const Tensor strided = present(x, {{"kind", "strided"}, {"axis", 1}, {"step", 2}});
  EXPECT_EQ(strided.strides(), (Strides{6, 2}));
  EXPECT_EQ(strided.to_vector<float>(), x.to_vector<float>());
  const Tensor expanded = present(x, {{"kind", "expanded"}, {"axis", 0}});
  EXPECT_EQ(expanded.strides()[0], 0);
  EXPECT_EQ(expanded.to_vector<float>(), (std::vector<float>{1, 2, 3, 1, 2, 3}));
  EXPECT_THROW(present(x, {{"kind", "rotated"}, {"axis", 0}}), ValueError);
}

}  // namespace
}  // namespace tapestry::golden
