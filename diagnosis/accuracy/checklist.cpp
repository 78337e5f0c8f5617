#include "diagnosis/accuracy/checklist.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/checklist_data.h"
#include "diagnosis/accuracy/checklist_items.h"
#include "text/util/numbers.h"

namespace tapestry::accuracy {
namespace {

using config::Value;

constexpr const char* kSame = "same";
constexpr const char* kOnlyRounding = "rounding";
constexpr const char* kDiffering = "differs";
constexpr const char* kNotSaid = "unknown";
constexpr const char* kDoesNotSay = "the other side does not say";

Finding json_of(const Value& value) {
  if (value.is<bool>()) {
    return value.as<bool>();
  }
  if (value.is<int64_t>()) {
    return value.as<int64_t>();
  }
  if (value.is<double>()) {
    return value.as<double>();
  }
  if (value.is<std::string>()) {
    return value.as<std::string>();
  }
  return value.is_null() ? Finding(nullptr) : Finding(to_yaml(value));
}

std::optional<double> number_if_any(const Value& value) {
  return value.is<double>()    ? std::optional(value.as<double>())
         : value.is<int64_t>() ? std::optional(static_cast<double>(value.as<int64_t>()))
                               : std::nullopt;
}

bool same_number(double a, double b) {
  constexpr double kShare = 1e-9;
  return a == b || std::abs(a - b) <= kShare * std::max(std::abs(a), std::abs(b));
}

bool same_value(const Value& a, const Value& b, bool zero_is_none) {
  const auto number = [&](const Value& value) {
    const bool none = value.is_null() || value == Value(std::string("none"));
    return zero_is_none && none ? std::optional(0.0) : number_if_any(value);
  };
  const auto x = number(a);
  const auto y = number(b);
  return x && y ? same_number(*x, *y) : a == b;
}

bool only_rounds(const ChecklistItem& item, const ChecklistSide& ours) {
  if (item.effect != Effect::kStart || !ours.config) {
    return item.effect == Effect::kRounding;
  }
  const bool steps = ours.config->dataset_config.step_data_dir.has_value();
  return !ours.config->training_config.load_checkpoint.empty() &&
         (steps || item.key != "training_config.seed");
}

class Checklist {
 public:
  Checklist(const ChecklistSide& ours, const ChecklistSide& other) : ours_(ours), other_(other) {
    report_.command = "checklist";
    report_.title = concat(ours.file, " and ", other.file);
    report_.lines.push_back(concat(ours.file, " is ", name_of(ours.kind), ", ", other.file, " is ",
                                   name_of(other.kind), "."));
  }
  VerdictReport run();

 private:
  void add(std::string_view group,
           std::string_view key,
           const Finding& ours,
           const Finding& other,
           const char* status,
           const std::string& advice);
  void add_item(const ChecklistItem& item);
  bool says_something(Where where) const;
  bool has_experts(const ChecklistSide& side) const;
  bool has_text(const ChecklistSide& side, const char* key, const char* text) const;
  bool has_template(const ChecklistSide& side) const;
  bool differs(std::string_view key) const;
  bool is_constant_decay(std::string_view key) const;
  void add_learning_rates();
  void add_decay();
  void add_data();
  void add_token_id(const char* key,
                    std::optional<int64_t> ours,
                    const std::vector<int64_t>& other,
                    const std::string& advice);
  void conclude();

