#include "autograd/io/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include "autograd/io/atomic_file.h"
#include "autograd/io/input_file.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr uint64_t kMaxHeaderBytes = 10'000;  // NumPy's own limit
constexpr size_t kAlignment = 64;

struct Header {
  std::string descr;
  bool fortran_order = false;
  Shape shape;
  uint64_t descr_offset = 0;
  uint64_t shape_offset = 0;
  uint64_t data_offset = 0;
};

/// The Python literal of the header: a dict of exactly descr, fortran_order and shape.
class HeaderParser {
 public:
  HeaderParser(const InputFile& file, std::string_view text, uint64_t text_offset)
      : file_(file), text_(text), text_offset_(text_offset) {}

  Header parse() {
    Header header;
    bool has_descr = false;
    bool has_order = false;
    bool has_shape = false;
    expect('{');
    while (!accept('}')) {
      const uint64_t key_offset = offset();
      const std::string key = parse_string();
      expect(':');
      skip_space();
      field_ = key;
      if (key == "descr") {
        mark(has_descr, key_offset);
        header.descr_offset = offset();
        header.descr = parse_descr();
      } else if (key == "fortran_order") {
        mark(has_order, key_offset);
        header.fortran_order = parse_bool();
      } else if (key == "shape") {
        mark(has_shape, key_offset);
        header.shape_offset = offset();
        header.shape = parse_shape();
      } else {
        file_.fail(key_offset, "header", "unknown key '", key,
                   "'; expected descr, fortran_order and shape");
      }
      field_ = "header";
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (position_ != text_.size()) {
      fail("text after the closing brace");
    }
    const std::string_view missing =
        !has_descr ? "descr" : (!has_order ? "fortran_order" : "shape");
    if (!has_descr || !has_order || !has_shape) {
      fail("key '", missing, "' is missing");
    }
    return header;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(const Args&... reason) const {
    file_.fail(offset(), field_, reason...);
  }

  uint64_t offset() const { return text_offset_ + position_; }

  void mark(bool& seen, uint64_t key_offset) const {
    if (seen) {
      file_.fail(key_offset, field_, "key given twice");
    }
    seen = true;
  }

  void skip_space() {
    while (position_ < text_.size() && std::strchr(" \t\r\n\f", text_[position_]) != nullptr &&
           text_[position_] != '\0') {
      ++position_;
    }
  }

  bool accept(char c) {
    skip_space();
    if (position_ < text_.size() && text_[position_] == c) {
      ++position_;
      return true;
    }
    return false;
  }

  void expect(char c) {
    if (!accept(c)) {
      fail("expected '", c, "'");
    }
  }

  std::string parse_string() {
    skip_space();
    if (position_ >= text_.size() || (text_[position_] != '\'' && text_[position_] != '"')) {
      fail("expected a quoted string");
    }
    const size_t close = text_.find(text_[position_], position_ + 1);
    if (close == std::string_view::npos) {
      fail("string without an end");
    }
    std::string value(text_.substr(position_ + 1, close - position_ - 1));
    position_ = close + 1;
    return value;
  }

  std::string parse_descr() {
    if (position_ < text_.size() && text_[position_] == '[') {
      throw TypeError(concat(file_.path(), ": offset ", offset(),
                             ": field descr: structured arrays are not supported; save one array "
                             "per field"));
    }
    return parse_string();
  }

  bool parse_bool() {
    for (const std::string_view word : {std::string_view("True"), std::string_view("False")}) {
      if (text_.substr(position_).starts_with(word)) {
        position_ += word.size();
        return word == "True";
      }
    }
    fail("expected True or False");
  }

  Shape parse_shape() {
    Shape shape;
    bool comma = true;
    expect('(');
    while (!accept(')')) {
      if (!comma) {
        fail("expected ',' or ')'");
      }
      if (shape.size() == kMaxDims) {
        fail("more than ", kMaxDims, " axes are not supported");
      }
      shape.push_back(parse_size());
      comma = accept(',');
    }
    if (shape.size() == 1 && !comma) {
      fail("expected a tuple; (n) is a number, (n,) a tuple");
    }
    return shape;
  }

  int64_t parse_size() {
    skip_space();
    const size_t first = position_;
    int64_t value = 0;
    for (; position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9';
         ++position_) {
      if (__builtin_mul_overflow(value, 10, &value) ||
          __builtin_add_overflow(value, text_[position_] - '0', &value)) {
        fail("size above 2^63 - 1");
      }
    }
    if (position_ == first) {
      fail("expected a size, a whole number of at least 0");
    }
    if (position_ < text_.size() && text_[position_] == 'L') {  // long integer of Python 2
      ++position_;
    }
    return value;
  }

  const InputFile& file_;
  std::string_view text_;
  uint64_t text_offset_;
  size_t position_ = 0;
  std::string field_ = "header";
};

Header read_header(const InputFile& file) {
  std::array<char, 8> start{};
  file.read_at(0, start.data(), start.size(), "magic");
  if (std::string_view(start.data(), kMagic.size()) != kMagic) {
    file.fail(0, "magic", "not a .npy file");
  }
  const auto major = static_cast<unsigned char>(start[6]);
  const auto minor = static_cast<unsigned char>(start[7]);
  if (major < 1 || major > 3 || minor != 0) {
    file.fail(6, "version", "(", static_cast<int>(major), ", ", static_cast<int>(minor),
              ") is unknown; (1, 0), (2, 0) and (3, 0) are supported");
  }
  uint32_t length = 0;
  const size_t length_bytes = major == 1 ? 2 : 4;
  file.read_at(start.size(), &length, length_bytes, "header length");
  if (length > kMaxHeaderBytes) {
    file.fail(start.size(), "header length", length, " is above the limit of ", kMaxHeaderBytes);
  }
  const uint64_t text_offset = start.size() + length_bytes;
  std::string text(length, '\0');
  file.read_at(text_offset, text.data(), text.size(), "header");
  if (!text.ends_with('\n')) {
    file.fail(text_offset + length, "header", "does not end with a line feed");
  }
  Header header = HeaderParser(file, text, text_offset).parse();
  header.data_offset = text_offset + length;
  return header;
}

/// How the elements of a file become those of a DType.
struct Element {
  char kind = 'f';  // as in descr: b i u f
  uint64_t bytes = 4;
  bool big_endian = false;
  DType dtype = kFloat32;
};

std::optional<DType> dtype_of_element(char kind, uint64_t bytes) {
  switch (kind) {
    case 'b':
      return bytes == 1 ? std::optional(kBool) : std::nullopt;
    case 'i':
      return bytes == 1 ? kInt8 : (bytes == 8 ? kInt64 : kInt32);
    case 'u':
      return bytes == 1 ? kUInt8 : (bytes >= 4 ? kInt64 : kInt32);
    case 'f':
      return bytes == 2 ? kFloat16 : (bytes == 4 ? kFloat32 : kFloat64);
    default:
      return std::nullopt;
  }
}

Element parse_element(const InputFile& file, const Header& header) {
  std::string_view text = header.descr;
  Element element;
  if (!text.empty() && std::string_view("<>=|").find(text[0]) != std::string_view::npos) {
    element.big_endian = text[0] == '>';
    text.remove_prefix(1);
  }
  const bool known = text.size() == 2 &&
                     (text[1] == '1' || text[1] == '2' || text[1] == '4' || text[1] == '8') &&
                     text != "f1";
  std::optional<DType> dtype;
  if (known) {
    element.kind = text[0];
    element.bytes = static_cast<uint64_t>(text[1] - '0');
    dtype = dtype_of_element(element.kind, element.bytes);
  }
  if (!dtype) {
    std::string_view hint;
    if (text.starts_with('O')) {
      hint = " (pickled objects can run code and are never read)";
    } else if (text == "V2") {
      hint = " (raw 16-bit values, perhaps bfloat16; save them as float32 or as safetensors)";
    }
    throw TypeError(concat(file.path(), ": offset ", header.descr_offset,
                           ": field descr: element type '", header.descr, "' is not supported",
                           hint, "; expected one of b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8"));
  }
  element.dtype = *dtype;
  return element;
}

void swap_bytes(std::vector<std::byte>& bytes, uint64_t width) {
  for (auto it = bytes.begin(); width > 1 && it != bytes.end();
       it += static_cast<std::ptrdiff_t>(width)) {
    std::reverse(it, it + static_cast<std::ptrdiff_t>(width));
  }
}

template <class From, class To>
std::vector<std::byte> widen(const InputFile& file,
                             uint64_t data_offset,
                             const std::vector<std::byte>& in) {
  const size_t n = in.size() / sizeof(From);
  std::vector<std::byte> out(n * sizeof(To));
  for (size_t i = 0; i < n; ++i) {
    From value;
    std::memcpy(&value, in.data() + i * sizeof(From), sizeof(From));
    if constexpr (sizeof(From) == sizeof(To)) {
      if (value > static_cast<From>(std::numeric_limits<To>::max())) {
        file.fail(data_offset + i * sizeof(From), "data", "value ", value,
                  " does not fit into int64");
      }
    }
    const auto wide = static_cast<To>(value);  // NOLINT(bugprone-signed-char-misuse): a number
    std::memcpy(out.data() + i * sizeof(To), &wide, sizeof(To));
  }
  return out;
}

std::vector<std::byte> convert(const InputFile& file,
                               const Header& header,
                               const Element& element,
                               std::vector<std::byte> raw) {
  if ((element.kind == 'u' && element.bytes > 1) || (element.kind == 'i' && element.bytes == 2)) {
    const uint64_t at = header.data_offset;
    const bool is_signed = element.kind == 'i';
    switch (element.bytes) {
      case 2:
        return is_signed ? widen<int16_t, int32_t>(file, at, raw)
                         : widen<uint16_t, int32_t>(file, at, raw);
      case 4:
        return widen<uint32_t, int64_t>(file, at, raw);
      default:
        return widen<uint64_t, int64_t>(file, at, raw);
    }
  }
  if (element.kind == 'b') {
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] > std::byte{1}) {
        file.fail(header.data_offset + i, "data", "a bool is ", std::to_integer<int>(raw[i]),
                  ", neither 0 nor 1");
      }
    }
  }
  return raw;
}

