#include "autograd/io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <tuple>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"

namespace tapestry::safetensors {

namespace {

using nlohmann::json;

struct FormatDType {
  std::string_view name;
  int bits;
  std::optional<DType> dtype = std::nullopt;
};

constexpr std::array kDTypes = {
    FormatDType{"F64", 64, kFloat64}, FormatDType{"F32", 32, kFloat32},
    FormatDType{"BF16", 16, kBFloat16}, FormatDType{"F16", 16, kFloat16},
    FormatDType{"I64", 64, kInt64}, FormatDType{"I32", 32, kInt32}, FormatDType{"BOOL", 8, kBool},
    FormatDType{"I8", 8, kInt8}, FormatDType{"U8", 8, kUInt8},
    // Without a DType: known for their width only.
    FormatDType{"I16", 16}, FormatDType{"U64", 64}, FormatDType{"U32", 32}, FormatDType{"U16", 16},
    FormatDType{"C64", 64}, FormatDType{"F8_E4M3", 8}, FormatDType{"F8_E5M2", 8},
    FormatDType{"F8_E8M0", 8}, FormatDType{"F8_E4M3FNUZ", 8}, FormatDType{"F8_E5M2FNUZ", 8},
    FormatDType{"F6_E2M3", 6}, FormatDType{"F6_E3M2", 6}, FormatDType{"F4", 4}};

const FormatDType* find_dtype(std::string_view name) {
  const auto* it = std::find_if(kDTypes.begin(), kDTypes.end(),
                                [&](const FormatDType& d) { return d.name == name; });
  return it == kDTypes.end() ? nullptr : it;
}

/// Receives the JSON events. A DOM would keep the last of two equal keys without a word, and would
/// take ten times the memory of a large header.
class HeaderHandler : public json::json_sax_t {
 public:
  explicit HeaderHandler(const InputFile& file) : file_(file) {}

  Header take() { return std::move(header_); }

  bool null() override { unexpected("null"); }
  bool boolean(bool /*value*/) override { unexpected("true or false"); }
  bool binary(binary_t& /*value*/) override { unexpected("binary data"); }
  bool number_integer(number_integer_t value) override {
    unexpected(concat("the negative number ", value));
  }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    unexpected(concat("the number ", text, "; whole numbers of 0 to 2^63 - 1 are allowed"));
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kArray) {
      unexpected(concat("the number ", value));
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail(value, " is above 2^63 - 1");
    }
    if (member_ == "shape") {
      if (entry_.shape.size() == kMaxDims) {
        fail("more than ", kMaxDims, " axes are not supported");
      }
      entry_.shape.push_back(static_cast<int64_t>(value));
    } else {
      if (offsets_.size() == 2) {
        fail("more than 2 numbers; [begin, end] expected");
      }
      offsets_.push_back(value);
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[member_] = std::move(value);
    } else if (place_ == Place::kEntry && member_ == "dtype") {
      entry_.dtype_name = std::move(value);
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool start_object(size_t /*elements*/) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = name_ == kMetadataKey ? Place::kMetadata : Place::kEntry;
      member_.clear();
      members_.clear();
      offsets_.clear();
      entry_ = {};
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    if (place_ == Place::kTop) {
      name_ = std::move(value);
      const bool is_new = name_ == kMetadataKey ? !std::exchange(has_metadata_, true)
                                                : !header_.entries.contains(name_);
      if (!is_new) {
        fail("the name appears twice");
      }
      return true;
    }
    member_ = std::move(value);
    if (!members_.insert(member_).second) {
      fail("the key appears twice");
    }
    if (place_ == Place::kEntry && member_ != "dtype" && member_ != "shape" &&
        member_ != "data_offsets") {
      fail("unknown key; expected dtype, shape and data_offsets");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTop) {
      place_ = Place::kOutside;
      return true;
    }
    if (place_ == Place::kEntry) {
      finish_entry();
    }
    place_ = Place::kTop;
    return true;
  }

  bool start_array(size_t /*elements*/) override {
    if (place_ != Place::kEntry || member_ == "dtype") {
      unexpected("an array");
    }
    place_ = Place::kArray;
    return true;
  }

