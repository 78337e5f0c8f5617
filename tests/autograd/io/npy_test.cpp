#include "autograd/io/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "autograd/tensor/error.h"
#include "tests/autograd/io/io_test_util.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

using test::bytes_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <class T>
std::vector<T> values(const NpyArray& array) {
  std::vector<T> out(array.bytes.size() / sizeof(T));
  if (!out.empty()) {
    std::memcpy(out.data(), array.bytes.data(), array.bytes.size());
  }
  return out;
}

/// A file of the given version with exactly this header text; the text ends with its line feed.
std::string npy(const std::string& text, const std::string& data, char major = 1) {
  std::string out("\x93NUMPY");
  out += major;
  out += '\0';
  const auto length = static_cast<uint32_t>(text.size());
  out += major == 1 ? bytes_of(static_cast<uint16_t>(length)) : bytes_of(length);
  return out + text + data;
}

std::string header(const std::string& descr, const std::string& shape, bool fortran = false) {
  return "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") +
         ", 'shape': " + shape + ", }\n";
}

class NpyTest : public ::testing::Test {
 protected:
  NpyArray read(const std::string& content) {
    test::put(path_, content);
    return read_npy(path_);
  }

  template <class E = IoError>
  void expect_rejected(const std::string& content,
                       const std::string& field,
                       const std::string& reason) {
    const std::string message = message_of<E>([&] { read(content); });
    EXPECT_THAT(message, HasSubstr(path_));
    EXPECT_THAT(message, HasSubstr("offset "));
    EXPECT_THAT(message, HasSubstr("field " + field + ":"));
    EXPECT_THAT(message, HasSubstr(reason));
  }

  test::ScratchFolder folder_;
  std::string path_ = folder_.file("a.npy");
};

TEST_F(NpyTest, WriterIsByteExact) {
  const std::array<float, 6> data{1, 2, 3, 4, 5, 6};
  write_npy(path_, kFloat32, Shape{2, 3}, data.data());
  std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  text.append(117 - text.size(), ' ');
  EXPECT_EQ(test::get(path_), npy(text + "\n", bytes_of(data)));
  EXPECT_THAT(folder_.names(), ElementsAre("a.npy"));
}

TEST_F(NpyTest, RoundTripsEveryDtypeAndRank) {
  const std::vector<Shape> shapes{Shape{}, Shape{6}, Shape{2, 3}, Shape{1, 2, 3, 1, 1, 1, 1, 1},
                                  Shape{3, 0, 2}};
  for (const DType dtype : {kBool, kInt8, kUInt8, kInt32, kInt64, kFloat16, kFloat32, kFloat64}) {
    std::array<unsigned char, 48> data{};
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = static_cast<unsigned char>(dtype == kBool ? i % 2 : 37 * i + 11);
    }
    for (const Shape& shape : shapes) {
      write_npy(path_, dtype, shape, data.data());
      EXPECT_EQ(test::get(path_).find('\n') % 64, 63U);
      const NpyArray array = read_npy(path_);
      EXPECT_EQ(array.dtype, dtype);
      EXPECT_EQ(array.shape, shape);
      ASSERT_EQ(array.bytes.size(), static_cast<size_t>(shape.numel() * size_of(dtype)));
      EXPECT_TRUE(test::same_bytes(array.bytes.data(), data.data(), array.bytes.size()))
          << name_of(dtype) << shape;
    }
  }
}

TEST_F(NpyTest, WidensTypesWithoutADtype) {
  const NpyArray i1 = read(npy(header("|i1", "(2,)"), bytes_of<int8_t, int8_t>(-128, 127)));
  EXPECT_EQ(i1.dtype, kInt8);
  EXPECT_THAT(values<int8_t>(i1), ElementsAre(-128, 127));
  const NpyArray u1 = read(npy(header("|u1", "(2,)"), bytes_of<uint8_t, uint8_t>(0, 255)));
  EXPECT_EQ(u1.dtype, kUInt8);
  EXPECT_THAT(values<uint8_t>(u1), ElementsAre(0, 255));
  const NpyArray i2 = read(npy(header("<i2", "(2,)"), bytes_of<int16_t, int16_t>(-32768, 5)));
  EXPECT_EQ(i2.dtype, kInt32);
  EXPECT_THAT(values<int32_t>(i2), ElementsAre(-32768, 5));
  const NpyArray u2 = read(npy(header("<u2", "(1,)"), bytes_of<uint16_t>(65535)));
  EXPECT_EQ(u2.dtype, kInt32);
  EXPECT_THAT(values<int32_t>(u2), ElementsAre(65535));
  const NpyArray u4 = read(npy(header("<u4", "(1,)"), bytes_of<uint32_t>(4294967295U)));
  EXPECT_EQ(u4.dtype, kInt64);
  EXPECT_THAT(values<int64_t>(u4), ElementsAre(4294967295));
  constexpr auto kMax = std::numeric_limits<int64_t>::max();
  const NpyArray u8 = read(npy(header("<u8", "(1,)"), bytes_of(static_cast<uint64_t>(kMax))));
  EXPECT_EQ(u8.dtype, kInt64);
  EXPECT_THAT(values<int64_t>(u8), ElementsAre(kMax));
}

