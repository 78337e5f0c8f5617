#include "diagnosis/accuracy/compare_bits.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "autograd/io/input_file.h"
#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/effect_of_keys.h"
#include "diagnosis/accuracy/run_hashes.h"
#include "diagnosis/report/plot/metrics_file.h"
#include "diagnosis/report/run_config.h"

namespace tapestry::accuracy {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostConfigBytes = uint64_t{1} << 24U;

struct Side {
  RunHashes hashes;
  std::vector<report::ConfigEntry> config;

  std::optional<std::string> value(const std::string& key) const {
    for (const report::ConfigEntry& entry : config) {
      if (concat(entry.section, ".", entry.key) == key) {
        return entry.value;
      }
    }
    return std::nullopt;
  }
  bool resumes() const {
    return value("training_config.resume_training").value_or("False") != "False";
  }
};

Side read_side(const std::string& folder) {
  Side side = {.hashes = read_run_hashes(folder), .config = {}};
  const std::string path = (fs::path(folder) / "config.yaml").string();
  check<IoError>(fs::is_regular_file(path), path,
                 ": is missing; a run is run again by its configuration");
  side.config = report::parse_config(read_file(path, kMostConfigBytes), path);
  return side;
}

int64_t batch_size_of(const Side& side) {
  const std::string text = side.value("dataset_config.batch_size").value_or("1");
  try {
    return std::max<int64_t>(1, std::stoll(text));
  } catch (const std::exception&) {
    return 1;
  }
}

class BitComparison {
 public:
  BitComparison(const std::string& a, const std::string& b, const CompareBitsOptions& options)
      : options_(options),
        sides_{read_side(a), read_side(b)},
        names_(plot::run_names({a, b})),
        report_{.command = "compare"} {
    report_.title = concat("bits of ", a, " and ", b);
  }

  VerdictReport report() && {
    if (has_hashes()) {
      compare_configurations();
      compare_steps();
    }
    return std::move(report_);
  }

 private:
  bool has_hashes();
  void compare_configurations();
  void compare_steps();
  void compare_parts(int64_t step);
  void run_again(int64_t step);
  bool same_things(const StepRerun& a, const StepRerun& b);
  void name_difference(const RerunThing& thing, bool another, bool same_inputs);
  std::string not_returning(const StepRerun& rerun, size_t side);
  void name_faulty_sides(const std::array<StepRerun, 2>& reruns);

  void add(const char* what,
           const std::string& name,
           const std::string& a,
           const std::string& b,
           const char* status) {
    report_.findings.push_back(
        {{"what", what}, {"name", name}, {"a", a}, {"b", b}, {"status", status}});
  }
  void say(const std::string& sentence) { report_.lines.push_back(sentence); }