/// Column-major to row-major.
std::vector<std::byte> transpose(const std::vector<std::byte>& in,
                                 const Shape& shape,
                                 size_t width) {
  std::vector<std::byte> out(in.size());
  Strides strides = Shape::filled(shape.size(), 1);
  for (int64_t axis = 1; axis < shape.size(); ++axis) {
    strides[axis] = strides[axis - 1] * shape[axis - 1];
  }
  Shape index = Shape::filled(shape.size(), 0);
  int64_t source = 0;
  for (size_t at = 0; at < out.size(); at += width) {
    std::memcpy(out.data() + at, in.data() + static_cast<size_t>(source) * width, width);
    for (int64_t axis = shape.size() - 1; axis >= 0; --axis) {
      source += strides[axis];
      if (++index[axis] < shape[axis]) {
        break;
      }
      source -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
  }
  return out;
}

std::string_view descr_of(DType dtype) {
  switch (dtype) {
    case kBool:
      return "|b1";
    case kInt8:
      return "|i1";
    case kUInt8:
      return "|u1";
    case kInt32:
      return "<i4";
    case kInt64:
      return "<i8";
    case kFloat16:
      return "<f2";
    case kFloat32:
      return "<f4";
    case kFloat64:
      return "<f8";
    case kBFloat16:
      break;
  }
  return {};
}

}  // namespace

