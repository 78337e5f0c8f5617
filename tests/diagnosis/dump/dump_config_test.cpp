#include "diagnosis/dump/dump_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "autograd/tensor/error.h"
#include "tests/diagnosis/dump/dump_testing.h"
#include "tests/message_of.h"

namespace tapestry::dump {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// The error that a file of this text gives.
template <class E = ValueError>
std::string error_of(const std::string& text) {
  const std::string file = fresh_folder() + "/wrong.json";
  write_text(file, text);
  return message_of<E>([&] { read_dump_config(file); });
}
/// The same of a file whose common_dump_settings have these fields beside a path.
std::string common_error(const std::string& fields) {
  return error_of(R"({"common_dump_settings": {"path": "/tmp/x", )" + fields + "}}");
}
std::string e2e_error(const std::string& fields) {
  return error_of(R"({"common_dump_settings": {"path": "/tmp/x"}, "e2e_dump_settings": {)" +
                  fields + "}}");
}

TEST(DumpConfig, ARelativePathLiesInTheCurrentFolder) {
  const std::string file = fresh_folder() + "/dump.json";
  write_text(file, R"({"common_dump_settings": {"path": "./dumps/first"}})");
  EXPECT_EQ(read_dump_config(file).path,
            (std::filesystem::current_path() / "dumps" / "first").string());
}

TEST(DumpConfig, TheGuidesExample) {
  const std::string folder = fresh_folder();
  write_text(folder + "/dump.json", R"x({
    "common_dump_settings": {
        "op_debug_mode": 0,
        "dump_mode": 1,
        "path": "/absolute_path",
        "net_name": "ResNet50",
        "iteration": "0|5-8|100-120",
        "saved_data": "full",
        "input_output": 1,
        "kernels": ["Default/Conv-op12", "conv", "name-regex(Default/.+)"],
        "support_device": [0, 2],
        "statistic_category": ["max", "min", "l2norm", "negative zero count", "md5", "bits"],
        "file_format": "npy",
        "overflow_number": 0
    },
    "e2e_dump_settings": {
        "enable": true,
        "trans_flag": true,
        "stat_calc_mode": "host",
        "device_stat_precision_mode": "high",
        "sample_mode": 1,
        "sample_num": 50,
        "save_kernel_args": true
    }
})x");
  const DumpConfig config = read_dump_config(folder + "/dump.json");
  EXPECT_FALSE(config.only_overflow);
  EXPECT_TRUE(config.only_kernels);
  EXPECT_EQ(config.path, "/absolute_path");
  EXPECT_EQ(config.net_name, "ResNet50");
  EXPECT_TRUE(config.saves_values());
  EXPECT_TRUE(config.saves_statistics());
  EXPECT_TRUE(config.inputs);
  EXPECT_FALSE(config.outputs);
  EXPECT_TRUE(config.wants_device(2));
  EXPECT_FALSE(config.wants_device(1));
  EXPECT_TRUE(config.statistic_category.has(Statistic::kNegativeZeroCount));
  EXPECT_TRUE(config.statistic_category.has(Statistic::kBits));
  EXPECT_FALSE(config.statistic_category.has(Statistic::kAvg));
  EXPECT_EQ(config.sample_num, 50);
  EXPECT_TRUE(config.save_kernel_args);
  EXPECT_EQ(config.text, text_of(folder + "/dump.json"));
}

TEST(DumpConfig, DefaultsAreTheGuides) {
  const DumpConfig config = config_in(fresh_folder());
  EXPECT_TRUE(config.saves_values());
  EXPECT_FALSE(config.saves_statistics());
  EXPECT_TRUE(config.inputs && config.outputs);
  EXPECT_TRUE(config.wants(0) && config.wants(1'000'000));
  EXPECT_TRUE(config.wants("MatMul", "anything"));
  EXPECT_TRUE(config.wants_device(7));
  EXPECT_FALSE(config.wants_device(8));
  EXPECT_EQ(config.statistic_category,
            (StatisticSet{Statistic::kMax, Statistic::kMin, Statistic::kL2Norm}));
  EXPECT_EQ(config.sample_num, 0);
}

