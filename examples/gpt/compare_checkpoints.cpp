// Says whether two runs, or two checkpoints, are the same, and how far apart they are if not:
//   compare_checkpoints run_a run_b --bound 1e-4
#include <algorithm>
#include <boost/program_options.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "autograd/io/file_lines.h"
#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/strict_json.h"
#include "autograd/io/tensor_source.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"
#include "parallel_core/dist_checkpointing/training_state_file.h"
#include "parallel_core/training/program.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using nlohmann::json;
using tapestry::check;
using tapestry::concat;
using tapestry::IoError;
using tapestry::RuntimeError;
using tapestry::Tensor;
using tapestry::TensorSource;
using tapestry::ValueError;

// Time and memory differ between equal runs, and the layout is what may be another one.
const std::set<std::string> kNotCompared = {"step_time_ms", "peak_bytes",    "memory",
                                            "bubble",       "train_seconds", "layout"};

// The largest difference so far of a kind of thing, and where it is.
struct Difference {
  double largest = 0;  ///< NaN once one of a pair is
  std::string where;
  bool same_bits = true;

  void take(double value, const std::string& place) {
    same_bits = false;
    if (!(value <= largest)) {  // a NaN has to stay
      largest = std::isnan(largest) ? largest : value;
      where = place;
    }
  }
  bool within(double bound) const { return same_bits || (bound > 0 && largest <= bound); }
  std::string text() const {
    if (same_bits) {
      return "the same bits";
    }
    std::ostringstream out;
    out << "largest difference " << largest << (where.empty() ? "" : " in ") << where;
    return out.str();
  }
};

Tensor read_tensor(const TensorSource& files, const std::string& name) {
  Tensor values = tapestry::empty(files.shape(name), files.dtype(name));
  files.read(name, values.raw());
  return values;
}

double largest_value(const std::vector<double>& values) {
  double out = 0;
  for (const double value : values) {
    out = std::max(out, std::abs(value));
  }
  return out;
}

// Tensors of one kind share a floor for what their differences are measured by: "exp_avg" of
// "layers.0.attention.wq.weight.exp_avg".
std::string kind_of(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// Largest absolute value of each kind of tensor.
std::map<std::string, double> scales(const TensorSource& files) {
  std::map<std::string, double> found;
  for (const std::string& name : files.names()) {
    double& scale = found[kind_of(name)];
    scale = std::max(scale, largest_value(read_tensor(files, name).to_vector<double>()));
  }
  return found;
}

void require_same_names(const TensorSource& a, const TensorSource& b, const std::string& what) {
  std::vector<std::string> only;
  const std::vector<std::string> names_a = a.names();
  const std::vector<std::string> names_b = b.names();
  std::set_symmetric_difference(names_a.begin(), names_a.end(), names_b.begin(), names_b.end(),
                                std::back_inserter(only));
  check<RuntimeError>(only.empty(), what, ": only one of the two has ", only.empty() ? "" : only[0],
                      only.size() > 1 ? concat(" and ", only.size() - 1, " more") : std::string());
}

// Differences of tensors, relative to the largest value of the tensor, or to a hundredth of the
// largest of its kind where that is more.
Difference compare_tensors(const TensorSource& a, const TensorSource& b, const std::string& what) {
  require_same_names(a, b, what);
  const std::map<std::string, double> scale = scales(b);
  Difference difference;
  for (const std::string& name : a.names()) {
    check<RuntimeError>(a.shape(name) == b.shape(name) && a.dtype(name) == b.dtype(name), what,
                        ": ", name, " has another shape or dtype in each of the two");
    const Tensor ours = read_tensor(a, name);
    const Tensor theirs = read_tensor(b, name);
    const auto bytes = static_cast<size_t>(ours.numel() * size_of(ours.dtype()));
    if (bytes == 0 || std::memcmp(ours.raw(), theirs.raw(), bytes) == 0) {
      continue;
    }
    const std::vector<double> x = ours.to_vector<double>();
    const std::vector<double> y = theirs.to_vector<double>();
    double apart = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double here = std::abs(x[i] - y[i]);
      apart = here <= apart || std::isnan(apart) ? apart : here;
    }
    const double floor = std::max(1e-2 * scale.at(kind_of(name)), 1e-30);
    difference.take(apart / std::max(largest_value(y), floor), name);
  }
  return difference;
}

// Numbers that are no whole ones may differ; everything else may not.
void compare_json(const json& a, const json& b, const std::string& place, Difference& difference) {
  if (a == b) {
    return;
  }
  const auto in = [&](const std::string& name) {
    return place.empty() ? name : place + "." + name;
  };
  if (a.is_object() && b.is_object()) {
    for (const auto& [name, value] : a.items()) {
      if (!kNotCompared.contains(name)) {
        check<RuntimeError>(b.contains(name), "only one of the two has ", in(name));
        compare_json(value, b[name], in(name), difference);
      }
    }
    for (const auto& [name, value] : b.items()) {
      check<RuntimeError>(kNotCompared.contains(name) || a.contains(name),
                          "only one of the two has ", in(name));
    }
  } else if (a.is_array() && b.is_array() && a.size() == b.size()) {
    for (size_t i = 0; i < a.size(); ++i) {
      compare_json(a[i], b[i], concat(place, "[", i, "]"), difference);
    }
  } else {
    check<RuntimeError>(
        a.is_number() && b.is_number() && (a.is_number_float() || b.is_number_float()), place,
        " is ", a.dump(), " in one of the two, and ", b.dump(), " in the other");
    const auto x = a.get<double>();
    const auto y = b.get<double>();
    difference.take(std::abs(x - y) / std::max(std::abs(x), std::abs(y)), place);
  }
}

