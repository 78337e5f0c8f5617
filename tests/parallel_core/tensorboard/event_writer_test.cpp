#include "parallel_core/tensorboard/event_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>

#include "autograd/io/atomic_file.h"
#include "tests/parallel_core/tensorboard/event_reader.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::report {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;
using ::testing::Pair;

class EventWriterTest : public ::testing::Test {
 protected:
  std::vector<std::string> files() const { return event_files_in(folder_); }
  std::vector<ReadEvent> events(size_t file) const { return read_records(bytes(file)); }
  std::string bytes(size_t file) const {
    std::ifstream in(files().at(file), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // Steps first to last of batches of four samples, as a training writes them.
  void write_steps(int64_t first, int64_t last) const {
    EventWriter writer(folder_, 10);
    if (first > 1) {
      writer.start(4 * (first - 1) + 1);
    }
    writer.text(first - 1, "model/text_summary", "text");
    for (int64_t step = first; step <= last; ++step) {
      const auto loss = static_cast<double>(100 * first + step);
      writer.scalars(step, {{"loss", loss}});
      writer.scalars(4 * step, {{"loss vs samples", loss}});
    }
  }
  Shown shown() const {
    Shown all;
    for (size_t i = 0; i < files().size(); ++i) {
      show(events(i), all);
    }
    return all;
  }

  data::TempDir dir_;
  std::string folder_ = dir_.file("runs/rank_0");
};

TEST_F(EventWriterTest, BeginsWithTheVersionAndHasWholeRecords) {
  {
    EventWriter writer(folder_, 10);
    EXPECT_TRUE(files().empty());  // no file without an event
    writer.scalars(1, {{"loss", 2.5}});
    EXPECT_TRUE(files().empty());
    writer.flush();
    ASSERT_EQ(files().size(), 1U);
    EXPECT_EQ(events(0).size(), 2U);
  }
  EXPECT_THAT(files()[0], MatchesRegex(".*/rank_0/events\\.out\\.tfevents\\.[0-9]{10}\\..+\\.[0-9]+"
                                       "\\.[0-9]+"));
  EXPECT_EQ(events(0)[0].version, "brain.Event:2");
  EXPECT_EQ(events(0)[1].values.at(0).tag, "loss");
}

TEST_F(EventWriterTest, WritesWhenTheQueueIsFull) {
  EventWriter writer(folder_, 3);
  writer.scalars(1, {{"loss", 1}});
  writer.scalars(2, {{"loss", 1}});
  EXPECT_TRUE(files().empty());
  writer.scalars(3, {{"loss", 1}});
  EXPECT_EQ(events(0).size(), 4U);
  writer.scalars(4, {{"loss", 1}});
  EXPECT_EQ(events(0).size(), 4U);
}

TEST_F(EventWriterTest, LaterFilesComeLaterByName) {
  write_steps(1, 1);
  write_steps(2, 2);
  write_steps(3, 3);
  ASSERT_EQ(files().size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(events(i).back().values.at(0).scalar, static_cast<float>(101 * (i + 1)));
  }
}

TEST_F(EventWriterTest, AResumedRunShowsEachStepOnce) {
  write_steps(1, 10);
  cut_events(folder_, 7);
  write_steps(8, 12);
  cut_events(folder_, 9);
  write_steps(10, 12);
  const Shown all = shown();
  std::vector<std::pair<int64_t, float>> by_step;
  std::vector<std::pair<int64_t, float>> by_samples;
  for (int64_t step = 1; step <= 12; ++step) {
    const int64_t first = step <= 7 ? 1 : step <= 9 ? 8 : 10;
    by_step.emplace_back(step, static_cast<float>(100 * first + step));
    by_samples.emplace_back(4 * step, static_cast<float>(100 * first + step));
  }
  EXPECT_EQ(all.at("loss"), by_step);
  EXPECT_EQ(all.at("loss vs samples"), by_samples);
}

TEST_F(EventWriterTest, WhatNeedsNoCutStaysAsItIs) {
  write_steps(1, 5);
  const std::string before = bytes(0);
  cut_events(folder_, 5);
  EXPECT_EQ(bytes(0), before);
  cut_events(folder_, 100);
  EXPECT_EQ(bytes(0), before);
}

TEST_F(EventWriterTest, AFileWithoutAStepThatStaysGoes) {
  write_steps(1, 3);
  write_steps(4, 6);
  cut_events(folder_, 3);
  EXPECT_EQ(files().size(), 1U);
  cut_events(folder_, 0);
  EXPECT_TRUE(files().empty());
  cut_events(dir_.file("nowhere"), 3);
}

TEST_F(EventWriterTest, ATornRecordGoes) {
  write_steps(1, 3);
  const std::string whole = bytes(0);
  for (size_t lost = 1; lost < 60; ++lost) {
    std::filesystem::resize_file(files()[0], whole.size() - lost);
    size_t rest = 0;
    const size_t kept = read_records(bytes(0), &rest).size();
    cut_events(folder_, 3);
    EXPECT_EQ(events(0).size(), kept);
    EXPECT_EQ(bytes(0), whole.substr(0, bytes(0).size()));
    std::ofstream(files()[0], std::ios::binary) << whole;
  }
  // So does what lies behind bytes that are damaged, which no reader gets at.
  std::string damaged = whole;
  damaged[whole.size() / 2] = static_cast<char>(~damaged[whole.size() / 2]);
  std::ofstream(files()[0], std::ios::binary) << damaged;
  cut_events(folder_, 3);
  EXPECT_LT(bytes(0).size(), whole.size() / 2);
  EXPECT_EQ(bytes(0), whole.substr(0, bytes(0).size()));
}

TEST_F(EventWriterTest, AnotherRunsEventsAreMovedAside) {
  const std::string top = dir_.file("runs");
  EXPECT_EQ(move_events_aside(top, "rank_0"), "");
  write_steps(1, 2);
  EXPECT_EQ(move_events_aside(top, "rank_0"), top + "/old/run_1/rank_0");
  EXPECT_TRUE(files().empty());
  write_steps(1, 3);
  EXPECT_EQ(move_events_aside(top, "rank_0"), top + "/old/run_2/rank_0");
  EXPECT_EQ(event_files_in(top + "/old/run_1/rank_0").size(), 1U);
  EXPECT_EQ(event_files_in(top + "/old/run_2/rank_0").size(), 1U);
}

TEST_F(EventWriterTest, AFolderThatCannotBeMadeIsNamed) {
  dir_.write("runs", "a file");
  EventWriter writer(folder_, 1);
  EXPECT_ERROR(writer.scalars(1, {{"loss", 1}}), IoError, folder_ + ": the folder cannot be made");
}

TEST_F(EventWriterTest, OnAFullDiskTheFileEndsWithAWholeRecord) {
  EventWriter writer(folder_, 1);
  writer.scalars(1, {{"loss", 1}});
  const size_t size = bytes(0).size();
  const auto former = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit small = limit;
  small.rlim_cur = size + 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_ERROR(writer.scalars(2, {{"loss", 1}}), StorageError, files()[0]);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, former);
  EXPECT_EQ(bytes(0).size(), size);
}

}  // namespace
}  // namespace tapestry::report
