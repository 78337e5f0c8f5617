#include "parallel_core/training/step/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <limits>

#include "autograd/io/atomic_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using Json = nlohmann::ordered_json;

StepResult some_result() {
  StepResult result;
  result.loss = 0.1 + 0.2;
  result.grad_norm = 1.0 / 3;
  result.lr = {1.25e-06, 1e-300};
  result.loss_tokens = 511;
  result.tokens = 1024;
  result.loss_scale = 4096;
  return result;
}

std::vector<std::string> keys_of(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) {
    keys.push_back(key);
  }
  return keys;
}

TEST(MetricsLine, HasTheKeysAndEveryDigit) {
  StepRecord record{.step = 5, .epoch = 1, .step_time_ms = 12.3456789};
  record.memory.peak_bytes = 1LL << 40;
  record.memory.current_by_kind = {1, 2, 3, 4, 5};  // in the order of MemoryKind
  record.memory.peak_by_kind = {10, 20, 30, 40, 50};
  record.memory.reserved_bytes = 60;
  record.process = {.current_bytes = 70, .peak_bytes = 80};
  const std::string line = metrics_line(record, some_result());
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const Json json = Json::parse(line);
  EXPECT_THAT(
      keys_of(json),
      ::testing::ElementsAre("step", "epoch", "loss", "grad_norm", "lr", "loss_tokens", "tokens",
                             "step_time_ms", "peak_bytes", "finite", "loss_scale", "memory"));
  EXPECT_THAT(keys_of(json["memory"]),
              ::testing::ElementsAre("parameters", "gradients", "optimizer", "activations",
                                     "workspace", "process"));
  EXPECT_EQ(json["memory"]["process"]["current_bytes"], 70);
  EXPECT_EQ(json["memory"]["process"]["peak_bytes"], 80);
  EXPECT_EQ(json["memory"]["process"]["reserved_bytes"], 60);
  EXPECT_EQ(json["memory"]["activations"]["current_bytes"], 1);
  EXPECT_EQ(json["memory"]["parameters"]["current_bytes"], 2);
  EXPECT_EQ(json["memory"]["gradients"]["peak_bytes"], 30);
  EXPECT_EQ(json["memory"]["optimizer"]["peak_bytes"], 40);
  EXPECT_EQ(json["memory"]["workspace"]["peak_bytes"], 50);
  EXPECT_EQ(json["step"], 5);
  EXPECT_EQ(json["epoch"], 1);
  EXPECT_EQ(json["loss"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(json["grad_norm"].get<double>(), 1.0 / 3);
  EXPECT_EQ(json["lr"].get<std::vector<double>>(), (std::vector<double>{1.25e-06, 1e-300}));
  EXPECT_EQ(json["loss_tokens"].get<double>(), 511);
  EXPECT_EQ(json["tokens"], 1024);
  EXPECT_EQ(json["step_time_ms"].get<double>(), 12.3456789);
  EXPECT_EQ(json["peak_bytes"], 1LL << 40);
  EXPECT_EQ(json["finite"], true);
  EXPECT_EQ(json["loss_scale"], 4096.0);
}

TEST(MemoryLine, SaysEveryKind) {
  MemoryStats stats;
  stats.peak_bytes = 3 << 20;
  stats.current_by_kind = {0, 1024, 2048, 3072, 0};
  stats.peak_by_kind = {1 << 20, 1024, 2048, 3072, 512};
  EXPECT_EQ(memory_line(stats, {.current_bytes = 1, .peak_bytes = 4 << 20}),
            "memory: parameters 1.0 KiB (peak 1.0 KiB), gradients 2.0 KiB (peak 2.0 KiB), "
            "optimizer 3.0 KiB (peak 3.0 KiB), activations 0 B (peak 1.0 MiB), "
            "workspace 0 B (peak 512 B); peak together 3.0 MiB, of the process 4.0 MiB");
}

TEST(MetricsLine, OptionalKeys) {
  StepResult result = some_result();
  result.grad_norms = {{"layers.0.attention.wq.weight", 0.7}, {"tok_embeddings.weight", 0.1}};
  const Json json = Json::parse(metrics_line({.step = 1, .eval_loss = 2.5}, result));
  EXPECT_EQ(json["eval_loss"], 2.5);
  EXPECT_EQ(json["eval_perplexity"].get<double>(), std::exp(2.5));
  EXPECT_EQ(json["grad_norms"]["layers.0.attention.wq.weight"].get<double>(), 0.7);
  EXPECT_EQ(json["grad_norms"].size(), 2U);
}

TEST(MetricsLine, HasWhatFurtherPredictionsAdd) {
  StepResult result = some_result();
  EXPECT_FALSE(Json::parse(metrics_line({}, result)).contains("mtp_1_loss"));
  result.mtp_losses = {0.1 + 0.2, 0.5};
  const Json json = Json::parse(metrics_line({}, result));
  EXPECT_EQ(json["mtp_1_loss"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(json["mtp_2_loss"].get<double>(), 0.5);
}

TEST(MetricsLine, SpellsWhatIsNotFinite) {
  StepResult result = some_result();
  result.loss = std::numeric_limits<double>::quiet_NaN();
  result.grad_norm = std::numeric_limits<double>::infinity();
  result.lr = {-std::numeric_limits<double>::infinity()};
  result.finite = false;
  const Json json = Json::parse(metrics_line({}, result));
  EXPECT_EQ(json["loss"], "nan");
  EXPECT_EQ(json["grad_norm"], "inf");
  EXPECT_EQ(json["lr"][0], "-inf");
  EXPECT_EQ(json["finite"], false);
}

TEST(MetricsWriter, AppendsALineAStepReadableAtOnce) {
  const data::TempDir dir;
  const std::string path = dir.write("metrics.jsonl", "of an earlier run\n");
  MetricsWriter writer(path);
  std::string expected = "of an earlier run\n";
  EXPECT_EQ(dir.read("metrics.jsonl"), expected);
  for (const int64_t step : {1, 2}) {
    writer.write({.step = step}, some_result());
    expected += metrics_line({.step = step}, some_result()) + "\n";
    EXPECT_EQ(dir.read("metrics.jsonl"), expected);
  }
}

std::string line_of(int64_t step) { return metrics_line({.step = step}, some_result()) + "\n"; }

// What a writer that goes on after a step leaves of a file, before it writes.
std::string kept_of(const std::string& content, int64_t resume_step) {
  const data::TempDir dir;
  const std::string path = dir.write("metrics.jsonl", content);
  { const MetricsWriter writer(path, resume_step); }
  EXPECT_EQ(dir.names(), std::vector<std::string>{"metrics.jsonl"});
  return dir.read("metrics.jsonl");
}

TEST(MetricsWriter, ARunThatGoesOnDropsWhatItDoesAgain) {
  const std::string three = line_of(1) + line_of(2) + line_of(3);
  const std::string four = line_of(4);
  EXPECT_EQ(kept_of(three + four + line_of(5), 3), three);
  EXPECT_EQ(kept_of(three, 3), three);
  EXPECT_EQ(kept_of(three, 7), three);
  EXPECT_EQ(kept_of(three, 0), "");
  EXPECT_EQ(kept_of("", 3), "");
  // Torn anywhere, in a later step or in one that is kept.
  for (const std::string& last : {four, line_of(3)}) {
    for (size_t size = 1; size + 1 < last.size(); ++size) {
      ASSERT_EQ(kept_of(three + last.substr(0, size), 3), three) << size;
    }
  }
  EXPECT_EQ(kept_of(three + std::string(100, '\0'), 3), three);
  // Only its line break is missing.
  EXPECT_EQ(kept_of(three + four.substr(0, four.size() - 1), 3), three);
  EXPECT_EQ(kept_of(three + four.substr(0, four.size() - 1), 4), three + four);
}

TEST(MetricsWriter, WhatItDoesNotDropStaysAsItIs) {
  // Steps out of order, a line in another spelling, lines of somebody else.
  const std::string mine = "# from the first machine\n\n{ \"loss\": 1, \"step\" : 2 }\r\nstep 9\n";
  const std::string later = "{\"loss\": 1, \"step\": 12}\n";
  EXPECT_EQ(kept_of(line_of(1) + line_of(12) + mine + line_of(3) + later, 3),
            line_of(1) + mine + line_of(3));
  EXPECT_EQ(kept_of(later + mine, 3), mine);
  EXPECT_EQ(kept_of("{\"step\":2.5}\n{\"step\":\"9\"}\n{\"step\":null}\n", 1),
            "{\"step\":2.5}\n{\"step\":\"9\"}\n{\"step\":null}\n");
}

TEST(MetricsWriter, GoesOnWhereTheOtherOneStopped) {
  const data::TempDir dir;
  const std::string path = dir.file("metrics.jsonl");
  const auto run = [&](std::optional<int64_t> resume_step, int64_t first, int64_t last) {
    MetricsWriter writer(path, resume_step);
    for (int64_t step = first; step <= last; ++step) {
      writer.write({.step = step}, some_result());
    }
    writer.sync();
  };
  run(0, 1, 5);  // nothing to go on with yet
  run(3, 4, 7);
  run(7, 8, 8);
  std::string expected;
  for (int64_t step = 1; step <= 8; ++step) {
    expected += line_of(step);
  }
  EXPECT_EQ(dir.read("metrics.jsonl"), expected);
}

TEST(MetricsWriter, SaysWhatCannotBeWritten) {
  const data::TempDir dir;
  EXPECT_ERROR(MetricsWriter(dir.file("missing/metrics.jsonl")), IoError, "missing/metrics.jsonl");
  EXPECT_ERROR(MetricsWriter("/dev/full"), IoError, "/dev/full: is a device");
  ASSERT_EQ(::mkfifo(dir.file("pipe").c_str(), 0600), 0);  // nobody ever reads it
  EXPECT_ERROR(MetricsWriter(dir.file("pipe")), IoError, "pipe: is a pipe");
}

// The limit cuts the third line in two.
TEST(MetricsWriter, AFullDiskLeavesWholeLines) {
  const data::TempDir dir;
  const std::string line = metrics_line({.step = 1}, some_result()) + "\n";
  MetricsWriter writer(dir.file("metrics.jsonl"));
  struct rlimit old {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = old;
  small.rlim_cur = line.size() * 5 / 2;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  writer.write({.step = 1}, some_result());
  writer.write({.step = 1}, some_result());
  EXPECT_ERROR(writer.write({.step = 1}, some_result()), StorageError, "metrics.jsonl");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(dir.read("metrics.jsonl"), line + line);
}

}  // namespace
}  // namespace tapestry