std::vector<json> read_lines(const std::string& path) {
  tapestry::FileLines file(path);
  std::vector<json> lines;
  for (std::string line; file.next(line);) {
    lines.push_back(json::parse(line, nullptr, /*allow_exceptions=*/false));
    check<IoError>(lines.back().is_object(), path, ": line ", lines.size(),
                   " is not a JSON object");
  }
  return lines;
}

Difference compare_metrics(const std::string& a, const std::string& b) {
  const std::vector<json> ours = read_lines(a);
  const std::vector<json> theirs = read_lines(b);
  check<RuntimeError>(ours.size() == theirs.size(), "metrics: ", a, " has ", ours.size(),
                      " lines, ", b, " has ", theirs.size());
  Difference difference;
  for (size_t i = 0; i < ours.size(); ++i) {
    compare_json(ours[i], theirs[i], concat("line ", i + 1), difference);
  }
  return difference;
}

// Prints a line for each part; true if all are within the bound.
bool compare(const std::string& a, const std::string& b, double bound) {
  bool good = true;
  const auto report = [&](const std::string& what, const Difference& difference) {
    good = good && difference.within(bound);
    tapestry::print_result(concat(what, ": ", difference.text(), "\n"));
  };
  const std::string metrics_a = (fs::path(a) / "metrics.jsonl").string();
  const std::string metrics_b = (fs::path(b) / "metrics.jsonl").string();
  check<ValueError>(fs::exists(metrics_a) == fs::exists(metrics_b), "one of ", a, " and ", b,
                    " is the folder of a run, and the other is not; name two runs or two "
                    "checkpoints");
  const std::string ours = tapestry::resolve_checkpoint(a);
  const std::string theirs = tapestry::resolve_checkpoint(b);
  tapestry::print_result(concat("comparing ", ours, " with ", theirs, "\n"));
  report("weights", compare_tensors(*tapestry::open_weights(ours), *tapestry::open_weights(theirs),
                                    "weights"));
  const bool states = tapestry::has_training_state(ours);
  check<RuntimeError>(states == tapestry::has_training_state(theirs),
                      "only one of the two has a training state");
  if (states) {
    const auto files_a = tapestry::open_states(ours);
    const auto files_b = tapestry::open_states(theirs);
    check<RuntimeError>((files_a == nullptr) == (files_b == nullptr),
                        "only one of the two has tensors of a training state");
    if (files_a != nullptr) {
      report("optimizer state", compare_tensors(*files_a, *files_b, "optimizer state"));
    }
    constexpr uint64_t kMaxBytes = uint64_t{1} << 30U;
    const auto read = [&](const std::string& folder) {
      return tapestry::read_strict_json(
          tapestry::InputFile((fs::path(folder) / tapestry::kTrainingStateFile).string()), "state",
          kMaxBytes);
    };
    Difference difference;
    compare_json(read(ours), read(theirs), "", difference);
    report("position", difference);
  }
  if (fs::exists(metrics_a)) {
    report("metrics", compare_metrics(metrics_a, metrics_b));
  }
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  double bound = 0;
  po::options_description options(
      "compare_checkpoints A B [options]\n"
      "Two checkpoints, or the folders of two runs: their latest checkpoints and metrics.jsonl. "
      "Times, memory and layout are not compared. Exit code 0 if they are the same, 1 if they "
      "differ.");
  options.add_options()("help,h", "print this text")(
      "bound", po::value(&bound)->default_value(0)->value_name("X"),
      "largest difference that counts as the same: of a tensor relative to its largest value, of a "
      "number relative to itself; 0: the same bits");
  try {
    std::vector<std::string> words = tapestry::examples::words_of(argc, argv);
    if (tapestry::examples::answer_help(words, options)) {
      return 0;
    }
    check<ValueError>(words.size() >= 2 && !words[0].starts_with("-") && !words[1].starts_with("-"),
                      "compare_checkpoints A B: two folders are needed; --help lists the options");
    const std::string a = words[0];
    const std::string b = words[1];
    words.erase(words.begin(), words.begin() + 2);
    po::variables_map values = tapestry::examples::parse_command_line(words, options);
    po::notify(values);
    check<ValueError>(bound >= 0, "--bound is ", bound, ", expected a number from 0 on");
    const bool good = compare(a, b, bound);
    tapestry::print_result(good ? "the same\n" : "different\n");
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    tapestry::examples::say("compare_checkpoints", tapestry::failure_message(error));
    // What cannot be compared is different.
    const bool differ = dynamic_cast<const RuntimeError*>(&error) != nullptr;
    return differ ? tapestry::kFailure : tapestry::kBadInput;
  }
}