Shape read_npy_shape(const std::string& path) {
  const InputFile file(path);
  return read_header(file).shape;
}

NpyArray read_npy(const std::string& path) {
  const InputFile file(path);
  const Header header = read_header(file);
  const Element element = parse_element(file, header);
  // In order and signed: a later zero does not excuse a product that overflows before it.
  auto product = static_cast<int64_t>(element.bytes);
  for (const int64_t size : header.shape) {
    if (__builtin_mul_overflow(product, size, &product)) {
      file.fail(header.shape_offset, "shape", header.shape, " does not fit into memory");
    }
  }
  const auto bytes = static_cast<uint64_t>(product);
  const uint64_t available = file.size() - header.data_offset;
  if (bytes != available) {
    file.fail(header.data_offset, "data", "shape ", header.shape, " of '", header.descr, "' takes ",
              bytes, " bytes, but the file holds ", available,
              bytes > available ? " (truncated?)" : "");
  }
  std::vector<std::byte> raw(bytes);
  file.read_at(header.data_offset, raw.data(), raw.size(), "data");
  if (element.big_endian) {
    swap_bytes(raw, element.bytes);
  }
  NpyArray array{element.dtype, header.shape, convert(file, header, element, std::move(raw))};
  if (header.fortran_order && array.shape.size() > 1) {
    array.bytes = transpose(array.bytes, array.shape, static_cast<size_t>(size_of(array.dtype)));
  }
  return array;
}

std::string npy_header(DType dtype, const Shape& shape) {
  const std::string_view descr = descr_of(dtype);
  check<TypeError>(!descr.empty(), "npy: ", name_of(dtype),
                   " has no NumPy name; convert to float32, or write safetensors");
  std::string tuple = "(";
  auto bytes = static_cast<uint64_t>(size_of(dtype));
  for (const int64_t size : shape) {
    check<ValueError>(size >= 0 && checked_mul(bytes, static_cast<uint64_t>(size), bytes),
                      "npy: shape ", shape, " is not the shape of an array");
    tuple += std::to_string(size) + (shape.size() == 1 ? "," : ", ");
  }
  if (shape.size() > 1) {
    tuple.resize(tuple.size() - 2);
  }
  std::string text =
      concat("{'descr': '", descr, "', 'fortran_order': False, 'shape': ", tuple, "), }");
  const size_t unpadded = kMagic.size() + 4 + text.size() + 1;
  text.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  text += '\n';
  const auto length = static_cast<uint16_t>(text.size());
  std::string header(kMagic);
  header += std::string_view("\x01\x00", 2);
  header += static_cast<char>(length & 0xffU);
  header += static_cast<char>(length >> 8U);
  return header + text;
}

void write_npy(const std::string& path, DType dtype, const Shape& shape, const void* data) {
  std::string header;
  try {
    header = npy_header(dtype, shape);
  } catch (const TypeError& error) {
    throw TypeError(concat("write_npy: ", path, ": ", error.what()));
  } catch (const ValueError& error) {
    throw ValueError(concat("write_npy: ", path, ": ", error.what()));
  }
  AtomicFile file(path);
  file.write(header);
  file.write(data, static_cast<size_t>(shape.numel()) * static_cast<size_t>(size_of(dtype)));
  file.commit();
}

}  // namespace tapestry