TEST_F(NpyTest, SwapsBigEndian) {
  EXPECT_THAT(
      values<int32_t>(read(npy(header(">i4", "(2,)"), std::string("\0\0\1\2\xff\xff\xff\xfe", 8)))),
      ElementsAre(258, -2));
  EXPECT_THAT(values<int32_t>(read(npy(header(">u2", "(1,)"), "\x12\x34"))), ElementsAre(0x1234));
}

TEST_F(NpyTest, TransposesColumnMajor) {
  // Element (i, j, k) holds 100 i + 10 j + k; the first index is the fastest in the file.
  std::string data;
  for (int32_t k = 0; k < 4; ++k) {
    for (int32_t j = 0; j < 3; ++j) {
      for (int32_t i = 0; i < 2; ++i) {
        data += bytes_of(100 * i + 10 * j + k);
      }
    }
  }
  const NpyArray array = read(npy(header("<i4", "(2, 3, 4)", true), data));
  std::vector<int32_t> expected;
  for (int32_t i = 0; i < 2; ++i) {
    for (int32_t j = 0; j < 3; ++j) {
      for (int32_t k = 0; k < 4; ++k) {
        expected.push_back(100 * i + 10 * j + k);
      }
    }
  }
  EXPECT_EQ(values<int32_t>(array), expected);
  // Widened and transposed.
  EXPECT_THAT(values<uint8_t>(read(npy(header("|u1", "(2, 2)", true), "\1\2\3\4"))),
              ElementsAre(1, 3, 2, 4));
  EXPECT_THAT(read(npy(header("<f4", "(0, 2)", true), "")).bytes, IsEmpty());
}

TEST_F(NpyTest, AcceptsEveryVersionAndSpelling) {
  const std::string data = bytes_of<int32_t, int32_t>(7, 8);
  for (const char version : {1, 2, 3}) {
    EXPECT_THAT(values<int32_t>(read(npy(header("<i4", "(2,)"), data, version))),
                ElementsAre(7, 8));
  }
  for (const std::string text :
       {"{'shape':(2,),'fortran_order':False,'descr':'<i4'}\n",
        "{\"descr\": \"=i4\", \"shape\": (2L,), \"fortran_order\": True}    \n",
        "  { 'descr' : '|i4' ,'fortran_order' : False , 'shape' : ( 2 , ) , }\n",
        "{'descr': 'i4', 'fortran_order': False, 'shape': (2,1), }\n",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2,), }\n"}) {
    EXPECT_THAT(values<int32_t>(read(npy(text, data))), ElementsAre(7, 8)) << text;
  }
  EXPECT_EQ(read(npy(header("<i4", "()"), bytes_of<int32_t>(7))).shape, Shape{});
  EXPECT_EQ(read(npy(header("<i4", "(2, 1)"), data)).shape, (Shape{2, 1}));
}

TEST_F(NpyTest, RejectsMalformedFiles) {
  const std::string data = bytes_of<int32_t, int32_t>(7, 8);
  const std::string good = npy(header("<i4", "(2,)"), data);
  expect_rejected("", "magic", "truncated");
  expect_rejected(good.substr(0, 7), "magic", "truncated");
  expect_rejected("\x93NUMPX" + good.substr(6), "magic", "not a .npy file");
  expect_rejected(good.substr(0, 9), "header length", "truncated");
  expect_rejected(good.substr(0, 40), "header", "truncated");
  expect_rejected(good.substr(0, good.size() - 1), "data", "truncated");
  expect_rejected(good + "x", "data", "file holds 9");
  expect_rejected(npy(header("<i4", "(2,)"), data, 4), "version", "(4, 0) is unknown");
  expect_rejected(npy(header("<i4", "(2,)"), data, 0), "version", "(0, 0) is unknown");
  std::string minor = good;
  minor[7] = 1;
  expect_rejected(minor, "version", "(1, 1) is unknown");
  std::string long_header = header("<i4", "(2,)");
  long_header.insert(long_header.size() - 1, 10'000, ' ');
  expect_rejected(npy(long_header, data), "header length", "above the limit");
  expect_rejected(npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }", data), "header",
                  "line feed");
}

