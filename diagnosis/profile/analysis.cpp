#include "diagnosis/profile/analysis.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/block_owner.h"
#include "autograd/tensor/error.h"
#include "diagnosis/profile/merged_trace.h"
#include "diagnosis/profile/rank_files.h"

namespace tapestry::profile {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json read_json(const std::string& path) {
  json out =
      json::parse(read_file(path, kMaxReadBytes, "a profile has a folder for each rank"), nullptr,
                  /*allow_exceptions=*/false);
  check<IoError>(!out.is_discarded() && out.is_object(), path, ": is no JSON object");
  return out;
}

// A trace that this version wrote, of the steps of the first rank.
RankTrace read_trace(const std::string& folder, int rank) {
  RankTrace trace{.path = rank_folder(folder, rank) + "/trace.json", .json = {}};
  trace.json = read_json(trace.path);
  const json& other = trace.json.value("otherData", json::object());
  check<IoError>(other.value("format", "") == "tapestry profile" && other.value("version", 0) == 1,
                 trace.path, ": is no profile of version 1");
  check<IoError>(other.value("rank", -1) == rank, trace.path, ": is of rank ",
                 other.value("rank", -1));
  return trace;
}

void check_same_window(const json& first, const RankTrace& trace) {
  const json& other = trace.json.at("otherData");
  for (const char* key : {"ranks", "first_step", "last_step"}) {
    check<IoError>(other.value(key, -1) == first.value(key, -1), trace.path, ": ", key, " is ",
                   other.value(key, -1), ", but ", first.value(key, -1), " for rank 0");
  }
}

std::string formatted_number(double value, const char* format = "%.6g") {
  char text[40];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

// RFC 4180.
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) {
    return text;
  }
  std::string out = "\"";
  for (const char c : text) {
    out += c == '"' ? "\"\"" : std::string(1, c);
  }
  return out + "\"";
}

class CsvFile {
 public:
  CsvFile(const std::string& folder, const char* name, const char* header)
      : path_(folder + "/" + name), text_(std::string(header) + "\n") {}
  void row(const std::vector<std::string>& fields) {
    for (size_t i = 0; i < fields.size(); ++i) {
      text_ += (i == 0 ? "" : ",") + field(fields[i]);
    }
    text_ += "\n";
  }
  void write() const { write_file_atomically(path_, text_); }

 private:
  std::string path_;
  std::string text_;
};

double row_value(const json& row, const char* key) { return row.at(key).get<double>(); }
std::string row_text(const json& row, const char* key) { return row.at(key).get<std::string>(); }
std::string whole(const json& row, const char* key) {
  return std::to_string(row.at(key).get<int64_t>());
}
double ratio(double a, double b) { return b > 0 ? a / b : 0; }

// What of a row follows from its sums: share of the time, rates, shares of the peaks.
struct Rates {
  double gflops, of_peak, bandwidth, of_bandwidth;
};
Rates rates_of(double ms, double gflop, double mb, const json& peak) {
  const double gflops = ratio(gflop, ms / 1e3);
  const double bandwidth = ratio(mb / 1e3, ms / 1e3);
  return {gflops, ratio(gflops, row_value(peak, "gflop_per_s")), bandwidth,
          ratio(bandwidth, row_value(peak, "gb_per_s"))};
}

double total_ms(const json& table) {
  double sum = 0;
  for (const json& row : table.at("ops")) {
    sum += row_value(row, "self_ms");
  }
  return sum;
}

