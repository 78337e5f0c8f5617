// What TensorBoard's event files consist of: records, each of which holds one Event message.
// Source: tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto and
// tensorflow/core/lib/io/record_writer.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/tensorboard/histogram.h"

namespace tapestry::report {

struct Scalar {
  std::string tag;  ///< TensorBoard groups by what stands before the first '/'
  double value = 0;
};

// Encoded events. `wall_time` is in seconds since 1970.

/// What a file has to begin with.
std::string version_event(double wall_time);
/// The start of a session whose first step is `step`. From the second one of a folder on readers
/// drop what they have at this step and later ones, whatever its tag.
std::string start_event(double wall_time, int64_t step);
/// Values of one step; of float32, as which TensorBoard keeps them.
std::string scalar_event(double wall_time, int64_t step, const std::vector<Scalar>& scalars);
/// A text in Markdown, for the text dashboard.
std::string text_event(double wall_time,
                       int64_t step,
                       const std::string& tag,
                       const std::string& markdown);
std::string histogram_event(double wall_time,
                            int64_t step,
                            const std::string& tag,
                            const Histogram& histogram);

/// A record: u64 length, masked CRC-32C of these 8 bytes, the event, its masked CRC-32C.
std::string event_record(std::string_view event);
/// ((crc >> 15) | (crc << 17)) + 0xA282EAD8: so that a checksum of data that hold checksums is one.
uint32_t masked_crc(uint32_t crc);

/// Bytes of a record around its event.
inline constexpr size_t kRecordFrame = 16;

/// The part of an event that a resumed run asks for.
struct EventHead {
  int64_t step = 0;
  std::vector<std::string> tags;  ///< of its summary; none for other events
};

/// nullopt for bytes that are no event.
std::optional<EventHead> read_event_head(std::string_view event);

}  // namespace tapestry::report
