// Rows of `telemetry`.
#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace telemetry_section {
namespace {

using T = TelemetryConfig;
template <auto... Path>
constexpr Field f = field_of<&AllConfig::telemetry, Path...>();

// Names stand in labels, YAML and the names of files of other programs.
std::string check_name(const Value& value) {
  const auto& name = value.as<std::string>();
  const bool has_controls = std::any_of(name.begin(), name.end(), [](unsigned char c) {
    return c < ' ' || c == 0x7F;  // DEL
  });
  return name.empty()   ? "must not be empty"
         : has_controls ? "must not have control characters"
                        : "";
}

// The textfile collector reads no other files.
std::string check_prom(const Value& value) {
  const auto& path = value.as<std::string>();
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.ends_with(".prom") && name.size() > 5
             ? ""
             : "must end with .prom, as node_exporter reads no other files";
}

// Never the name of a host: whom it stands for is decided elsewhere, and may change.
std::string check_address(const Value& value) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  const auto& text = value.as<std::string>();
  const bool is_number = inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 ||
                         inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1;
  return is_number
             ? ""
             : "must be an address in numbers: 127.0.0.1 for programs of the same host, 0.0.0.0 "
               "for everybody who reaches the host";
}

constexpr Check kName = satisfies(check_name, "not empty, without control characters");

constexpr Key kKeys[] = {
    {.name = "run_name",
     .field = f<&T::run_name>,
     .check = kName,
     .doc = "What the run is called in Prometheus' label `run` and in MLflow; null: as its output "
            "folder."},
    {.name = "prometheus",
     .field = f<&T::prometheus>,
     .doc = "Write metrics.prom, in the text format of Prometheus, to the output folder. "
            "`docs/monitoring.md` lists what it holds."},
    {.name = "prometheus_file",
     .field = f<&T::prometheus_file>,
     .check = satisfies(check_prom, "a path that ends with .prom"),
     .path = true,
     .doc =
         "Path of metrics.prom, in the folder of node_exporter's textfile collector for example; "
         "null: the output folder has it, if `prometheus` is on."},
    {.name = "prometheus_interval",
     .field = f<&T::prometheus_interval>,
     .check = {.low = 0.1, .high = 3600},
     .doc = "Seconds between two versions of metrics.prom. A run that does no steps writes none."},
    {.name = "http_port",
     .field = f<&T::http_port>,
     .check = between(0, 65535),
     .doc = "Port at which the first rank answers a Prometheus server with the content of "
            "metrics.prom, "
            "as /metrics; 0: one that is free, which the log names; null: none."},
    {.name = "http_address",
     .field = f<&T::http_address>,
     .check = satisfies(check_address, "an address in numbers"),
     .doc = "Address of `http_port`. With 127.0.0.1 only programs of the same host can ask."},
    {.name = "mlflow_dir",
     .field = f<&T::mlflow_dir>,
     .check = satisfies(
         [](const Value& v) {
           return std::string(v.as<std::string>().empty() ? "must not be empty" : "");
         },
         "not empty"),
     .path = true,
     .doc = "Folder of MLflow's file store, usually named mlruns, to which the run adds itself; "
            "null: none."},
    {.name = "mlflow_experiment",
     .field = f<&T::mlflow_experiment>,
     .check = kName,
     .doc = "Name of the experiment in `mlflow_dir` that the run belongs to; it is made if it is "
            "not there."},
    {.name = "mlflow_log_interval",
     .field = f<&T::mlflow_log_interval>,
     .check = above(0),
     .doc = "Steps between the values in `mlflow_dir`. Losses of an evaluation are written at its "
            "step in any case."},
};

}  // namespace
}  // namespace telemetry_section

std::span<const Key> telemetry_keys() { return telemetry_section::kKeys; }

}  // namespace tapestry::config
