#include "diagnosis/dump/rounding_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/diagnosis/dump/dump_testing.h"
#include "tests/message_of.h"

namespace tapestry::dump {
namespace {

using testing::HasSubstr;

TEST(RoundingFile, ComesBackAsItWas) {
  const std::string path = rounding_path(fresh_folder());
  const std::vector<RoundingRow> rows = {
      {"layers.0.attention.q", false, 0, "forward", 2, 1.25e-7},
      {"Gradients/a,b", true, 3, "backward", 0, 0},
  };
  write_rounding(path, rows);
  EXPECT_THAT(text_of(path), HasSubstr("Op Name,IO,Slot,Pass,Iteration,Distance\n"
                                       "layers.0.attention.q,output,0,forward,2,1.25e-07\n"));
  const std::vector<RoundingRow> found = read_rounding(path);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].op_name, rows[0].op_name);
  EXPECT_EQ(found[0].distance, 1.25e-7);
  EXPECT_EQ(found[0].iteration, 2);
  EXPECT_EQ(found[1].op_name, rows[1].op_name);
  EXPECT_TRUE(found[1].input);
  EXPECT_EQ(found[1].slot, 3);
  EXPECT_EQ(found[1].pass, "backward");
}

TEST(RoundingFile, WhatIsWrongIsNamed) {
  const std::string path = rounding_path(fresh_folder());
  EXPECT_THAT(message_of<ValueError>([&] {
                write_rounding(path, {{"a", false, 0, "forward", 0, std::nan("")}});
              }),
              HasSubstr("a moves by nan"));
  EXPECT_THAT(message_of<IoError>([&] { read_rounding(path); }), HasSubstr("rounding.csv"));
  const auto error_of = [&](const std::string& row) {
    write_text(path, "Op Name,IO,Slot,Pass,Iteration,Distance\n" + row + "\n");
    return message_of<IoError>([&] { read_rounding(path); });
  };
  EXPECT_THAT(error_of("a,in,0,forward,0,1"), HasSubstr("line 2: IO: 'in' is neither"));
  EXPECT_THAT(error_of("a,input,x,forward,0,1"), HasSubstr("Slot: 'x' is no integer"));
  EXPECT_THAT(error_of("a,input,0,forward,-1,1"), HasSubstr("Iteration: '-1'"));
  EXPECT_THAT(error_of("a,input,0,forward,0,inf"), HasSubstr("Distance: 'inf'"));
  EXPECT_THAT(error_of("a,input,0,forward,0,-1"), HasSubstr("Distance: '-1'"));
  write_text(path, "Op Name,IO\n");
  EXPECT_THAT(message_of<IoError>([&] { read_rounding(path); }), HasSubstr("'Slot' is missing"));
}

}  // namespace
}  // namespace tapestry::dump
