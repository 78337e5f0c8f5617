#include "parallel_core/tensorboard/event.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/parallel_core/tensorboard/event_reader.h"

namespace tapestry::report {
namespace {

using ::testing::ElementsAre;

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

TEST(EventRecord, HasTheBytesThatOthersWrite) {
  EXPECT_EQ(masked_crc(crc32c("123456789", 9)), 0xC78AB0E5U);
  EXPECT_EQ(event_record(version_event(1.0)), from_hex("1800000000000000a37f4b22"
                                                       "09000000000000f03f1a0d"
                                                       "627261696e2e4576656e743a32"
                                                       "86bf577a"));
  EXPECT_EQ(event_record(scalar_event(2.0, 7, {{"loss", 2.5}})),
            from_hex("1a00000000000000129bd82d"
                     "09000000000000004010072a0d0a0b0a046c6f73731500002040"
                     "c2dfec60"));
}

TEST(EventRecord, ScalarsOfAStepShareAnEvent) {
  const auto events = read_records(
      event_record(scalar_event(3.5, 1'000'000, {{"a", 1}, {"a/b", -2.5}, {"c", std::nan("")}})));
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].wall_time, 3.5);
  EXPECT_EQ(events[0].step, 1'000'000);
  ASSERT_EQ(events[0].values.size(), 3U);
  EXPECT_EQ(events[0].values[1].tag, "a/b");
  EXPECT_EQ(events[0].values[1].scalar, -2.5F);
  EXPECT_TRUE(std::isnan(events[0].values[2].scalar));
}

TEST(EventRecord, ATextIsATensorOfTheTextPlugin) {
  const auto events = read_records(event_record(text_event(1, 0, "config", "**bold** \xC3\xA4")));
  const ReadValue& value = events.at(0).values.at(0);
  EXPECT_EQ(value.kind, "text");
  EXPECT_EQ(value.plugin, "text");
  EXPECT_EQ(value.text, "**bold** \xC3\xA4");
  EXPECT_EQ(value.dtype_and_size, "7 [1]");
}

TEST(EventRecord, AHistogramHasMomentsAndBuckets) {
  Histogram histogram;
  histogram.add(std::vector<float>{1, 2, 2, -4});
  const auto events = read_records(event_record(histogram_event(1, 5, "w", histogram)));
  const ReadValue& value = events.at(0).values.at(0);
  EXPECT_EQ(value.kind, "histogram");
  EXPECT_THAT(value.moments, ElementsAre(-4, 2, 4, 1, 25));
  EXPECT_EQ(value.limits.size(), value.counts.size());
  EXPECT_EQ(std::accumulate(value.counts.begin(), value.counts.end(), 0.0), 4);
}

TEST(EventRecord, TheStartOfASession) {
  const auto events = read_records(event_record(start_event(1, 42)));
  EXPECT_EQ(events.at(0).step, 42);
  EXPECT_EQ(events.at(0).session_status, 1);
  EXPECT_TRUE(events.at(0).values.empty());
}

TEST(EventHead, HasStepAndTags) {
  const auto head = read_event_head(scalar_event(1, 9, {{"a", 1}, {"b", 2}}));
  ASSERT_TRUE(head);
  EXPECT_EQ(head->step, 9);
  EXPECT_THAT(head->tags, ElementsAre("a", "b"));
  EXPECT_TRUE(read_event_head(version_event(1))->tags.empty());
}

TEST(EventHead, OfOtherBytesIsNone) {
  const std::string event = scalar_event(1, 9, {{"a", 1}});
  for (size_t size = 1; size < event.size(); ++size) {
    if (size != 9 && size != 11) {  // where a field ends
      EXPECT_FALSE(read_event_head(event.substr(0, size))) << size;
    }
  }
  EXPECT_FALSE(read_event_head(std::string(11, '\xFF')));
  EXPECT_FALSE(read_event_head("\x03"));  // a group, which nobody writes any more
}

TEST(WireMessage, NegativeIntegersHaveTenBytes) {
  WireMessage message;
  message.integer(2, -1);
  EXPECT_EQ(message.bytes(), "\x10" + std::string(9, '\xFF') + "\x01");
  EXPECT_EQ(static_cast<int64_t>(fields_of(message.bytes()).at(0).value), -1);
}

}  // namespace
}  // namespace tapestry::report