void write_ops(const std::vector<json>& tables, const std::string& folder) {
  CsvFile csv(folder, "ops.csv",
              "rank,kind,name,pass,calls,ms,self_ms,share_of_time,gflop,gflop_per_s,"
              "share_of_peak_flops,mb,gb_per_s,share_of_peak_bandwidth");
  for (const json& table : tables) {
    const double total = total_ms(table);
    for (const json& row : table.at("ops")) {
      const double self = row_value(row, "self_ms");
      const Rates rates =
          rates_of(self, row_value(row, "gflop"), row_value(row, "mb"), table.at("peak"));
      csv.row({whole(table, "rank"), row_text(row, "kind"), row_text(row, "name"),
               row_text(row, "pass"), whole(row, "calls"), formatted_number(row_value(row, "ms")),
               formatted_number(self), formatted_number(ratio(self, total)),
               formatted_number(row_value(row, "gflop"), "%.12g"), formatted_number(rates.gflops),
               formatted_number(rates.of_peak), formatted_number(row_value(row, "mb")),
               formatted_number(rates.bandwidth), formatted_number(rates.of_bandwidth)});
    }
  }
  csv.write();
}

// Rows by module and pass, with those of the modules inside it; "" is the whole model.
struct ModuleSum {
  int64_t calls = 0;
  double inside_ms = 0, self_ms = 0, gflop = 0, mb = 0;
};
std::map<std::pair<std::string, std::string>, ModuleSum> module_sums(const json& rows) {
  std::map<std::pair<std::string, std::string>, ModuleSum> sums;
  for (const json& row : rows) {
    const std::string pass = row_text(row, "pass");
    std::string path = row_text(row, "module");
    sums[{path, pass}].self_ms += row_value(row, "self_ms");
    sums[{path, pass}].calls += row.at("calls").get<int64_t>();
    while (true) {
      ModuleSum& sum = sums[{path, pass}];
      sum.inside_ms += row_value(row, "self_ms");
      sum.gflop += row_value(row, "gflop");
      sum.mb += row_value(row, "mb");
      if (path.empty()) {
        break;
      }
      const size_t dot = path.rfind('.');
      path = dot == std::string::npos ? std::string() : path.substr(0, dot);
    }
  }
  return sums;
}

void write_modules(const std::vector<json>& tables, const std::string& folder) {
  CsvFile csv(folder, "modules.csv",
              "rank,module,pass,own_ops,ms,self_ms,share_of_time,gflop,gflop_per_s,"
              "share_of_peak_flops,mb,gb_per_s,share_of_peak_bandwidth");
  for (const json& table : tables) {
    const double total = total_ms(table);
    for (const auto& [key, sum] : module_sums(table.at("modules"))) {
      const Rates rates = rates_of(sum.inside_ms, sum.gflop, sum.mb, table.at("peak"));
      csv.row({whole(table, "rank"), key.first, key.second, std::to_string(sum.calls),
               formatted_number(sum.inside_ms), formatted_number(sum.self_ms),
               formatted_number(ratio(sum.inside_ms, total)), formatted_number(sum.gflop, "%.12g"),
               formatted_number(rates.gflops), formatted_number(rates.of_peak),
               formatted_number(sum.mb), formatted_number(rates.bandwidth),
               formatted_number(rates.of_bandwidth)});
    }
  }
  csv.write();
}

void write_communication(const std::vector<json>& tables, const std::string& folder) {
  CsvFile csv(folder, "communication.csv", "rank,group,kind,calls,bytes,ms,waited_ms,gb_per_s");
  for (const json& table : tables) {
    for (const json& row : table.at("communication")) {
      const double ms = row_value(row, "ms");
      csv.row({whole(table, "rank"), row_text(row, "group"), row_text(row, "kind"),
               whole(row, "calls"), whole(row, "bytes"), formatted_number(ms),
               formatted_number(row_value(row, "waited_ms")),
               formatted_number(ratio(row_value(row, "bytes") / 1e9, ms / 1e3))});
    }
  }
  csv.write();
}

void write_data(const std::vector<json>& tables, const std::string& folder) {
  CsvFile csv(folder, "data.csv", "rank,step,micro_batch,ms");
  for (const json& table : tables) {
    for (const json& row : table.at("data")) {
      const bool is_step = row.at("micro_batch").get<int>() < 0;
      csv.row({whole(table, "rank"), whole(row, "step"),
               is_step ? std::string("all") : whole(row, "micro_batch"),
               formatted_number(row_value(row, "ms"))});
    }
  }
  csv.write();
}