TEST(DumpConfig, AnEmptyPathLiesBelowTheDiagnosticData) {
  const std::string folder = fresh_folder();
  write_text(folder + "/dump.json", R"({"common_dump_settings": {}})");
  ::setenv("MS_DIAGNOSTIC_DATA_PATH", "/some/where", 1);
  EXPECT_EQ(read_dump_config(folder + "/dump.json").path, "/some/where/debug_dump");
  ::unsetenv("MS_DIAGNOSTIC_DATA_PATH");
  EXPECT_THAT(message_of<ValueError>([&] { read_dump_config(folder + "/dump.json"); }),
              AllOf(HasSubstr("dump.json: common_dump_settings.path"),
                    HasSubstr("MS_DIAGNOSTIC_DATA_PATH")));
}

TEST(DumpConfig, WhatIsWrongIsNamedWithFileAndField) {
  EXPECT_THAT(error_of<IoError>("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("common_dump_settings"));
  EXPECT_THAT(error_of("{}"), HasSubstr("common_dump_settings is missing"));
  EXPECT_THAT(error_of(R"({"common_dump_settings": 3})"), HasSubstr("is 3; expected an object"));
  EXPECT_THAT(error_of(R"({"common_dump_settings": {}, "async_dump_settings": {}})"),
              AllOf(HasSubstr("wrong.json"), HasSubstr("'async_dump_settings'")));
  EXPECT_THAT(common_error(R"("iterations": "0")"),
              HasSubstr("unknown field 'iterations'; the nearest is 'iteration'"));
  EXPECT_THAT(common_error(R"("op_debug_mode": 1)"),
              AllOf(HasSubstr("wrong.json: common_dump_settings.op_debug_mode"), HasSubstr("1")));
  EXPECT_THAT(common_error(R"("op_debug_mode": 4)"), HasSubstr("does not exist here"));
  EXPECT_THAT(common_error(R"("op_debug_mode": "0")"), HasSubstr("is no integer from 0 to 4"));
  EXPECT_THAT(common_error(R"("dump_mode": 2)"), HasSubstr("set_dump"));
  EXPECT_THAT(common_error(R"("dump_mode": 1)"), HasSubstr("there are none"));
  EXPECT_THAT(common_error(R"("dump_mode": 1, "kernels": [])"), HasSubstr("there are none"));
  EXPECT_THAT(common_error("\"kernels\": [\"name-regex(()\"]"), HasSubstr("no regular expression"));
  EXPECT_THAT(common_error("\"kernels\": [\"name-regex(a\"]"), HasSubstr("closing parenthesis"));
  EXPECT_THAT(common_error(R"("kernels": [""])"), HasSubstr("names no op"));
  EXPECT_THAT(common_error(R"("kernels": "conv")"), HasSubstr("is no list"));
  EXPECT_THAT(common_error(R"("net_name": "a/b")"), HasSubstr("'a/b' is no name of a folder"));
  EXPECT_THAT(common_error(R"("net_name": 3)"), HasSubstr("3 is no text"));
  EXPECT_THAT(common_error(R"("saved_data": "all")"),
              HasSubstr("'all' is none of tensor, statistic, full"));
  EXPECT_THAT(common_error(R"("input_output": 3)"), HasSubstr("3 is no integer from 0 to 2"));
  EXPECT_THAT(common_error(R"("support_device": [])"), HasSubstr("lists no device"));
  EXPECT_THAT(common_error(R"("support_device": [-1])"), HasSubstr("-1 is no integer"));
  EXPECT_THAT(common_error(R"("statistic_category": ["maximum"])"),
              AllOf(HasSubstr("'maximum' is none of max, min"), HasSubstr("l2norm, bits")));
  EXPECT_THAT(common_error(R"("statistic_category": [])"), HasSubstr("is empty"));
  EXPECT_THAT(common_error(R"("file_format": "bin")"), HasSubstr("always npy"));
  EXPECT_THAT(common_error(R"("overflow_number": -1)"), HasSubstr("from 0 on"));
  EXPECT_THAT(common_error(R"("overflow_number": 18446744073709551615)"), HasSubstr("from 0 on"));
  EXPECT_THAT(e2e_error(R"("enable": 1)"),
              HasSubstr("e2e_dump_settings.enable: 1 is neither true nor false"));
  EXPECT_THAT(e2e_error(R"("stat_calc_mode": "gpu")"), HasSubstr("'gpu' is none of host, device"));
  EXPECT_THAT(e2e_error(R"("sample_mode": 2)"), HasSubstr("2 is no integer from 0 to 1"));
  EXPECT_THAT(e2e_error(R"("sample_num": 0)"), HasSubstr("from 1 on"));
  EXPECT_THAT(message_of<IoError>([] { read_dump_config("/no/such/dump.json"); }),
              HasSubstr("/no/such/dump.json"));
}

TEST(IterationSet, RangesHaveBothEnds) {
  const IterationSet set(" 0| 5 - 8 |100-120");
  std::vector<int64_t> found;
  for (int64_t i = 0; i < 200; ++i) {
    if (set.contains(i)) {
      found.push_back(i);
    }
  }
  std::vector<int64_t> expected = {0, 5, 6, 7, 8};
  for (int64_t i = 100; i <= 120; ++i) {
    expected.push_back(i);
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(set.last(), 120);
  EXPECT_TRUE(IterationSet("all").contains(123456));
}

TEST(IterationSet, WhatIsNoListIsRefused) {
  for (const char* text :
       {"", "a", "1|", "|1", "-1", "3-", "1--2", "1.5", "0|5-8-9", "1 2", "99999999999999999999"}) {
    EXPECT_THAT(message_of<ValueError>([&] { const IterationSet set(text); }),
                HasSubstr("0|5-8|100-120"))
        << text;
  }
  EXPECT_THAT(message_of<ValueError>([] { const IterationSet set("8-5"); }),
              HasSubstr("'8-5' in \"8-5\" ends before it begins"));
}

TEST(KernelPattern, WholeNamesTypesAndExpressions) {
  const KernelPattern whole("Default/Conv-op12");
  EXPECT_TRUE(whole.matches("Conv2D", "Default/Conv-op12"));
  EXPECT_FALSE(whole.matches("Conv2D", "Default/Conv-op120"));
  const KernelPattern type("conv");
  EXPECT_TRUE(type.matches("Conv2D", "Default/a"));
  EXPECT_TRUE(type.matches("Conv3D", "Default/a"));
  EXPECT_TRUE(type.matches("x", "Default/Conv2D-op3"));
  EXPECT_FALSE(type.matches("MatMul", "Default/MatMul-op3"));
  const KernelPattern expression(R"(name-regex(layers\.[01]\.attention\..*))");
  EXPECT_TRUE(expression.matches("x", "layers.1.attention.q"));
  EXPECT_FALSE(expression.matches("x", "layers.2.attention.q"));
  EXPECT_FALSE(expression.matches("x", "Gradients/layers.1.attention.q"));  // all of the name
}

TEST(DumpConfig, DumpModeChoosesByKernels) {
  const std::string kernels = R"(, "kernels": ["matmul"], "dump_mode": )";
  const DumpConfig chosen = config_in(fresh_folder(), kernels + "1");
  EXPECT_TRUE(chosen.wants("MatMul", "a"));
  EXPECT_FALSE(chosen.wants("Add", "a"));
  const DumpConfig all = config_in(fresh_folder(), kernels + "0");
  EXPECT_TRUE(all.wants("Add", "a"));
}

}  // namespace
}  // namespace tapestry::dump
