#include "diagnosis/dump/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/tensor/error.h"
#include "tests/diagnosis/dump/dump_testing.h"
#include "tests/message_of.h"

namespace tapestry::dump {
namespace {

using testing::HasSubstr;

CsvTable table_of(const std::string& text) {
  const std::string path = fresh_folder() + "/table.csv";
  write_text(path, text);
  return CsvTable(path);
}

TEST(Csv, FieldsComeBackAsTheyWere) {
  const std::vector<std::string> fields = {"plain", "", "a,b", "say \"x\"", "two\nlines", " s "};
  const CsvTable table = table_of("a,b,c,d,e,f\n" + csv_line(fields) + csv_line(fields));
  ASSERT_EQ(table.size(), 2U);
  for (size_t i = 0; i < fields.size(); ++i) {
    EXPECT_EQ(table.at(1, i), fields[i]);
  }
  EXPECT_EQ(table.column("c"), 2U);
  EXPECT_FALSE(table.find("x").has_value());
}

TEST(Csv, LinesOfOtherSystemsAndQuotesWithoutNeed) {
  const CsvTable table = table_of("a,b\r\n\"1\",2\r\n");
  EXPECT_EQ(table.at(0, 0), "1");
  EXPECT_EQ(table.at(0, 1), "2");
}

TEST(Csv, ALineThatWasCutShortIsLeftOut) {
  EXPECT_EQ(table_of("a,b\n1,2\n3,").size(), 1U);
  EXPECT_EQ(table_of("a,b\n1,2\n3,\"x").size(), 1U);
  EXPECT_EQ(table_of("a,b\n1,2\n3,4").size(), 1U);
}

TEST(Csv, WhatIsNoTableIsNamedWithItsLine) {
  EXPECT_THAT(message_of<IoError>([] { table_of(""); }), HasSubstr("table.csv: line 1"));
  EXPECT_THAT(message_of<IoError>([] { table_of("a,b\n1\n"); }),
              HasSubstr("line 2: 1 fields where line 1 has 2"));
  EXPECT_THAT(message_of<IoError>([] { table_of("a,b\n\"1\n\",2\n1,2,3\n"); }),
              HasSubstr("line 4"));
  EXPECT_THAT(message_of<IoError>([] { table_of("a\nx\"y\n"); }), HasSubstr("a quote inside"));
  EXPECT_THAT(message_of<IoError>([] { table_of("a\n\"x\"y\n"); }), HasSubstr("behind a closing"));
  EXPECT_THAT(message_of<IoError>([] { table_of("a\n1\n").column("b"); }),
              HasSubstr("the column 'b' is missing"));
}

TEST(Csv, NumbersComeBackToTheLastBit) {
  for (const double value : {0.0, 0.1, 1e-320, 1.7976931348623157e308, -3.0, 1.0 / 3.0}) {
    EXPECT_EQ(parse_number(number_field(value)), value);
  }
  EXPECT_TRUE(std::isnan(*parse_number(number_field(std::nan("")))));
  EXPECT_EQ(parse_number("-inf"), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse_number("1x"), std::nullopt);
  EXPECT_EQ(parse_number(""), std::nullopt);
  EXPECT_EQ(parse_integer("12"), 12);
  EXPECT_EQ(parse_integer("1.5"), std::nullopt);
  EXPECT_EQ(parse_integer("99999999999999999999"), std::nullopt);
}

}  // namespace
}  // namespace tapestry::dump