void write_memory(const std::vector<json>& tables, const std::string& folder) {
  CsvFile csv(folder, "memory.csv", "rank,module,op,kind,bytes,blocks,share_of_peak");
  for (const json& table : tables) {
    const double peak = row_value(table.at("memory"), "peak_bytes");
    for (const json& row : table.at("memory").at("held")) {
      csv.row({whole(table, "rank"), row_text(row, "module"), row_text(row, "op"),
               row_text(row, "kind"), whole(row, "bytes"), whole(row, "blocks"),
               formatted_number(ratio(row_value(row, "bytes"), peak))});
    }
  }
  csv.write();
}

// Folded stacks, as flame graphs are drawn from: "a;b;c MICROSECONDS", all ranks together.
void write_stacks(const std::vector<json>& tables, const std::string& folder) {
  std::map<std::string, int64_t> sums;
  for (const json& table : tables) {
    for (const auto& [stack, ns] : table.at("stacks").items()) {
      sums[stack] += ns.get<int64_t>();
    }
  }
  std::string text;
  for (const auto& [stack, ns] : sums) {
    text += concat(stack, " ", std::max<int64_t>(ns, 0) / 1000, "\n");
  }
  write_file_atomically(folder + "/stacks.txt", text);
}

void write_layout(const std::vector<json>& tables, const std::string& folder) {
  json ranks = json::array();
  for (const json& table : tables) {
    ranks.push_back(table.at("layout"));
  }
  write_file_atomically(folder + "/parallel_strategy.json",
                        json{{"ranks", std::move(ranks)}}.dump(2) + "\n");
}

// Of all ranks together.
std::string ops_text(const std::vector<json>& tables) {
  constexpr size_t kShown = 15;
  struct Sum {
    std::string name, pass;
    int64_t calls = 0;
    double self_ms = 0, gflop = 0, mb = 0;
  };
  std::map<std::tuple<std::string, std::string, std::string>, Sum> by_key;
  double total = 0;
  json peak = {{"gflop_per_s", 0.0}, {"gb_per_s", 0.0}};
  for (const json& table : tables) {
    total += total_ms(table);
    for (const char* key : {"gflop_per_s", "gb_per_s"}) {
      peak[key] = row_value(peak, key) + row_value(table.at("peak"), key) / double(tables.size());
    }
    for (const json& row : table.at("ops")) {
      const std::string kind = row_text(row, "kind");
      Sum& sum = by_key[{kind, row_text(row, "name"), row_text(row, "pass")}];
      sum.name =
          kind == "op" ? row_text(row, "name") : concat("(", kind, ") ", row_text(row, "name"));
      sum.pass = row_text(row, "pass");
      sum.calls += row.at("calls").get<int64_t>();
      sum.self_ms += row_value(row, "self_ms");
      sum.gflop += row_value(row, "gflop");
      sum.mb += row_value(row, "mb");
    }
  }
  std::vector<Sum> sums;
  for (const auto& [key, sum] : by_key) {
    sums.push_back(sum);
  }
  std::stable_sort(sums.begin(), sums.end(),
                   [](const Sum& a, const Sum& b) { return a.self_ms > b.self_ms; });
  char line[160];
  std::snprintf(line, sizeof(line), "%-28s %-8s %7s %10s %6s %9s %7s %8s %7s\n", "op", "pass",
                "calls", "ms", "share", "GFLOP/s", "of peak", "GB/s", "of peak");
  std::string text = line;
  for (size_t i = 0; i < std::min(kShown, sums.size()); ++i) {
    const Sum& sum = sums[i];
    const Rates rates = rates_of(sum.self_ms, sum.gflop, sum.mb, peak);
    std::snprintf(line, sizeof(line),
                  "%-28.28s %-8s %7lld %10.2f %5.1f%% %9.1f %6.1f%% %8.2f %6.1f%%\n",
                  sum.name.c_str(), sum.pass.c_str(), static_cast<long long>(sum.calls),
                  sum.self_ms, 100 * ratio(sum.self_ms, total), rates.gflops, 100 * rates.of_peak,
                  rates.bandwidth, 100 * rates.of_bandwidth);
    text += line;
  }
  if (sums.size() > kShown) {
    text += concat("and ", sums.size() - kShown, " more in ops.csv\n");
  }
  return text;
}

