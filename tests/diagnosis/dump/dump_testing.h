// Folders, configurations and made-up tensors of dumps.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "autograd/tensor/factory.h"
#include "diagnosis/dump/dump_config.h"
#include "diagnosis/dump/dump_writer.h"

namespace tapestry::dump {

inline std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// An empty folder of the running test's own.
inline std::string fresh_folder(const std::string& name = "dump") {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const auto path = std::filesystem::path(testing::TempDir()) / "tapestry_dump" /
                    (std::string(test->test_suite_name()) + "_" + test->name()) / name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path.string();
}

/// A configuration with the given fields (JSON, beginning with a comma) beside `path`.
inline DumpConfig config_in(const std::string& path,
                            const std::string& common = "",
                            const std::string& e2e = "") {
  const std::string file = path + "/dump.json";
  write_text(file, "{\"common_dump_settings\": {\"path\": \"" + path + "\"" + common +
                       "}, \"e2e_dump_settings\": {" + e2e + "}}");
  return read_dump_config(file);
}

/// from, from + 1/4, ...: exact in every floating type for small shapes.
inline Tensor numbered(const Shape& shape, double from = 0) {
  std::vector<float> values;
  for (int64_t i = 0; i < shape.numel(); ++i) {
    values.push_back(static_cast<float>(from + 0.25 * static_cast<double>(i)));
  }
  return tensor(values, shape);
}

}  // namespace tapestry::dump
