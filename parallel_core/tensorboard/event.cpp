#include "parallel_core/tensorboard/event.h"

#include <utility>

#include "autograd/io/crc32c.h"
#include "parallel_core/tensorboard/wire_format.h"

namespace tapestry::report {
namespace {

// Field numbers.
namespace event {
constexpr int kWallTime = 1;
constexpr int kStep = 2;
constexpr int kFileVersion = 3;
constexpr int kSummary = 5;
constexpr int kSessionLog = 7;
}  // namespace event
namespace session_log {
constexpr int kStatus = 1;
constexpr int64_t kStart = 1;
}  // namespace session_log
namespace summary {
constexpr int kValue = 1;
}  // namespace summary
namespace value {
constexpr int kTag = 1;
constexpr int kSimpleValue = 2;
constexpr int kHisto = 5;
constexpr int kTensor = 8;
constexpr int kMetadata = 9;
}  // namespace value
namespace metadata {
constexpr int kPluginData = 1;
constexpr int kPluginName = 1;  // of PluginData
constexpr int kDataClass = 4;
constexpr int64_t kTensorClass = 2;
}  // namespace metadata
namespace tensor {
constexpr int kDtype = 1;
constexpr int64_t kString = 7;
constexpr int kShape = 2;
constexpr int kDim = 2;   // of TensorShapeProto
constexpr int kSize = 1;  // of Dim
constexpr int kStringVal = 8;
}  // namespace tensor

WireMessage event_at(double wall_time) {
  WireMessage message;
  message.real(event::kWallTime, wall_time);
  return message;
}

std::string summary_event(double wall_time, int64_t step, const WireMessage& summary) {
  return event_at(wall_time).integer(event::kStep, step).message(event::kSummary, summary).bytes();
}

WireMessage tagged(const std::string& tag) {
  WireMessage message;
  message.text(value::kTag, tag);
  return message;
}

std::string little_endian(uint64_t number, size_t size) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i) {
    bytes += static_cast<char>(number >> (8 * i) & 0xFFU);
  }
  return bytes;
}

}  // namespace

std::string version_event(double wall_time) {
  return event_at(wall_time).text(event::kFileVersion, "brain.Event:2").bytes();
}

std::string start_event(double wall_time, int64_t step) {
  WireMessage log;
  log.integer(session_log::kStatus, session_log::kStart);
  return event_at(wall_time).integer(event::kStep, step).message(event::kSessionLog, log).bytes();
}

std::string scalar_event(double wall_time, int64_t step, const std::vector<Scalar>& scalars) {
  WireMessage all;
  for (const Scalar& scalar : scalars) {
    all.message(summary::kValue,
                tagged(scalar.tag).real32(value::kSimpleValue, static_cast<float>(scalar.value)));
  }
  return summary_event(wall_time, step, all);
}

std::string text_event(double wall_time,
                       int64_t step,
                       const std::string& tag,
                       const std::string& markdown) {
  WireMessage plugin;
  plugin.text(metadata::kPluginName, "text");
  WireMessage about;
  about.message(metadata::kPluginData, plugin)
      .integer(metadata::kDataClass, metadata::kTensorClass);
  WireMessage size;
  size.integer(tensor::kSize, 1);
  WireMessage shape;
  shape.message(tensor::kDim, size);
  WireMessage text;
  text.integer(tensor::kDtype, tensor::kString)
      .message(tensor::kShape, shape)
      .text(tensor::kStringVal, markdown);
  WireMessage all;
  all.message(summary::kValue,
              tagged(tag).message(value::kTensor, text).message(value::kMetadata, about));
  return summary_event(wall_time, step, all);
}

std::string histogram_event(double wall_time,
                            int64_t step,
                            const std::string& tag,
                            const Histogram& histogram) {
  const Histogram::Buckets buckets = histogram.buckets();
  WireMessage numbers;
  numbers.real(1, histogram.min())
      .real(2, histogram.max())
      .real(3, histogram.count())
      .real(4, histogram.sum())
      .real(5, histogram.sum_squares())
      .reals(6, buckets.limits)
      .reals(7, buckets.counts);
  WireMessage all;
  all.message(summary::kValue, tagged(tag).message(value::kHisto, numbers));
  return summary_event(wall_time, step, all);
}

uint32_t masked_crc(uint32_t crc) { return ((crc >> 15U) | (crc << 17U)) + 0xA282EAD8U; }

std::string event_record(std::string_view event) {
  const std::string length = little_endian(event.size(), sizeof(uint64_t));
  std::string record = length;
  record += little_endian(masked_crc(crc32c(length.data(), length.size())), sizeof(uint32_t));
  record += event;
  record += little_endian(masked_crc(crc32c(event.data(), event.size())), sizeof(uint32_t));
  return record;
}

std::optional<EventHead> read_event_head(std::string_view bytes) {
  const auto fields = read_fields(bytes);
  if (!fields) {
    return std::nullopt;
  }
  EventHead head;
  for (const WireField& field : *fields) {
    if (field.number == event::kStep && field.type == WireField::Type::kVarint) {
      head.step = static_cast<int64_t>(field.value);
    }
    if (field.number != event::kSummary || field.type != WireField::Type::kBytes) {
      continue;
    }
    const auto values = read_fields(field.bytes);
    if (!values) {
      return std::nullopt;
    }
    for (const WireField& one : *values) {
      const auto parts = read_fields(one.bytes);
      if (one.number != summary::kValue || !parts) {
        return std::nullopt;
      }
      for (const WireField& part : *parts) {
        if (part.number == value::kTag) {
          head.tags.emplace_back(part.bytes);
        }
      }
    }
  }
  return head;
}

}  // namespace tapestry::report
