#include "diagnosis/profile/rank_files.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"

namespace tapestry::profile {

namespace {

using nlohmann::ordered_json;

double microseconds(int64_t ns) { return static_cast<double>(ns) / 1e3; }
double milliseconds(int64_t ns) { return static_cast<double>(ns) / 1e6; }

std::string dumped(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// One event a line, so that a trace of millions needs no memory.
class EventWriter {
 public:
  EventWriter(AtomicFile& file, int rank, int64_t zero) : file_(file), rank_(rank), zero_(zero) {}

  void metadata(const char* name, int tid, const char* key, const ordered_json& value) {
    add({{"ph", "M"}, {"name", name}, {"pid", rank_}, {"tid", tid}, {"args", {{key, value}}}});
  }
  void slice(const std::string& name,
             std::string_view category,
             int tid,
             int64_t begin,
             int64_t end,
             ordered_json args) {
    ordered_json event = {{"ph", "X"},
                          {"name", name},
                          {"cat", category},
                          {"pid", rank_},
                          {"tid", tid},
                          {"ts", microseconds(begin - zero_)},
                          {"dur", microseconds(end - begin)}};
    if (!args.empty()) {
      event["args"] = std::move(args);
    }
    add(event);
  }
  void counter(const char* name, int64_t at, const char* series, int64_t value) {
    add({{"ph", "C"},
         {"name", name},
         {"pid", rank_},
         {"tid", 0},
         {"ts", microseconds(at - zero_)},
         {"args", {{series, value}}}});
  }

 private:
  void add(const ordered_json& event) {
    file_.write((first_ ? "" : ",\n") + dumped(event));
    first_ = false;
  }

  AtomicFile& file_;
  int rank_;
  int64_t zero_;
  bool first_ = true;
};

ordered_json arguments_of(const Slice& slice, const Names& names) {
  ordered_json args = ordered_json::object();
  const auto text = [&](const char* key, uint32_t id) {
    if (!names[id].empty()) {
      args[key] = names[id];
    }
  };
  if (slice.category == Category::kOp || slice.category == Category::kWait) {
    text("module", slice.module);
  }
  if (slice.category == Category::kStep) {
    args["step"] = slice.step;
  }
  if (slice.category == Category::kPhase && slice.micro_batch >= 0) {
    args["micro_batch"] = slice.micro_batch;
    args["chunk"] = slice.chunk;
  }
  if (slice.category == Category::kOp) {
    args["pass"] = name_of(slice.pass);
    args["mb"] = slice.bytes / 1e6;
  }
  if (slice.flops > 0) {
    args["gflop"] = slice.flops / 1e9;
  }
  text("stack", slice.stack);
  return args;
}

std::string title_of(const Slice& slice, const Names& names) {
  const std::string& name = names[slice.name];
  switch (slice.category) {
    case Category::kStep:
      return concat("step ", slice.step);
    case Category::kWait:
      return concat("wait for ", name);
    case Category::kModule:
    case Category::kOp:
      return slice.pass == OpPass::kForward ? name : concat(name, " ", name_of(slice.pass));
    case Category::kPhase:
      break;
  }
  return name;
}

void write_slices(EventWriter& events, const Recording& recording) {
  std::vector<const Slice*> sorted;
  for (const Slice& slice : recording.slices) {
    sorted.push_back(&slice);
  }
  // The outer one first, also where both are too short to tell: it has ended later.
  std::reverse(sorted.begin(), sorted.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const Slice* left, const Slice* right) {
    return std::pair(left->begin, -left->end) < std::pair(right->begin, -right->end);
  });
  for (const Slice* slice : sorted) {
    events.slice(title_of(*slice, recording.names), name_of(slice->category),
                 static_cast<int>(slice->track), slice->begin, slice->end,
                 arguments_of(*slice, recording.names));
  }
}

// Collectives overlap: each goes into the first row that is free. Rows from the second on have
// numbers of their own.
std::map<int, std::vector<const Exchange*>> rows_of(const std::vector<Exchange>& exchanges) {
  constexpr int kFurtherRows = 10;
  std::vector<const Exchange*> sorted;
  for (const Exchange& exchange : exchanges) {
    sorted.push_back(&exchange);
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const Exchange* left, const Exchange* right) {
    return left->begin < right->begin;
  });
  std::map<int, std::vector<const Exchange*>> rows;
  for (const Exchange* exchange : sorted) {
    int row = 0;
    const auto tid = [&] { return static_cast<int>(Track::kCommunication) + row * kFurtherRows; };
    while (rows.count(tid()) != 0 && rows.at(tid()).back()->end > exchange->begin) {
      ++row;
    }
    rows[tid()].push_back(exchange);
  }
  return rows;
}

void write_exchanges(EventWriter& events, const Recording& recording) {
  int number = 0;
  for (const auto& [tid, exchanges] : rows_of(recording.exchanges)) {
    events.metadata("thread_name", tid, "name",
                    number == 0 ? "communication" : concat("communication ", number + 1));
    events.metadata("thread_sort_index", tid, "sort_index", 10 + number);
    ++number;
    for (const Exchange* e : exchanges) {
      ordered_json args = {{"group", recording.names[e->group]},
                           {"group_id", std::to_string(e->group_id)},
                           {"sequence", e->sequence},
                           {"bytes", e->bytes}};
      if (e->peer >= 0) {
        args["peer"] = e->peer;
      }
      if (!recording.names[e->module].empty()) {
        args["module"] = recording.names[e->module];
      }
      args["waited_us"] = microseconds(e->waited);
      events.slice(recording.names[e->kind], "communication", tid, e->begin, e->end,
                   std::move(args));
    }
  }
}

void write_trace(const RankProfile& profile, const std::string& path) {
  const Recording& recording = profile.recording;
  AtomicFile file(path);
  file.write("{\"traceEvents\": [\n");
  EventWriter events(file, profile.rank, profile.start.front());
  events.metadata("process_name", 0, "name", concat("rank ", profile.rank));
  events.metadata("process_sort_index", 0, "sort_index", profile.rank);
  constexpr std::array<std::pair<Track, const char*>, 3> kTracks = {
      {{Track::kCompute, "compute"}, {Track::kData, "data"}, {Track::kCheckpoint, "checkpoint"}}};
  for (const auto& [track, name] : kTracks) {
    const int tid = static_cast<int>(track);
    events.metadata("thread_name", tid, "name", name);
    events.metadata("thread_sort_index", tid, "sort_index",
                    track == Track::kCompute ? 0 : 90 + tid);
  }
  write_slices(events, recording);
  write_exchanges(events, recording);
  for (const MemoryPoint& point : recording.memory) {
    events.counter("memory", point.time, "bytes", point.bytes);
  }
  const ordered_json other = {{"format", "tapestry profile"},
                              {"version", 1},
                              {"rank", profile.rank},
                              {"ranks", profile.ranks},
                              {"first_step", recording.first_step},
                              {"last_step", recording.last_step},
                              {"barriers_at_start_ns", profile.start},
                              {"barriers_at_end_ns", profile.end}};
  file.write(concat("\n],\n\"displayTimeUnit\": \"ms\",\n\"otherData\": ", dumped(other), "}\n"));
  file.commit();
}

ordered_json work_row(const WorkSum& sum) {
  return {{"calls", sum.calls},
          {"ms", milliseconds(sum.ns)},
          {"self_ms", milliseconds(sum.self_ns)},
          {"gflop", sum.flops / 1e9},
          {"mb", sum.bytes / 1e6}};
}

ordered_json communication_table(const Recording& recording) {
  struct Sum {
    int64_t calls = 0, bytes = 0, ns = 0, waited = 0;
  };
  std::map<std::pair<std::string, std::string>, Sum> sums;
  for (const Exchange& e : recording.exchanges) {
    Sum& sum = sums[{recording.names[e.group], recording.names[e.kind]}];
    ++sum.calls;
    sum.bytes += e.bytes;
    sum.ns += e.end - e.begin;
    sum.waited += e.waited;
  }
  ordered_json rows = ordered_json::array();
  for (const auto& [key, sum] : sums) {
    rows.push_back({{"group", key.first},
                    {"kind", key.second},
                    {"calls", sum.calls},
                    {"bytes", sum.bytes},
                    {"ms", milliseconds(sum.ns)},
                    {"waited_ms", milliseconds(sum.waited)}});
  }
  return rows;
}

ordered_json tables_of(const RankProfile& profile) {
  const Recording& recording = profile.recording;
  int64_t steps_ns = 0;
  for (const Slice& slice : recording.slices) {
    steps_ns += slice.category == Category::kStep ? slice.end - slice.begin : 0;
  }
  ordered_json tables = {
      {"rank", profile.rank},
      {"steps", recording.last_step - recording.first_step + 1},
      {"first_step", recording.first_step},
      {"last_step", recording.last_step},
      {"steps_ms", milliseconds(steps_ns)},
      {"peak",
       {{"gflop_per_s", profile.peak.flops / 1e9}, {"gb_per_s", profile.peak.bytes / 1e9}}}};
  if (profile.op_time) {
    tables["ops"] = ordered_json::array();
    for (const auto& [key, sum] : recording.work) {
      ordered_json row = {{"kind", name_of(key.category)},
                          {"name", recording.names[key.name]},
                          {"pass", key.category == Category::kOp ? name_of(key.pass) : ""}};
      row.update(work_row(sum));
      tables["ops"].push_back(std::move(row));
    }
    tables["modules"] = ordered_json::array();
    for (const auto& [key, sum] : recording.modules) {
      ordered_json row = {{"module", recording.names[key.module]}, {"pass", name_of(key.pass)}};
      row.update(work_row(sum));
      tables["modules"].push_back(std::move(row));
    }
  }
  if (profile.communication) {
    tables["communication"] = communication_table(recording);
  }
  if (profile.data) {
    tables["data"] = ordered_json::array();
    for (const Slice& slice : recording.slices) {
      const std::string& name = recording.names[slice.name];
      if (slice.track == Track::kData && (name == "fetch" || name == "data")) {
        tables["data"].push_back({{"step", slice.step},
                                  {"micro_batch", slice.micro_batch},
                                  {"ms", milliseconds(slice.end - slice.begin)}});
      }
    }
  }
  if (profile.memory) {
    ordered_json held = ordered_json::array();
    for (const HeldMemory& h : profile.memory->held) {
      held.push_back({{"module", h.module},
                      {"op", h.op},
                      {"kind", name_of(h.kind)},
                      {"bytes", h.bytes},
                      {"blocks", h.blocks}});
    }
    tables["memory"] = {{"peak_bytes", profile.memory->bytes}, {"held", std::move(held)}};
  }
  if (!recording.stacks.empty()) {
    tables["stacks"] = ordered_json::object();
    for (const auto& [stack, ns] : recording.stacks) {
      tables["stacks"][recording.names[stack]] = ns;
    }
  }
  if (!profile.layout.is_null()) {
    tables["layout"] = profile.layout;
  }
  return tables;
}

}  // namespace

std::string rank_folder(const std::string& folder, int rank) {
  return concat(folder, "/rank_", rank);
}

void write_rank_files(const RankProfile& profile, const std::string& folder) {
  const std::string own = rank_folder(folder, profile.rank);
  std::error_code error;
  std::filesystem::create_directories(own, error);
  check<IoError>(!error, own, ": cannot create the folder: ", error.message());
  write_trace(profile, own + "/trace.json");
  write_file_atomically(own + "/tables.json", dumped(tables_of(profile)) + "\n");
}

}  // namespace tapestry::profile