  const ChecklistSide& ours_;
  const ChecklistSide& other_;
  VerdictReport report_;
  std::optional<FirstDifference> rates_part_;
};

void Checklist::add(std::string_view group,
                    std::string_view key,
                    const Finding& ours,
                    const Finding& other,
                    const char* status,
                    const std::string& advice) {
  report_.findings.push_back({{"group", std::string(group)},
                              {"key", std::string(key)},
                              {"ours", ours},
                              {"other", other},
                              {"status", status},
                              {"advice", advice}});
}

bool Checklist::has_experts(const ChecklistSide& side) const {
  const auto found = side.values.find("moe_config.num_experts");
  return found != side.values.end() && number_if_any(found->second).value_or(1) > 1;
}

bool Checklist::has_text(const ChecklistSide& side, const char* key, const char* text) const {
  const auto found = side.values.find(key);
  return found != side.values.end() && found->second == Value(std::string(text));
}

bool Checklist::has_template(const ChecklistSide& side) const {
  return side.values.contains("chat_template") && !has_text(side, "chat_template", "none");
}

bool Checklist::says_something(Where where) const {
  constexpr const char* kPositions = "model_config.position_embedding_type";
  constexpr const char* kRopeType = "model_config.rotary_config.rope_type";
  const auto either = [&](const char* key, const char* text) {
    return has_text(ours_, key, text) || has_text(other_, key, text);
  };
  switch (where) {
    case Where::kExperts:
      return has_experts(ours_) || has_experts(other_);
    case Where::kRotary:
      return either(kPositions, "rope");
    case Where::kScaled:
      return !has_text(ours_, kRopeType, "default") || !has_text(other_, kRopeType, "default");
    case Where::kLearned:
      return either(kPositions, "learned_absolute");
    case Where::kLossScale:
      return either("model_config.compute_dtype", "float16");
    case Where::kTemplate:
      return has_template(ours_) || has_template(other_);
    case Where::kAlways:
      break;
  }
  return true;
}

void Checklist::add_item(const ChecklistItem& item) {
  if (!says_something(item.where)) {
    return;
  }
  const auto mine = ours_.values.find(std::string(item.key));
  const auto theirs = other_.values.find(std::string(item.key));
  const std::string remark = item.remark == nullptr || mine == ours_.values.end()
                                 ? std::string()
                                 : item.remark(mine->second, ours_);
  const Finding ours = mine == ours_.values.end() ? Finding(nullptr) : json_of(mine->second);
  if (theirs == other_.values.end()) {
    add(item.group, item.key, ours, nullptr, kNotSaid,
        remark.empty() ? kDoesNotSay : concat(kDoesNotSay, "; ", remark));
    return;
  }
  const bool same =
      mine != ours_.values.end() && same_value(mine->second, theirs->second, item.zero_is_none);
  if (!same && is_constant_decay(item.key)) {
    return;
  }
  add(item.group, item.key, ours, json_of(theirs->second),
      same                       ? kSame
      : only_rounds(item, ours_) ? kOnlyRounding
                                 : kDiffering,
      same ? remark : std::string(item.advice));
}

void Checklist::add_learning_rates() {
  constexpr const char* kKey = "learning_rate_by_step";
  constexpr const char* kGroup = "optimizer";
  constexpr int64_t kMostSteps = 1'000'000;
  if (!other_.learning_rate || !ours_.learning_rate) {
    add(kGroup, kKey, nullptr, nullptr, kNotSaid,
        "draw both curves, or give the schedule's length");
    return;
  }
  if (!ours_.steps && !other_.steps) {
    add(kGroup, kKey, nullptr, nullptr, kNotSaid, "neither side says how many steps there are");
    return;
  }
  const int64_t steps =
      std::min(ours_.steps.value_or(*(other_.steps ? other_.steps : ours_.steps)),
               other_.steps.value_or(*(ours_.steps ? ours_.steps : other_.steps)));
  const int64_t stride = std::max<int64_t>(1, steps / kMostSteps);
  int64_t differing = 0;
  double largest = 0;
  for (int64_t step = 1; step <= steps; step += stride) {
    const double mine = ours_.learning_rate(step);
    const double theirs = other_.learning_rate(step);
    if (same_number(mine, theirs)) {
      continue;
    }
    ++differing;
    largest = std::max(largest, std::abs(mine - theirs));
    if (!rates_part_) {
      rates_part_ = FirstDifference{
          .step = step, .tensor = kKey, .distance = std::abs(mine - theirs), .bound = 0.0};
    }
  }
  if (!rates_part_) {
    add(kGroup, kKey, concat(steps, " steps"), concat(steps, " steps"), kSame, "");
    return;
  }
  const int64_t step = *rates_part_->step;
  const bool has_own_row = differs("optimizer_config.learning_rate");
  const auto text = [&](const ChecklistSide& side) {
    return concat(number_text(side.learning_rate(step)), " at step ", step);
  };
  if (!has_own_row) {
    add(kGroup, kKey, text(ours_), text(other_), kDiffering,
        concat(differing, " of ", (steps + stride - 1) / stride, " steps differ, at most by ",
               number_text(largest, 3),
               ": compare warm-up, style, length and end of both schedules"));
  }
  report::LineChart chart{.title = "learning rate",
                          .unit = "",
                          .lines = {},
                          .x = {1, static_cast<double>(std::max<int64_t>(steps, 2))},
                          .from_zero = true,
                          .wide = true};
  constexpr int64_t kPoints = 2000;
  report_.chart_runs = {ours_.file, other_.file};
  for (size_t run = 0; run < 2; ++run) {
    const ChecklistSide& side = run == 0 ? ours_ : other_;
    report::ChartCurve line{.run = run, .owner = side.file, .name = "learning rate"};
    for (int64_t at = 1; at <= steps; at += std::max<int64_t>(1, steps / kPoints)) {
      line.points.push_back({static_cast<double>(at), side.learning_rate(at)});
    }
    chart.lines.push_back(std::move(line));
  }
  report_.charts.push_back(std::move(chart));
}

void Checklist::add_decay() {
  if (!ours_.config) {
    return;
  }
  // What differs in the same way is one difference.
  std::map<std::pair<double, double>, std::vector<std::string_view>> differing;
  const auto all = other_.values.find("optimizer_config.weight_decay");
  const auto own = ours_.values.find("optimizer_config.weight_decay");
  const bool has_own_row = differs("optimizer_config.weight_decay");
  for (const ParameterKind& kind : parameter_kinds(*ours_.config)) {
    const auto mine = weight_decay_of(ours_, kind);
    const auto theirs = weight_decay_of(other_, kind);
    const std::string key = concat("weight_decay of ", kind.name);
    const Finding ours = mine ? Finding(*mine) : Finding(nullptr);
    if (!theirs || !mine) {
      add("optimizer", key, ours, nullptr, kNotSaid, kDoesNotSay);
    } else if (same_number(*mine, *theirs)) {
      add("optimizer", key, ours, *theirs, kSame, "");
    } else if (!has_own_row || !same_number(*mine, number_if_any(own->second).value_or(*mine)) ||
               !same_number(*theirs, number_if_any(all->second).value_or(*theirs))) {
      differing[{*mine, *theirs}].push_back(kind.name);
    }
  }
  for (const auto& [decays, kinds] : differing) {
    std::string key = "weight_decay of ";
    for (const std::string_view kind : kinds) {
      key += concat(kind == kinds.front() ? "" : ", ", kind);
    }
    add("optimizer", key, decays.first, decays.second, kDiffering,
        decays.first == 0 || decays.second == 0 ? "what has one axis decays on one side alone"
                                                : "weight_decay is another number");
  }
}

// A decay that does not change begins and ends with weight_decay, which has a row.
bool Checklist::is_constant_decay(std::string_view key) const {
  constexpr const char* kAll = "optimizer_config.weight_decay";
  const auto is_that = [&](const ChecklistSide& side) {
    const auto all = side.values.find(kAll);
    const auto own = side.values.find(std::string(key));
    return all != side.values.end() && own != side.values.end() &&
           same_value(all->second, own->second, /*zero_is_none=*/false);
  };
  return (key == "optimizer_config.start_weight_decay" ||
          key == "optimizer_config.end_weight_decay") &&
         differs(kAll) && is_that(ours_) && is_that(other_);
}

bool Checklist::differs(std::string_view key) const {
  return std::any_of(report_.findings.begin(), report_.findings.end(), [&](const Finding& finding) {
    return finding["key"] == key && finding["status"] == kDiffering;
  });
}

void Checklist::add_token_id(const char* key,
                             std::optional<int64_t> ours,
                             const std::vector<int64_t>& other,
                             const std::string& advice) {
  if (!ours && other.empty()) {
    return;
  }
  std::string ids;
  for (const int64_t id : other) {
    ids += concat(ids.empty() ? "" : ", ", id);
  }
  const Finding mine = ours ? Finding(*ours) : Finding(nullptr);
  const Finding theirs = other.empty()       ? Finding(nullptr)
                         : other.size() == 1 ? Finding(other.front())
                                             : Finding(ids);
  const bool known = ours.has_value() && !other.empty();
  const bool same = known && std::find(other.begin(), other.end(), *ours) != other.end();
  add("data", key, mine, theirs,
      !known ? kNotSaid
      : same ? kSame
             : kDiffering,
      same || !known ? "" : advice);
}

void Checklist::add_data() {
  std::string missing;
  const auto look = ours_.config ? look_at_data(*ours_.config, missing) : std::optional<DataLook>();
  const auto listed = [](const std::optional<int64_t>& id) {
    return id ? std::vector<int64_t>{*id} : std::vector<int64_t>();
  };
  constexpr const char* kIds = "the data were made with another id: prepare them again, or set it";
  add_token_id("bos_id", look ? look->begin_id : ours_.token_ids.bos, listed(other_.token_ids.bos),
               kIds);
  const auto configured =
      ours_.token_ids.eos.empty() ? std::nullopt : std::optional(ours_.token_ids.eos.front());
  add_token_id("eos_id", look ? look->end_id : configured, other_.token_ids.eos, kIds);
  add_token_id("pad_id", look ? look->pad_id : ours_.token_ids.pad, listed(other_.token_ids.pad),
               kIds);
  if (!look) {
    report_.lines.push_back(concat("note: our data were not looked at: ", missing));
    return;
  }
  for (const std::string& note : look->notes) {
    report_.lines.push_back(concat("note: ", note));
  }
  report_.lines.push_back(concat(
      "Looked at ", look->tokens, " tokens of ", look->source,
      look->begins.empty() ? std::string() : concat("; the first sample begins: ", look->begins)));
  const int64_t vocabulary = ours_.config->model_config.vocab_size;
  const bool in_range = look->lowest_id >= 0 && look->highest_id < vocabulary;
  add("data", "token_ids", concat(look->lowest_id, " to ", look->highest_id),
      concat("0 to ", vocabulary - 1), in_range ? kSame : kDiffering,
      in_range ? "" : "ids must lie in the vocabulary: another tokenizer made the data");
  if (look->documents > 0 && look->end_id) {
    const bool none = look->documents_with_end == 0;
    add("data", "documents_that_end_with_eos",
        concat(look->documents_with_end, " of ", look->documents), nullptr, kNotSaid,
        none ? "none does: prepare the text with --append_eod, if the other side's has ends" : "");
  }
  // The other side's shift, where its data are there too; else what every GPT is trained with.
  std::string theirs = "by one";
  if (other_.step_data) {
    try {
      theirs = look_at_steps(*other_.step_data).labels.text();
    } catch (const Error& error) {
      report_.lines.push_back(concat("note: the other side's data: ", error.what()));
    }
  }
  if (look->labels.compared > 0) {
    const std::string mine = look->labels.text();
    const bool good = mine == theirs && mine == "by one";
    add("data", "label_shift", mine, theirs, good ? kSame : kDiffering,
        good ? "" : "a label is the token that follows: shift once, in the data or in the model");
  }
}

void Checklist::conclude() {
  std::array<int64_t, 4> counts{};
  constexpr std::array<const char*, 4> kStates = {kSame, kOnlyRounding, kDiffering, kNotSaid};
  for (const Finding& finding : report_.findings) {
    for (size_t i = 0; i < kStates.size(); ++i) {
      counts[i] += finding["status"] == kStates[i] ? 1 : 0;
    }
  }
  std::string text = concat(report_.findings.size(), " items:");
  for (size_t i = 0; i < kStates.size(); ++i) {
    text += concat(i == 0 ? " " : ", ", counts[i], " ", kStates[i]);
  }
  report_.lines.push_back(text + ".");
  std::stable_partition(report_.findings.begin(), report_.findings.end(),
                        [](const Finding& finding) { return finding["status"] == kDiffering; });
  for (const Finding& finding : report_.findings) {
    if (finding["status"] == kDiffering) {
      report_.outcome = Outcome::kDiffers;
      report_.stage = "config";
      const auto key = finding["key"].get<std::string>();
      report_.first = FirstDifference{.tensor = key};
      if (rates_part_ && (key == *rates_part_->tensor || key == "optimizer_config.learning_rate")) {
        report_.first = rates_part_;
        report_.first->tensor = key;
      }
      break;
    }
  }
}

VerdictReport Checklist::run() {
  for (const ChecklistSide* side : {&ours_, &other_}) {
    for (const std::string& note : side->notes) {
      report_.lines.push_back(concat("note: ", side->file, ": ", note));
    }
  }
  const auto items = checklist_items();
  for (size_t i = 0; i < items.size(); ++i) {
    add_item(items[i]);
    if (items[i].group == "optimizer" &&
        (i + 1 == items.size() || items[i + 1].group != "optimizer")) {
      add_learning_rates();
      add_decay();
    }
  }
  add_data();
  conclude();
  return std::move(report_);
}

}  // namespace

VerdictReport run_checklist(const ChecklistSide& ours, const ChecklistSide& other) {
  return Checklist(ours, other).run();
}

}  // namespace tapestry::accuracy