TEST_F(NpyTest, RejectsMalformedHeaders) {
  const std::string data = bytes_of<int32_t, int32_t>(7, 8);
  const auto rejected = [&](const std::string& text, const std::string& field,
                            const std::string& reason) {
    expect_rejected(npy(text + "\n", data), field, reason);
  };
  rejected("", "header", "expected '{'");
  rejected("'descr'", "header", "expected '{'");
  rejected("{'descr': '<i4', 'fortran_order': False}", "header", "'shape' is missing");
  rejected("{'descr': '<i4', 'shape': (2,)}", "header", "'fortran_order' is missing");
  rejected("{'fortran_order': False, 'shape': (2,)}", "header", "'descr' is missing");
  rejected("{}", "header", "'descr' is missing");
  rejected("{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': (2,)}", "descr",
           "twice");
  rejected("{'descr': '<i4', 'fortran_order': False, 'shape': (2,), 'x': 1}", "header",
           "unknown key 'x'");
  rejected("{'descr': '<i4', 'fortran_order': 0, 'shape': (2,)}", "fortran_order", "True or False");
  rejected("{'descr': <i4, 'fortran_order': False, 'shape': (2,)}", "descr", "quoted string");
  rejected("{'descr': '<i4, fortran_order: False, shape: (2,)}", "descr", "without an end");
  rejected("{'descr': '<i4', 'fortran_order': False, 'shape': (2,)} x", "header",
           "after the closing brace");
  rejected("{'descr': '<i4', 'fortran_order': False, 'shape': (2,)", "header", "expected '}'");
  rejected("{'descr': '<i4' 'fortran_order': False, 'shape': (2,)}", "header", "expected '}'");
  const auto bad_shape = [&](const std::string& shape, const std::string& reason) {
    rejected("{'descr': '<i4', 'fortran_order': False, 'shape': " + shape + "}", "shape", reason);
  };
  bad_shape("2", "expected '('");
  bad_shape("(2)", "expected a tuple");
  bad_shape("[2]", "expected '('");
  bad_shape("(-2,)", "expected a size");
  bad_shape("(2.0,)", "expected ',' or ')'");
  bad_shape("(,)", "expected a size");
  bad_shape("(2,,)", "expected a size");
  bad_shape("(1 2)", "expected ',' or ')'");
  bad_shape("(9223372036854775808,)", "above 2^63 - 1");
  bad_shape("(4294967296, 4294967296)", "does not fit into memory");
  bad_shape("(9223372036854775807, 2, 0)", "does not fit into memory");
  expect_rejected(npy(header("|b1", "(4611686018427387904, 2, 0)"), ""), "shape",
                  "does not fit into memory");
  bad_shape("(1, 1, 1, 1, 1, 1, 1, 1, 2)", "more than 8 axes");
  // Far more than the file holds: refused before anything is allocated.
  expect_rejected(npy(header("<i4", "(1000000000000,)"), data), "data", "truncated");
}

TEST_F(NpyTest, RejectsElementTypes) {
  for (const char* descr : {"|O", "O", "<V2", "|S1", "<U4", "<c8", "<f16", "<m8[ns]", "", "<", "f1",
                            "<b4", "<i3", "<i44"}) {
    expect_rejected<TypeError>(npy(header(descr, "(2,)"), "12345678"), "descr",
                               concat("'", descr, "'"));
  }
  expect_rejected<TypeError>(npy(header("|O", "(1,)"), ""), "descr", "pickled");
  expect_rejected<TypeError>(
      npy("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (2,)}\n", "12345678"),
      "descr", "structured");
}

TEST_F(NpyTest, RejectsValues) {
  expect_rejected(npy(header("|b1", "(3,)"), std::string("\0\1\2", 3)), "data", "a bool is 2");
  expect_rejected(npy(header("<u8", "(1,)"), bytes_of(uint64_t{1} << 63U)), "data",
                  "9223372036854775808 does not fit into int64");
}

TEST_F(NpyTest, ReadErrorsNameTheFile) {
  EXPECT_THAT(message_of<IoError>([&] { read_npy(folder_.file("missing.npy")); }),
              AllOf(HasSubstr("missing.npy"), HasSubstr("No such file")));
  EXPECT_THAT(message_of<IoError>([&] { read_npy(folder_.path()); }),
              HasSubstr("not a regular file"));
}

TEST_F(NpyTest, WriterRefusesBFloat16AndNegativeSizes) {
  const float x = 1;
  EXPECT_THAT(message_of<TypeError>([&] { write_npy(path_, kBFloat16, Shape{1}, &x); }),
              HasSubstr("bfloat16 has no NumPy name"));
  EXPECT_THAT(message_of<ValueError>([&] { write_npy(path_, kFloat32, Shape{-1}, &x); }),
              HasSubstr("[-1]"));
  EXPECT_THAT(folder_.names(), IsEmpty());
}

}  // namespace
}  // namespace tapestry