MemoryKind kind_named(const std::string& name) {
  for (int k = 0; k < kNumMemoryKinds; ++k) {
    if (name_of(static_cast<MemoryKind>(k)) == name) {
      return static_cast<MemoryKind>(k);
    }
  }
  return MemoryKind::kWorkspace;
}

// Of the rank that held most.
std::string memory_text(const std::vector<json>& tables) {
  constexpr size_t kShown = 10;
  const auto peak = [](const json& table) { return row_value(table.at("memory"), "peak_bytes"); };
  const json& most =
      *std::max_element(tables.begin(), tables.end(),
                        [&](const json& a, const json& b) { return peak(a) < peak(b); });
  std::vector<HeldMemory> held;
  for (const json& row : most.at("memory").at("held")) {
    held.push_back({.module = row_text(row, "module"),
                    .op = row_text(row, "op"),
                    .kind = kind_named(row_text(row, "kind")),
                    .bytes = row.at("bytes").get<int64_t>(),
                    .blocks = row.at("blocks").get<int64_t>()});
  }
  return concat("memory at the peak of rank ", whole(most, "rank"), ", ",
                formatted_number(peak(most) / (1 << 20), "%.1f"), " MiB:\n",
                held_text(std::move(held), kShown));
}

std::string title(const std::vector<json>& tables, const std::string& folder) {
  const json& first = tables.front();
  double ms = 0;
  for (const json& table : tables) {
    ms += row_value(table, "steps_ms") / row_value(table, "steps") / double(tables.size());
  }
  return concat("profile of steps ", whole(first, "first_step"), " to ", whole(first, "last_step"),
                " on ", tables.size(), tables.size() == 1 ? " rank" : " ranks", ": ",
                formatted_number(ms, "%.2f"), " ms a step; ", folder,
                "/trace.json opens in https://ui.perfetto.dev or chrome://tracing\n");
}

}  // namespace

std::string analyse(const std::string& folder) {
  std::vector<RankTrace> traces = {read_trace(folder, 0)};
  const json other = traces.front().json.at("otherData");
  const int ranks = other.at("ranks").get<int>();
  std::vector<json> tables = {read_json(rank_folder(folder, 0) + "/tables.json")};
  for (int rank = 1; rank < ranks; ++rank) {
    traces.push_back(read_trace(folder, rank));
    check_same_window(other, traces.back());
    tables.push_back(read_json(rank_folder(folder, rank) + "/tables.json"));
  }
  try {
    write_merged_trace(std::move(traces), folder + "/trace.json");
    std::string text = title(tables, folder);
    const auto has = [&](const char* key) { return tables.front().contains(key); };
    if (has("ops")) {
      write_ops(tables, folder);
      write_modules(tables, folder);
      text += ops_text(tables);
    }
    if (has("communication")) {
      write_communication(tables, folder);
    }
    if (has("data")) {
      write_data(tables, folder);
    }
    if (has("memory")) {
      write_memory(tables, folder);
      text += memory_text(tables);
    }
    if (has("stacks")) {
      write_stacks(tables, folder);
    }
    if (has("layout")) {
      write_layout(tables, folder);
    }
    return text;
  } catch (const json::exception& error) {
    throw IoError(concat(folder, ": its files are not those of a profile: ", error.what()));
  }
}

void remove_rank_files(const std::string& folder, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    std::error_code error;
    fs::remove_all(rank_folder(folder, rank), error);
  }
}

}  // namespace tapestry::profile
