// Plants faults in trainings and asks find_fault for them, and compares trainings in which nothing
// is wrong. Exit code 1 if a fault is not found, fewer than nine of ten are named to their op,
// module or tensor, or a clean comparison raises an alarm; 2 for wrong arguments.
//
// Without --all every second fault and the clean comparisons that are marked for each test run.
#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "diagnosis/verify/faults/find_fault.h"
#include "tests/parallel_core/drill/clean_cases.h"
#include "tests/parallel_core/drill/drill_reference.h"
#include "tests/parallel_core/drill/planted_faults.h"

namespace {

namespace po = boost::program_options;
using namespace tapestry;           // NOLINT(google-build-using-namespace): a program
using namespace tapestry::testing;  // NOLINT(google-build-using-namespace)

struct Outcome {
  bool found = false;
  bool stage_is_right = false;
  bool named = false;
  std::string stage;
  std::string place;
  std::string sentence;
  double share = 0;  ///< of the bound
};

Outcome look_for(const PlantedFault& fault, DrillReferences& references) {
  const std::string folder = references.folder_of(fault.model);
  FindFaultOptions options;
  fault.plant(options);
  Outcome out;
  const accuracy::VerdictReport report = find_fault(loader_of(fault.model), folder, options);
  out.stage = report.stage.value_or("");
  out.sentence = report.lines.empty() ? "" : report.lines.front();
  out.found = report.outcome == accuracy::Outcome::kDiffers && out.stage != "none";
  out.stage_is_right = std::count(fault.stages.begin(), fault.stages.end(), out.stage) > 0;
  if (!report.first) {
    return out;
  }
  for (const auto& part : {report.first->module, report.first->op, report.first->tensor}) {
    if (part) {
      out.place += (out.place.empty() ? "" : " | ") + *part;
    }
  }
  out.named = std::regex_search(out.place, std::regex(fault.place)) &&
              std::regex_search(out.sentence, std::regex(fault.sentence));
  if (report.first->bound.value_or(0) > 0) {
    out.share = report.first->distance.value_or(0) / *report.first->bound;
  }
  return out;
}

struct Tally {
  int faults = 0;
  int found = 0;
  int stages = 0;
  int named = 0;
};

// Smallest and largest shares of bounds, by stage.
using Shares = std::map<std::string, double>;

Tally drill(const std::string& title,
            const std::vector<FaultClass>& classes,
            bool all,
            DrillReferences& references,
            Shares& smallest) {
  Tally total;
  std::printf("\n%s\n%-10s %-38s %-12s %-9s %s\n", title.c_str(), "class", "fault", "stage",
              "x bound", "named");
  for (const FaultClass& kind : classes) {
    for (size_t i = 0; i < kind.faults.size(); i += all ? 1 : 2) {
      const PlantedFault& fault = kind.faults[i];
      Outcome out;
      try {
        out = look_for(fault, references);
      } catch (const std::exception& error) {
        out.sentence = error.what();
      }
      ++total.faults;
      total.found += out.found ? 1 : 0;
      total.stages += out.stage_is_right ? 1 : 0;
      total.named += out.named && out.stage_is_right ? 1 : 0;
      if (out.found && out.share > 0) {
        const auto place = smallest.emplace(out.stage, out.share).first;
        place->second = std::min(place->second, out.share);
      }
      std::printf("%-10s %-38s %-12s %-9.3g %s%s\n", kind.name.c_str(), fault.name.c_str(),
                  out.found ? out.stage.c_str() : "NOT FOUND", out.share,
                  out.named && out.stage_is_right ? "" : "NOT NAMED: ",
                  (out.found ? out.place : out.sentence).c_str());
      if (all && out.found) {
        std::printf("           %s\n", out.sentence.c_str());
      }
      std::fflush(stdout);
    }
  }
  std::printf("%d faults, %d found, %d at the expected stage, %d named\n", total.faults,
              total.found, total.stages, total.named);
  return total;
}

int alarms(const std::vector<CleanCase>& cases,
           bool all,
           DrillReferences& references,
           Shares& largest) {
  int compared = 0;
  int wrong = 0;
  std::printf("\nComparisons in which nothing is wrong\n");
  std::map<std::string, int> groups;
  for (const CleanCase& clean : cases) {
    if (!all && !clean.always) {
      continue;
    }
    CleanResult result;
    try {
      result = clean.compare(references);
    } catch (const std::exception& error) {
      result = {.agrees = false, .difference = error.what()};
    }
    ++compared;
    ++groups[clean.group];
    double worst = 0;
    for (const auto& [what, share] : result.shares) {
      worst = std::max(worst, share);
      double& most = largest.emplace(what, 0).first->second;
      most = std::max(most, share);
    }
    wrong += result.agrees ? 0 : 1;
    std::printf("%-44s %-6s %5.3f %s\n", clean.name.c_str(), result.agrees ? "agrees" : "ALARM",
                worst, result.agrees ? "" : result.difference.c_str());
    std::fflush(stdout);
  }
  std::printf("%d comparisons, %d alarms;", compared, wrong);
  for (const auto& [group, count] : groups) {
    std::printf(" %s %d", group.c_str(), count);
  }
  std::printf("\n");
  return compared > 0 ? wrong : 1;
}

void print_shares(const Shares& clean, const Shares& faulty) {
  std::printf(
      "\nShares of bounds: largest where nothing is wrong, smallest of a fault found there\n");
  std::set<std::string> stages;
  for (const Shares* shares : {&clean, &faulty}) {
    for (const auto& [stage, share] : *shares) {
      stages.insert(stage);
    }
  }
  const auto number = [](const Shares& shares, const std::string& stage) {
    const auto found = shares.find(stage);
    char text[32] = "-";
    if (found != shares.end()) {
      std::snprintf(text, sizeof(text), "%.3g", found->second);
    }
    return std::string(text);
  };
  for (const std::string& stage : stages) {
    std::printf("%-14s %-8s %s\n", stage.c_str(), number(clean, stage).c_str(),
                number(faulty, stage).c_str());
  }
}

std::vector<FaultClass> all_in_bfloat16(std::vector<FaultClass> classes) {
  for (FaultClass& kind : classes) {
    for (PlantedFault& fault : kind.faults) {
      fault = tapestry::testing::in_bfloat16(fault);
    }
  }
  return classes;
}

int run(int argc, char** argv) {
  po::options_description options("Options");
  options.add_options()("help,h", "print this");
  options.add_options()("all",
                        "all faults and all clean comparisons, and the faults once more in "
                        "bfloat16, where some drown");
  po::variables_map given;
  po::store(po::parse_command_line(argc, argv, options), given);
  if (given.count("help") != 0) {
    std::cout << "fault_drill [--all]: plants faults and looks for them.\n" << options;
    return 0;
  }
  const bool all = given.count("all") != 0;
  const char* more_stored = std::getenv("TAPESTRY_GOLDEN_MODELS");
  DrillReferences references;
  Shares faulty;
  Shares clean;
  const Tally tally = drill("Faults, in float32", fault_classes(), all, references, faulty);
  if (all) {
    Shares in_few_bits;
    drill("The same in bfloat16: what drowns in its rounding is not found",
          all_in_bfloat16(fault_classes()), all, references, in_few_bits);
  }
  const int wrong =
      alarms(clean_cases(all && more_stored != nullptr ? more_stored : ""), all, references, clean);
  print_shares(clean, faulty);
  const bool right = tally.found == tally.faults && tally.named * 10 >= tally.faults * 9 &&
                     tally.faults >= 25 && wrong == 0;
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const po::error& error) {
    std::cerr << "fault_drill: " << error.what() << "\n";
    return 2;
  }
}
