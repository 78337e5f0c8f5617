#include "diagnosis/profile/merged_trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"

namespace tapestry::profile {

namespace {

using nlohmann::json;

int64_t median_difference(const std::vector<int64_t>& to, const std::vector<int64_t>& from) {
  std::vector<int64_t> differences;
  for (size_t i = 0; i < std::min(to.size(), from.size()); ++i) {
    differences.push_back(to[i] - from[i]);
  }
  const auto middle = differences.begin() + std::ssize(differences) / 2;
  std::nth_element(differences.begin(), middle, differences.end());
  return *middle;
}

int64_t to_ns(const json& microseconds) { return std::llround(microseconds.get<double>() * 1e3); }
double to_us(int64_t ns) { return static_cast<double>(ns) / 1e3; }

// One end of an arrow: a slice of a collective.
struct End {
  int rank;
  int tid;
  int64_t begin;
  int64_t end;
};
// A message: group, "message", source, destination, sequence. A collective: group, kind, -1, -1,
// sequence.
using ArrowKey = std::tuple<std::string, std::string, int, int, uint64_t>;
struct Arrow {
  std::vector<End> ends;  // of a message: the send and the receive
  bool has_send = false;
  bool has_receive = false;
};

// FNV-1a: the same number wherever the trace is merged.
uint64_t id_of(const ArrowKey& key) {
  const auto& [group, kind, source, destination, sequence] = key;
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : concat(group, "/", kind, "/", source, "/", destination, "/", sequence)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return hash;
}

class TraceMerger {
 public:
  explicit TraceMerger(const std::string& path) : file_(path) {
    file_.write("{\"traceEvents\": [\n");
  }

  void add_rank(const RankTrace& trace, const ClockCorrection& correction, int64_t zero) {
    const json& other = trace.json.at("otherData");
    const int rank = other.at("rank").get<int>();
    const int64_t own_zero = other.at("barriers_at_start_ns").front().get<int64_t>();
    const auto corrected = [&](int64_t time) { return correction(own_zero + time) - zero; };
    for (json event : trace.json.at("traceEvents")) {
      if (event.contains("ts")) {
        const int64_t begin = to_ns(event["ts"]);
        const int64_t at = corrected(begin);
        event["ts"] = to_us(at);
        if (event.contains("dur")) {
          const int64_t end = corrected(begin + to_ns(event["dur"]));
          event["dur"] = to_us(end - at);
          note(event, {rank, event.at("tid").get<int>(), at, end});
        }
      }
      add(event);
    }
    clocks_.push_back(
        {{"rank", rank}, {"shift_us", to_us(correction.shift())}, {"scale", correction.scale()}});
  }

  void add_arrows() {
    for (auto& [key, arrow] : arrows_) {
      const bool is_message = std::get<1>(key) == "message";
      if (arrow.ends.size() < 2 || (is_message && !(arrow.has_send && arrow.has_receive))) {
        continue;  // the other end is not in the window
      }
      if (!is_message) {
        std::stable_sort(arrow.ends.begin(), arrow.ends.end(),
                         [](const End& a, const End& b) { return a.begin < b.begin; });
      }
      for (size_t i = 0; i < arrow.ends.size(); ++i) {
        const bool is_last = i + 1 == arrow.ends.size();
        const End& end = arrow.ends[i];
        // Within its slice: what is received, at its end.
        const int64_t at = is_message && is_last ? std::max(end.begin, end.end - 1) : end.begin;
        json event = {{"ph", i == 0    ? "s"
                             : is_last ? "f"
                                       : "t"},
                      {"name", std::get<1>(key)},
                      {"cat", "communication"},
                      {"id", std::to_string(id_of(key))},
                      {"pid", end.rank},
                      {"tid", end.tid},
                      {"ts", to_us(at)}};
        if (is_last) {
          event["bp"] = "e";
        }
        add(event);
      }
    }
  }

  void finish(json other) {
    other["clocks"] = clocks_;
    file_.write(concat("\n],\n\"displayTimeUnit\": \"ms\",\n\"otherData\": ", other.dump(), "}\n"));
    file_.commit();
  }

 private:
  void add(const json& event) {
    file_.write((first_ ? "" : ",\n") + event.dump());
    first_ = false;
  }

  void note(const json& event, const End& end) {
    if (event.at("cat") != "communication") {
      return;
    }
    const json& args = event.at("args");
    const auto kind = event.at("name").get<std::string>();
    // Of a single process each group of one has no number: nobody to draw an arrow to.
    const auto group = args.at("group_id").get<std::string>();
    const auto sequence = args.at("sequence").get<uint64_t>();
    if (!args.contains("peer")) {
      arrows_[{group, kind, -1, -1, sequence}].ends.push_back(end);
      return;
    }
    const int peer = args.at("peer").get<int>();
    const bool sends = kind == "send";
    Arrow& arrow =
        arrows_[{group, "message", sends ? end.rank : peer, sends ? peer : end.rank, sequence}];
    (sends ? arrow.has_send : arrow.has_receive) = true;
    arrow.ends.insert(sends ? arrow.ends.begin() : arrow.ends.end(), end);
  }

  AtomicFile file_;
  bool first_ = true;
  json clocks_ = json::array();
  std::map<ArrowKey, Arrow> arrows_;
};

}  // namespace

ClockCorrection::ClockCorrection(const std::vector<int64_t>& start,
                                 const std::vector<int64_t>& end,
                                 const std::vector<int64_t>& start_of_first,
                                 const std::vector<int64_t>& end_of_first)
    : start_(start.front()), shift_(median_difference(start_of_first, start)) {
  const int64_t at_end = median_difference(end_of_first, end);
  const int64_t length = std::max<int64_t>(end.back() - start_, 1);
  drift_ = static_cast<double>(at_end - shift_) / static_cast<double>(length);
}

int64_t ClockCorrection::operator()(int64_t time) const {
  return time + shift_ + std::llround(drift_ * static_cast<double>(time - start_));
}

void write_merged_trace(std::vector<RankTrace> traces, const std::string& path) {
  const auto samples = [](const RankTrace& trace, const char* key) {
    auto list = trace.json.at("otherData").at(key).get<std::vector<int64_t>>();
    check<IoError>(!list.empty(), trace.path, ": ", key, " is empty");
    return list;
  };
  const std::vector<int64_t> start = samples(traces.front(), "barriers_at_start_ns");
  const std::vector<int64_t> end = samples(traces.front(), "barriers_at_end_ns");
  TraceMerger merger(path);
  json other = traces.front().json.at("otherData");
  for (RankTrace& trace : traces) {
    const ClockCorrection correction(samples(trace, "barriers_at_start_ns"),
                                     samples(trace, "barriers_at_end_ns"), start, end);
    merger.add_rank(trace, correction, start.front());
    trace.json = {};  // one at a time in memory
  }
  merger.add_arrows();
  other.erase("rank");
  other.erase("barriers_at_start_ns");
  other.erase("barriers_at_end_ns");
  merger.finish(std::move(other));
}

}  // namespace tapestry::profile
