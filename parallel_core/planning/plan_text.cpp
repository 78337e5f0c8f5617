#include <algorithm>
#include <cstdio>
#include <map>

#include "autograd/tensor/error.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/planning/plan.h"

namespace tapestry::planning {

namespace {

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), seconds < 0.1 ? "%.1f" : "%.0f", 1000 * seconds);
  return text;
}

// What of the time is most behind the best layout's.
std::string why_slower(const StepTime& time, const StepTime& best) {
  const std::pair<const char*, double> parts[] = {
      {"computing", time.computing - best.computing},
      {"communication", time.communication - best.communication},
      {"waiting", time.waiting - best.waiting}};
  std::string text;
  double most = 0;
  for (const auto& [name, more] : parts) {
    if (more > most) {
      most = more;
      text = concat("+", milliseconds(more), " ms ", name);
    }
  }
  return text.empty() ? "as fast" : text;
}

using Row = std::vector<std::string>;

std::string aligned(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - row[i].size(), ' ');
      const bool is_number = i != 1 && i + 1 != row.size();
      line += (i == 0 ? "" : "  ") + (is_number ? blanks + row[i] : row[i] + blanks);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace

std::string plan_table(const Plan& plan, size_t most) {
  std::vector<Row> rows = {
      {"", "layout", "ms", "computing", "communication", "waiting", "memory", "why it loses"}};
  const auto add = [&](const std::string& number, const RankedLayout& ranked,
                       const std::string& why) {
    rows.push_back({number, ranked.layout.text(), milliseconds(ranked.time.seconds),
                    milliseconds(ranked.time.computing), milliseconds(ranked.time.communication),
                    milliseconds(ranked.time.waiting), size_text(ranked.memory), why});
  };
  for (size_t i = 0; i < std::min(most, plan.fitting.size()); ++i) {
    add(std::to_string(i + 1), plan.fitting[i],
        i == 0 ? std::string() : why_slower(plan.fitting[i].time, plan.fitting.front().time));
  }
  const size_t large = plan.fitting.empty() ? most : std::min<size_t>(most, 4);
  for (size_t i = 0; i < std::min(large, plan.too_large.size()); ++i) {
    const RankedLayout& ranked = plan.too_large[i];
    add("-", ranked, concat("memory: ", size_text(ranked.memory - plan.asked.memory), " over"));
  }
  std::string text = aligned(rows);
  const size_t hidden = plan.fitting.size() - std::min(most, plan.fitting.size());
  if (hidden > 0) {
    text += concat(hidden, " more are slower.\n");
  }
  if (plan.too_large.size() > large) {
    text += concat(plan.too_large.size() - large, " more need more than ",
                   size_text(plan.asked.memory), " a rank.\n");
  }
  if (plan.refused > 0) {
    text += concat(plan.refused, " are refused by a run, for reasons such as:\n");
    for (const std::string& reason : plan.refusals) {
      text += "  " + reason + "\n";
    }
  }
  return text;
}

std::string plan_sections(const Plan& plan, const AllConfig& config) {
  std::map<std::string, std::string> before;
  for (const ResolvedKey& key : resolved_keys(config)) {
    before[key.section + "." + key.key] = key.value;
  }
  std::string text;
  std::string section;
  std::string parent;
  for (const ResolvedKey& key : resolved_keys(plan.fitting.front().layout.config)) {
    const auto was = before.find(key.section + "." + key.key);
    // What the layout has of the model and the optimizer follows from these.
    const bool is_chosen = key.section == "parallel_config" || key.section == "dataset_config" ||
                           key.section == "training_config" || key.section == "optimizer_config";
    if (!is_chosen || key.value.empty() || (was != before.end() && was->second == key.value)) {
      continue;
    }
    if (key.section != section) {
      section = key.section;
      parent.clear();
      text += section + ":\n";
    }
    const size_t dot = key.key.find('.');
    std::string name = key.key;
    if (dot != std::string::npos) {
      if (parent != key.key.substr(0, dot)) {
        parent = key.key.substr(0, dot);
        text += "  " + parent + ":\n";
      }
      name = "  " + key.key.substr(dot + 1);
    }
    text += concat("  ", name, ": ", key.value, "\n");
  }
  return text.empty() ? "# the configuration's own layout\n" : text;
}

std::string plan_file(const Plan& plan) {
  const RankedLayout& best = plan.fitting.front();
  return concat("# plan: ranks=", plan.ranks, " of ", plan.asked.ranks, " on ", plan.asked.hosts,
                plan.asked.hosts == 1 ? " host: " : " hosts: ", best.layout.text(), ", ",
                milliseconds(best.time.seconds), " ms a step, ", size_text(best.memory),
                " a rank\n", resolved_yaml(best.layout.config));
}

std::string plan_csv(const Plan& plan, const AllConfig& config) {
  std::map<std::string, std::string> before;
  for (const ResolvedKey& key : resolved_keys(config)) {
    before[key.section + "." + key.key] = key.value;
  }
  std::string text =
      "fits,layout,step_ms,computing_ms,communication_ms,waiting_ms,bytes,settings\n";
  const auto add = [&](const RankedLayout& ranked, bool fits) {
    std::string settings;
    for (const ResolvedKey& key : resolved_keys(ranked.layout.config)) {
      const auto was = before.find(key.section + "." + key.key);
      if (!key.value.empty() && (was == before.end() || was->second != key.value)) {
        std::string value = key.value;
        std::erase(value, ' ');
        settings += concat(settings.empty() ? "" : " ", key.section, ".", key.key, "=", value);
      }
    }
    char times[128];
    std::snprintf(times, sizeof(times), "%.4g,%.4g,%.4g,%.4g", 1000 * ranked.time.seconds,
                  1000 * ranked.time.computing, 1000 * ranked.time.communication,
                  1000 * ranked.time.waiting);
    text += concat(fits ? "yes" : "no", ",\"", ranked.layout.text(), "\",", times, ",",
                   ranked.memory, ",\"", settings, "\"\n");
  };
  for (const RankedLayout& ranked : plan.fitting) {
    add(ranked, true);
  }
  for (const RankedLayout& ranked : plan.too_large) {
    add(ranked, false);
  }
  return text;
}

std::string ranks_line(const Plan& plan) { return concat("plan: ranks=", plan.ranks, "\n"); }

}  // namespace tapestry::planning