  const CompareBitsOptions& options_;
  std::array<Side, 2> sides_;
  std::vector<std::string> names_;
  VerdictReport report_;
};

// Says what is missing where steps cannot be compared by hashes.
bool BitComparison::has_hashes() {
  for (size_t i = 0; i < sides_.size(); ++i) {
    const RunHashes& hashes = sides_[i].hashes;
    if (hashes.steps.empty()) {
      report_.outcome = Outcome::kNotComparable;
      report_.stage = "hash";
      say(concat(names_[i],
                 " has no hashes: it was not trained in exact mode "
                 "(training_config.exact: True), so its bits say nothing"));
    }
  }
  if (report_.outcome != Outcome::kAgrees) {
    return false;
  }
  const std::string a = class_of_hash(sides_[0].hashes.steps.begin()->second);
  const std::string b = class_of_hash(sides_[1].hashes.steps.begin()->second);
  if (a != b) {
    report_.outcome = Outcome::kNotComparable;
    report_.stage = "hash";
    add("class", "hash", a, b, "differs");
    say(concat("The runs computed in two classes, ", a, " and ", b,
               ", whose bits differ by definition: compare runs of one class, or curves"));
  }
  return a == b;
}

void BitComparison::compare_configurations() {
  const bool given_start = !sides_[0].resumes() && !sides_[1].resumes();
  for (const report::ConfigRow& row :
       report::compare_configs({sides_[0].config, sides_[1].config})) {
    const std::string key = concat(row.section, ".", row.key);
    const bool is_start = key == "training_config.load_checkpoint";
    if (row.differs && changes_bits(row.section, row.key) && (!is_start || given_start)) {
      add("configuration", key, row.values[0].value_or(""), row.values[1].value_or(""), "differs");
    }
  }
  const size_t differ = report_.findings.size();
  if (differ > 0) {
    say(concat(differ,
               differ == 1 ? " key of the configurations differs that is"
                           : " keys of the configurations differ that are",
               " no matter of layout, the first ", report_.findings[0]["name"].get<std::string>(),
               ": where bits differ, that explains it"));
  }
}

void BitComparison::compare_steps() {
  const auto& a = sides_[0].hashes.steps;
  const auto& b = sides_[1].hashes.steps;
  int64_t compared = 0;
  std::optional<int64_t> first;
  std::optional<int64_t> last;
  for (const auto& [step, hash] : a) {
    const auto other = b.find(step);
    if (other == b.end()) {
      continue;
    }
    ++compared;
    last = step;
    if (!first && other->second != hash) {
      first = step;
      add("step", std::to_string(step), hash, other->second, "differs");
    }
  }
  if (compared == 0) {
    report_.outcome = Outcome::kNotComparable;
    report_.stage = "hash";
    say("The runs have no step in common that has a hash on both sides");
    return;
  }
  const auto missing =
      static_cast<int64_t>(sides_[0].hashes.without.size() + sides_[1].hashes.without.size());
  if (missing > 0) {
    say(concat(missing, missing == 1 ? " step has" : " steps have",
               " no hash and cannot be compared: not trained in exact mode"));
  }
  if (!first) {
    say(concat("All ", compared, " common steps, up to step ", *last,
               ", have the same hashes: losses and weights have the same bits"));
    return;
  }
  report_.outcome = Outcome::kDiffers;
  report_.first = FirstDifference{.step = *first};
  compare_parts(*first);
  if (options_.rerun) {
    run_again(*first);
  }
}

void BitComparison::compare_parts(int64_t step) {
  const StepHashes a = read_step_hashes(sides_[0].hashes.folder, step);
  const StepHashes b = read_step_hashes(sides_[1].hashes.folder, step);
  if (!a.known() || !b.known()) {
    say(concat("Step ", step, " has no hashes of parameters on ",
               names_[a.known() ? size_t{1} : size_t{0}]));
    return;
  }
  const HashDifference difference = difference_of(a, b);
  if (difference.loss) {
    add("loss", "loss", a.loss, b.loss, "differs");
  }
  const auto add_all = [&](const char* what, const std::vector<std::string>& names,
                           const NamedHashes& ours, const NamedHashes& theirs) {
    const std::map<std::string, std::string> left(ours.begin(), ours.end());
    const std::map<std::string, std::string> right(theirs.begin(), theirs.end());
    for (size_t i = 0; i < std::min(names.size(), options_.rows); ++i) {
      const auto other = right.find(names[i]);
      add(what, names[i], left.at(names[i]), other == right.end() ? "" : other->second, "differs");
    }
  };
  add_all("gradient", difference.gradients, a.gradients, b.gradients);
  add_all("parameter", difference.parameters, a.parameters, b.parameters);
  if (const std::string tensor = difference.tensor(); !tensor.empty()) {
    report_.first->tensor = tensor;
  }
  say(concat("In step ", step, " these differ: ", difference.text()));
}

std::string stage_of(const RerunThing& thing) {
  if (thing.what.starts_with("start")) {
    return "start";
  }
  if (thing.what == "op results") {
    return thing.pass == "backward" ? "backward" : "forward";
  }
  return thing.what == "gradients" || thing.what == "grad_norm" ? "backward" : "optimizer";
}

void BitComparison::name_difference(const RerunThing& thing, bool another, bool same_inputs) {
  FirstDifference& first = *report_.first;
  const bool is_op = thing.what == "op results";
  if (thing.micro_batch >= 0) {
    first.micro_batch = thing.micro_batch;
  }
  if (!thing.pass.empty()) {
    first.pass = thing.pass;
  }
  first.module = thing.module.empty() ? std::nullopt : std::optional(thing.module);
  first.op = is_op ? std::optional(thing.name) : std::nullopt;
  if (!is_op) {
    first.tensor = thing.name;
  }
  report_.stage = stage_of(thing);
  std::string place = is_op ? concat(thing.pass, " of ", thing.name,
                                     thing.module.empty() ? "" : " in ", thing.module)
                            : concat(thing.what, ": ", thing.name);
  if (thing.micro_batch >= 0 && is_op) {
    place += concat(", micro-batch ", thing.micro_batch);
  }
  if (another) {
    say(concat("Run again, the sides compute different things from here on: ", place));
    return;
  }
  say(concat("Run again, the first bits that differ are those of ", place,
             thing.what == "weights" ? "; its gradient has the same bits, so the update differs"
             : !is_op                ? ""
             : same_inputs           ? "; its inputs have the same bits, so the op itself differs"
                           : "; what it was given differs: data, or weights of an earlier step"));
}

// False when the first thing that differs was named.
bool BitComparison::same_things(const StepRerun& a, const StepRerun& b) {
  const auto without_repeats = [](const StepRerun& rerun) {
    std::vector<const RerunThing*> out;
    for (const RerunThing& thing : rerun.things) {
      if (thing.pass != "again") {  // what is made again depends on the recompute settings
        out.push_back(&thing);
      }
    }
    return out;
  };
  const auto ours = without_repeats(a);
  const auto theirs = without_repeats(b);
  for (size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    if (i >= ours.size() || i >= theirs.size()) {
      name_difference(i < ours.size() ? *ours[i] : *theirs[i], true, false);
      return false;
    }
    const bool same = ours[i]->what == theirs[i]->what && ours[i]->pass == theirs[i]->pass &&
                      ours[i]->module == theirs[i]->module && ours[i]->name == theirs[i]->name &&
                      ours[i]->micro_batch == theirs[i]->micro_batch;
    if (!same || ours[i]->bits != theirs[i]->bits) {
      name_difference(*ours[i], !same, ours[i]->inputs == theirs[i]->inputs);
      return false;
    }
  }
  say(concat("Run again, both sides come to the same bits in all ", ours.size(),
             " results of step ", a.step));
  return true;
}

// What of the recorded hashes the step that was run again does not come to; empty: all return.
std::string BitComparison::not_returning(const StepRerun& rerun, size_t side) {
  const RunHashes& recorded = sides_[side].hashes;
  for (const auto& [step, hash] : rerun.hashes) {
    const auto found = recorded.steps.find(step);
    if (found == recorded.steps.end() || found->second == hash) {
      continue;
    }
    add("recorded", concat(names_[side], ", step ", step), found->second, hash, "does not return");
    const StepHashes then = read_step_hashes(recorded.folder, step);
    if (step != rerun.step || !rerun.of_step.known() || !then.known()) {
      return concat("step ", step);
    }
    const HashDifference lost = difference_of(then, rerun.of_step);
    if (const std::string tensor = lost.tensor(); !tensor.empty()) {
      report_.first->tensor = tensor;
    }
    return concat("step ", step, " (", lost.text(), ")");
  }
  return {};
}

void BitComparison::name_faulty_sides(const std::array<StepRerun, 2>& reruns) {
  std::array<std::string, 2> lost;
  for (size_t i = 0; i < lost.size(); ++i) {
    lost.at(i) = not_returning(reruns.at(i), i);
    if (!lost.at(i).empty()) {
      report_.stage = "recorded";
      say(concat("The recorded hash of ", names_[i], " does not return at ", lost.at(i),
                 ": that run had a fault there (hardware, or memory that something overwrote), or "
                 "another program made it than ",
                 reruns.at(i).program));
    } else {
      say(concat("The recorded hashes of ", names_[i], " return"));
    }
  }
}

void BitComparison::run_again(int64_t step) {
  const int64_t batch = std::gcd(batch_size_of(sides_[0]), batch_size_of(sides_[1]));
  const std::array<StepRerun, 2> reruns = {options_.rerun(0, step, batch),
                                           options_.rerun(1, step, batch)};
  for (size_t i = 0; i < reruns.size(); ++i) {
    const StepRerun& rerun = reruns.at(i);
    say(concat(names_[i], " was run again from ",
               rerun.checkpoint.empty() ? std::string("its start") : rerun.checkpoint, " to step ",
               rerun.step));
  }
  if (same_things(reruns[0], reruns[1])) {
    name_faulty_sides(reruns);
    return;
  }
  // A side that does not return has another fault besides, or was made by another program.
  for (size_t i = 0; i < reruns.size(); ++i) {
    if (const std::string lost = not_returning(reruns.at(i), i); !lost.empty()) {
      say(concat("The recorded hash of ", names_[i], " does not return at ", lost));
    }
  }
}

}  // namespace

VerdictReport compare_bits(const std::string& a,
                           const std::string& b,
                           const CompareBitsOptions& options) {
  return BitComparison(a, b, options).report();
}

}  // namespace tapestry::accuracy
