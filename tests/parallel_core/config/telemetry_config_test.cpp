// The section telemetry.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/config/show/render.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

AllConfig telemetry_config(const std::vector<std::string>& keys) {
  return init_configs_from_text(
      "training_config: {training_iters: 4}\nmodel_config:\n  vocab_size: 32\n  num_layers: 1\n"
      "  num_attention_heads: 2\n  hidden_size: 8\n  ffn_hidden_size: 8\n  seq_length: 8\n",
      "t.yaml", {.overrides = keys});
}

TEST(TelemetryConfig, WhatIsNotAskedForHasNoEffectAndSaysSo) {
  const std::vector<std::pair<std::vector<std::string>, size_t>> rows = {
      {{}, 0},
      {{"telemetry.run_name=a", "telemetry.prometheus_interval=1",
        "telemetry.http_address=127.0.0.2", "telemetry.mlflow_experiment=b",
        "telemetry.mlflow_log_interval=5"},
       5},
      {{"telemetry.run_name=a", "telemetry.prometheus=True", "telemetry.prometheus_interval=1"}, 0},
      {{"telemetry.prometheus_file=a.prom", "telemetry.prometheus_interval=1"}, 0},
      {{"telemetry.run_name=a", "telemetry.http_port=0", "telemetry.http_address=::1"}, 0},
      {{"telemetry.run_name=a", "telemetry.mlflow_dir=m", "telemetry.mlflow_log_interval=5"}, 0}};
  for (const auto& [keys, notes] : rows) {
    const AllConfig config = telemetry_config(keys);
    EXPECT_THAT(config.notes, SizeIs(notes)) << ::testing::PrintToString(keys);
    // A run's own config.yaml has none of these.
    EXPECT_THAT(init_configs_from_text(resolved_yaml(config), "config.yaml").notes, IsEmpty());
  }
}

TEST(TelemetryConfig, WhatIsRefused) {
  const std::vector<std::pair<const char*, const char*>> rows = {
      {"http_port=-1", "http_port"},
      {"http_port=65536", "http_port"},
      {"http_address=localhost", "an address in numbers: 127.0.0.1"},
      {"http_address=127.0.0.1:80", "an address in numbers"},
      {"http_address=\"\"", "an address in numbers"},
      {"prometheus_file=a.txt", "end with .prom"},
      {"prometheus_file=folder/.prom", "end with .prom"},
      {"prometheus_interval=0", "prometheus_interval"},
      {"run_name=\"\"", "must not be empty"},
      {"run_name=\"a\\nb\"", "control characters"},
      {"mlflow_dir=\"\"", "must not be empty"},
      {"mlflow_experiment=\"a\\x01\"", "control characters"},
      {"mlflow_log_interval=0", "mlflow_log_interval"}};
  for (const auto& [key, text] : rows) {
    const std::string override = concat("telemetry.", key);
    EXPECT_THAT(message_of<ValueError>([&] { telemetry_config({override}); }), Says(text)) << key;
  }
}

}  // namespace
}  // namespace tapestry