  bool end_array() override {
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(size_t position,
                   const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    const std::string_view what = error.what();
    file_.fail(kHeaderOffset + (position > 0 ? position - 1 : 0), "header",
               "not valid JSON: ", what.substr(std::min(what.size(), what.find(": ") + 2)));
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kEntry, kArray };

  template <class... Args>
  [[noreturn]] void fail(const Args&... reason) const {
    std::string field = place_ == Place::kOutside ? "header" : json_string(name_);
    if (place_ != Place::kOutside && place_ != Place::kTop && !member_.empty()) {
      field += "." + json_string(member_);
    }
    file_.fail(kHeaderOffset, field, reason...);
  }

  [[noreturn]] void unexpected(const std::string& what) const {
    std::string_view expected;
    switch (place_) {
      case Place::kOutside:
      case Place::kTop:
        expected = "an object";
        break;
      case Place::kMetadata:
        expected = "a string";
        break;
      case Place::kEntry:
        expected = member_ == "dtype" ? "a string" : "an array";
        break;
      case Place::kArray:
        expected = "whole numbers of at least 0";
        break;
    }
    fail("expected ", expected, ", found ", what);
  }

  void finish_entry() {
    member_.clear();
    for (const char* member : {"dtype", "shape", "data_offsets"}) {
      if (!members_.contains(member)) {
        fail("key '", member, "' is missing");
      }
    }
    const FormatDType* dtype = find_dtype(entry_.dtype_name);
    if (dtype == nullptr) {
      fail("unknown dtype ", json_string(entry_.dtype_name));
    }
    entry_.dtype = dtype->dtype;
    if (offsets_.size() != 2) {
      fail("data_offsets has ", offsets_.size(), " numbers; [begin, end] expected");
    }
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    if (entry_.end < entry_.begin) {
      fail("data_offsets end before they begin: [", entry_.begin, ", ", entry_.end, "]");
    }
    // In order and signed: a later zero does not excuse a product that overflows before it.
    int64_t bits = 1;
    bool fits = true;
    for (const int64_t size : entry_.shape) {
      fits = fits && !__builtin_mul_overflow(bits, size, &bits);
    }
    if (!fits || __builtin_mul_overflow(bits, int64_t{dtype->bits}, &bits)) {
      fail("shape ", entry_.shape, " of ", dtype->name, " does not fit into memory");
    }
    if (bits % 8 != 0) {
      fail("shape ", entry_.shape, " of ", dtype->name, " does not fill whole bytes");
    }
    if (entry_.end - entry_.begin != static_cast<uint64_t>(bits) / 8) {
      fail("shape ", entry_.shape, " of ", dtype->name, " takes ", bits / 8,
           " bytes, but data_offsets hold ", entry_.end - entry_.begin);
    }
    header_.entries.emplace(name_, std::move(entry_));
  }

  const InputFile& file_;
  Header header_;
  Place place_ = Place::kOutside;
  std::string name_;    // key at top level
  std::string member_;  // key inside an entry or the metadata
  std::set<std::string> members_;
  bool has_metadata_ = false;
  SafetensorsEntry entry_;
  std::vector<uint64_t> offsets_;
};

/// Strict twin of json_string(), for what goes into a file.
std::string encoded(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::type_error&) {
    throw ValueError(concat("write_safetensors: ", json_string(text), " is not UTF-8"));
  }
}

}  // namespace

std::string json_string(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

Header parse_header(const InputFile& file, std::string_view text) {
  if (text.empty() || text.front() != '{') {
    file.fail(kHeaderOffset, "header", "does not begin with '{'");
  }
  // The JSON library takes a zero byte for the end of the text.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    file.fail(kHeaderOffset + zero, "header", "not valid JSON: a zero byte");
  }
  HeaderHandler handler(file);
  json::sax_parse(text.begin(), text.end(), &handler);
  return handler.take();
}

void check_coverage(const InputFile& file, const Header& header, uint64_t data_bytes) {
  using Item = std::pair<const std::string, SafetensorsEntry>;
  std::vector<const Item*> items;
  items.reserve(header.entries.size());
  for (const Item& item : header.entries) {
    items.push_back(&item);
  }
  std::sort(items.begin(), items.end(), [](const Item* a, const Item* b) {
    return std::tie(a->second.begin, a->second.end) < std::tie(b->second.begin, b->second.end);
  });
  uint64_t covered = 0;
  for (const Item* item : items) {
    const auto& [name, entry] = *item;
    if (entry.begin != covered) {
      file.fail(kHeaderOffset, json_string(name) + ".data_offsets", "[", entry.begin, ", ",
                entry.end, "] ", entry.begin < covered ? "overlaps" : "leaves a hole after",
                " the bytes before ", covered);
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    file.fail(file.size() - data_bytes, "data", "the tensors take ", covered,
              " bytes, but the file holds ", data_bytes,
              covered > data_bytes ? " (truncated?)" : "; bytes after the last tensor");
  }
}

std::string format_header(const Header& header) {
  std::string out = "{\"" + std::string(kMetadataKey) + "\":{";
  std::string_view separator;
  for (const auto& [key, value] : header.metadata) {
    out.append(separator).append(encoded(key)).append(":").append(encoded(value));
    separator = ",";
  }
  out += "}";
  for (const auto& [name, entry] : header.entries) {
    std::string shape;
    for (const int64_t size : entry.shape) {
      shape += shape.empty() ? "" : ",";
      shape += std::to_string(size);
    }
    out += concat(",", encoded(name), R"(:{"dtype":")", entry.dtype_name, R"(","shape":[)", shape,
                  R"(],"data_offsets":[)", entry.begin, ",", entry.end, "]}");
  }
  out += "}";
  out.append((8 - out.size() % 8) % 8, ' ');
  return out;
}

std::string_view dtype_name(DType dtype) {
  return std::find_if(kDTypes.begin(), kDTypes.end(),
                      [&](const FormatDType& d) { return d.dtype == dtype; })
      ->name;
}

}  // namespace tapestry::safetensors
