// Reads event files back.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "autograd/io/crc32c.h"
#include "parallel_core/tensorboard/event.h"
#include "parallel_core/tensorboard/wire_format.h"

namespace tapestry::report {

struct ReadValue {
  std::string tag;
  std::string kind;  // scalar, text or histogram
  float scalar = 0;
  std::string text;
  std::string plugin;
  std::string dtype_and_size;   // of a text: "7 [1]"
  std::vector<double> moments;  // min, max, num, sum, sum_squares
  std::vector<double> limits;
  std::vector<double> counts;
};

struct ReadEvent {
  std::string payload;
  double wall_time = 0;
  int64_t step = 0;
  std::string version;
  int64_t session_status = 0;
  std::vector<ReadValue> values;
};

inline std::vector<WireField> fields_of(std::string_view bytes) {
  const auto fields = read_fields(bytes);
  EXPECT_TRUE(fields) << "no message";
  return fields.value_or(std::vector<WireField>{});
}

inline std::vector<double> packed_reals(std::string_view bytes) {
  std::vector<double> values(bytes.size() / sizeof(double));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(double));
  return values;
}

inline void read_tensor(std::string_view bytes, ReadValue& value) {
  std::string dtype;
  std::string size;
  for (const WireField& field : fields_of(bytes)) {
    if (field.number == 1) {
      dtype = std::to_string(field.value);
    } else if (field.number == 2) {
      for (const WireField& dim : fields_of(field.bytes)) {
        size += "[" + std::to_string(fields_of(dim.bytes).at(0).value) + "]";
      }
    } else if (field.number == 8) {
      value.text = field.bytes;
    }
  }
  value.dtype_and_size = dtype + " " + size;
}

inline ReadValue read_value(std::string_view bytes) {
  ReadValue value;
  for (const WireField& field : fields_of(bytes)) {
    switch (field.number) {
      case 1:
        value.tag = field.bytes;
        break;
      case 2:
        value.kind = "scalar";
        value.scalar = std::bit_cast<float>(static_cast<uint32_t>(field.value));
        break;
      case 5:
        value.kind = "histogram";
        for (const WireField& part : fields_of(field.bytes)) {
          if (part.number <= 5) {
            value.moments.push_back(std::bit_cast<double>(part.value));
          } else {
            (part.number == 6 ? value.limits : value.counts) = packed_reals(part.bytes);
          }
        }
        break;
      case 8:
        value.kind = "text";
        read_tensor(field.bytes, value);
        break;
      case 9:
        value.plugin = fields_of(fields_of(field.bytes).at(0).bytes).at(0).bytes;
        break;
      default:
        ADD_FAILURE() << "field " << field.number;
    }
  }
  return value;
}

inline ReadEvent read_event(const std::string& payload) {
  ReadEvent event;
  event.payload = payload;
  for (const WireField& field : fields_of(payload)) {
    switch (field.number) {
      case 1:
        event.wall_time = std::bit_cast<double>(field.value);
        break;
      case 2:
        event.step = static_cast<int64_t>(field.value);
        break;
      case 3:
        event.version = field.bytes;
        break;
      case 5:
        for (const WireField& value : fields_of(field.bytes)) {
          event.values.push_back(read_value(value.bytes));
        }
        break;
      case 7:
        event.session_status = static_cast<int64_t>(fields_of(field.bytes).at(0).value);
        break;
      default:
        ADD_FAILURE() << "field " << field.number;
    }
  }
  return event;
}

/// The whole records of a file, each with right checksums; `rest` is what a torn one leaves.
inline std::vector<ReadEvent> read_records(const std::string& bytes, size_t* rest = nullptr) {
  std::vector<ReadEvent> events;
  size_t at = 0;
  while (bytes.size() - at >= kRecordFrame) {
    uint64_t size = 0;
    uint32_t length_crc = 0;
    std::memcpy(&size, bytes.data() + at, sizeof(size));
    std::memcpy(&length_crc, bytes.data() + at + 8, sizeof(length_crc));
    EXPECT_EQ(length_crc, masked_crc(crc32c(bytes.data() + at, 8)));
    if (bytes.size() - at - kRecordFrame < size) {
      break;
    }
    const std::string payload = bytes.substr(at + 12, size);
    uint32_t crc = 0;
    std::memcpy(&crc, bytes.data() + at + 12 + size, sizeof(crc));
    EXPECT_EQ(crc, masked_crc(crc32c(payload.data(), payload.size())));
    events.push_back(read_event(payload));
    at += size + kRecordFrame;
  }
  if (rest != nullptr) {
    *rest = bytes.size() - at;
  } else {
    EXPECT_EQ(at, bytes.size()) << "a torn record";
  }
  return events;
}

/// Event files of a folder, in the order in which TensorBoard reads them.
inline std::vector<std::string> event_files_in(const std::string& folder) {
  std::set<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().filename().string().find("tfevents") != std::string::npos) {
      files.insert(entry.path().string());
    }
  }
  return {files.begin(), files.end()};
}

/// Scalars by tag: step and value, as TensorBoard shows them: a session's start drops what earlier
/// files have at its step and later ones.
using Shown = std::map<std::string, std::vector<std::pair<int64_t, float>>>;

inline void show(const std::vector<ReadEvent>& events, Shown& shown) {
  for (const ReadEvent& event : events) {
    if (event.session_status == 1) {
      for (auto& [tag, points] : shown) {
        std::erase_if(points, [&](const auto& point) { return point.first >= event.step; });
      }
    }
    for (const ReadValue& value : event.values) {
      if (value.kind == "scalar") {
        shown[value.tag].emplace_back(event.step, value.scalar);
      }
    }
  }
}

}  // namespace tapestry::report
