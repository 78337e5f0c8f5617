#include "diagnosis/dump/dump_config.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <span>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/strict_json.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::dump {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20U;
constexpr std::string_view kCommon = "common_dump_settings";
constexpr std::string_view kE2e = "e2e_dump_settings";
constexpr auto kSections = std::to_array<std::string_view>({kCommon, kE2e});
constexpr auto kCommonFields = std::to_array<std::string_view>(
    {"op_debug_mode", "dump_mode", "path", "net_name", "iteration", "saved_data", "input_output",
     "kernels", "support_device", "statistic_category", "file_format", "overflow_number"});
constexpr auto kE2eFields = std::to_array<std::string_view>(
    {"enable", "trans_flag", "stat_calc_mode", "device_stat_precision_mode", "sample_mode",
     "sample_num", "save_kernel_args"});

/// One of the two objects of the file. Readers leave the default where the field is missing.
class Section {
 public:
  Section(const std::string& file,
          const json& whole,
          std::string_view name,
          std::span<const std::string_view> fields)
      : file_(file), name_(name) {
    const auto found = whole.find(name);
    if (found == whole.end()) {
      return;
    }
    check<ValueError>(found->is_object(), file_, ": ", name_, " is ", found->dump(),
                      "; expected an object of fields");
    object_ = &*found;
    for (const auto& item : object_->items()) {
      check<ValueError>(std::find(fields.begin(), fields.end(), item.key()) != fields.end(), file_,
                        ": ", name_, ": unknown field '", item.key(), "'; the nearest is '",
                        config::nearest(item.key(), fields), "'");
    }
  }

  const json* find(std::string_view field) const {
    if (object_ == nullptr) {
      return nullptr;
    }
    const auto found = object_->find(field);
    return found == object_->end() ? nullptr : &*found;
  }

  template <class... Args>
  [[noreturn]] void fail(std::string_view field, const Args&... reason) const {
    throw ValueError(concat(file_, ": ", name_, ".", field, ": ", reason...));
  }

  /// Runs what throws a ValueError about the field's value, and adds the place.
  template <class Body>
  auto at(std::string_view field, const Body& body) const {
    try {
      return body();
    } catch (const ValueError& error) {
      fail(field, error.what());
    }
  }

  void boolean(std::string_view field, bool& value) const {
    if (const json* found = find(field); found != nullptr) {
      if (!found->is_boolean()) {
        fail(field, found->dump(), " is neither true nor false");
      }
      value = found->get<bool>();
    }
  }

  void integer(std::string_view field, int64_t least, int64_t most, int64_t& value) const {
    if (const json* found = find(field); found != nullptr) {
      value = as_integer(field, *found, least, most);
    }
  }

  int64_t as_integer(std::string_view field, const json& found, int64_t least, int64_t most) const {
    const bool fits = found.is_number_integer() &&
                      (!found.is_number_unsigned() || found.get<uint64_t>() <= uint64_t(INT64_MAX));
    if (!fits || found.get<int64_t>() < least || found.get<int64_t>() > most) {
      if (most == std::numeric_limits<int64_t>::max()) {
        fail(field, found.dump(), " is no integer from ", least, " on");
      }
      fail(field, found.dump(), " is no integer from ", least, " to ", most);
    }
    return found.get<int64_t>();
  }

  void text(std::string_view field, std::string& value) const {
    if (const json* found = find(field); found != nullptr) {
      value = as_text(field, *found);
    }
  }

  std::string as_text(std::string_view field, const json& found) const {
    if (!found.is_string()) {
      fail(field, found.dump(), " is no text in quotes");
    }
    return found.get<std::string>();
  }

  /// The index of the text among the choices.
  size_t choice(std::string_view field,
                std::span<const std::string_view> choices,
                size_t otherwise) const {
    const json* found = find(field);
    if (found == nullptr) {
      return otherwise;
    }
    const std::string value = as_text(field, *found);
    const auto chosen = std::find(choices.begin(), choices.end(), value);
    if (chosen == choices.end()) {
      std::string known;
      for (const std::string_view name : choices) {
        known += concat(known.empty() ? "" : ", ", name);
      }
      fail(field, "'", value, "' is none of ", known);
    }
    return static_cast<size_t>(chosen - choices.begin());
  }

  /// The elements of an array that is not empty; null if the field is missing.
  const json* list(std::string_view field) const {
    const json* found = find(field);
    if (found != nullptr && !found->is_array()) {
      fail(field, found->dump(), " is no list");
    }
    return found;
  }

 private:
  const std::string& file_;
  std::string_view name_;
  const json* object_ = nullptr;
};

void read_modes(const Section& common, DumpConfig& config) {
  int64_t debug_mode = 0;
  common.integer("op_debug_mode", 0, 4, debug_mode);
  if (debug_mode == 4) {
    common.fail("op_debug_mode",
                "4 (inputs of an operator that raised) does not exist here: the error itself names "
                "the op and its inputs; 0 dumps ops, 3 only those that make a NaN or an infinity");
  }
  if (debug_mode != 0 && debug_mode != 3) {
    common.fail("op_debug_mode", debug_mode,
                " is none of 0 (all ops) and 3 (only ops that make a NaN or an infinity)");
  }
  config.only_overflow = debug_mode == 3;
  common.integer("overflow_number", 0, std::numeric_limits<int64_t>::max(), config.overflow_number);

  int64_t dump_mode = 0;
  common.integer("dump_mode", 0, 2, dump_mode);
  if (dump_mode == 2) {
    common.fail("dump_mode",
                "2 (only what the program marked by calls of set_dump) does not exist here; 1 with "
                "`kernels` chooses ops by name: \"kernels\": [\"name-regex(layers.0.*)\"]");
  }
  config.only_kernels = dump_mode == 1;
  if (const json* kernels = common.list("kernels"); kernels != nullptr) {
    for (const json& kernel : *kernels) {
      const std::string text = common.as_text("kernels", kernel);
      config.kernels.push_back(common.at("kernels", [&] { return KernelPattern(text); }));
    }
  }
  if (config.only_kernels && config.kernels.empty()) {
    common.fail("kernels", "dump_mode 1 dumps the ops that are listed here, and there are none");
  }
}

void read_places(const Section& common, DumpConfig& config) {
  common.text("path", config.path);
  if (config.path.empty()) {
    const char* data = std::getenv("MS_DIAGNOSTIC_DATA_PATH");  // NOLINT(concurrency-mt-unsafe)
    if (data == nullptr || *data == '\0') {
      common.fail("path",
                  "is empty, and so is MS_DIAGNOSTIC_DATA_PATH, below which the dump would go");
    }
    config.path = (std::filesystem::path(data) / "debug_dump").string();
  }
  config.path = std::filesystem::absolute(config.path).lexically_normal().string();
  common.text("net_name", config.net_name);
  if (!is_plain_file_name(config.net_name)) {
    common.fail("net_name", "'", config.net_name, "' is no name of a folder");
  }
}

void read_selection(const Section& common, DumpConfig& config) {
  std::string iteration = "all";
  common.text("iteration", iteration);
  config.iteration = common.at("iteration", [&] { return IterationSet(iteration); });

  int64_t input_output = 0;
  common.integer("input_output", 0, 2, input_output);
  config.inputs = input_output != 2;
  config.outputs = input_output != 1;

  if (const json* devices = common.list("support_device"); devices != nullptr) {
    config.support_device.clear();
    for (const json& device : *devices) {
      config.support_device.push_back(
          common.as_integer("support_device", device, 0, std::numeric_limits<int32_t>::max()));
    }
    if (config.support_device.empty()) {
      common.fail("support_device", "lists no device, so nothing would be dumped");
    }
  }
}

void read_contents(const Section& common, DumpConfig& config) {
  constexpr auto kSaved = std::to_array<std::string_view>({"tensor", "statistic", "full"});
  config.saved_data = static_cast<SavedData>(common.choice("saved_data", kSaved, 0));
  constexpr auto kFormats = std::to_array<std::string_view>({"npy", "bin"});
  if (common.choice("file_format", kFormats, 0) == 1) {
    common.fail("file_format",
                "bin is what a device makes of its own layouts; files here are always npy");
  }
  if (const json* categories = common.list("statistic_category"); categories != nullptr) {
    config.statistic_category = {};
    for (const json& category : *categories) {
      const std::string name = common.as_text("statistic_category", category);
      const auto statistic = statistic_of_category(name);
      if (!statistic.has_value()) {
        std::string known;
        for (int i = 0; i < kNumStatistics; ++i) {
          known += concat(known.empty() ? "" : ", ", category_of(static_cast<Statistic>(i)));
        }
        common.fail("statistic_category", "'", name, "' is none of ", known);
      }
      config.statistic_category.add(*statistic);
    }
    if (config.statistic_category.empty()) {
      common.fail("statistic_category", "is empty; without it max, min and l2norm are saved");
    }
  }
}

void read_e2e(const Section& e2e, DumpConfig& config) {
  // What says how a device makes its dump: checked, so that a mistake shows here as it does there.
  bool ignored = true;
  e2e.boolean("enable", ignored);
  e2e.boolean("trans_flag", ignored);
  constexpr auto kPlaces = std::to_array<std::string_view>({"host", "device"});
  e2e.choice("stat_calc_mode", kPlaces, 0);
  constexpr auto kPrecisions = std::to_array<std::string_view>({"high", "low"});
  e2e.choice("device_stat_precision_mode", kPrecisions, 0);

  int64_t sample_mode = 0;
  int64_t sample_num = 100;
  e2e.integer("sample_mode", 0, 1, sample_mode);
  e2e.integer("sample_num", 1, std::numeric_limits<int64_t>::max(), sample_num);
  config.sample_num = sample_mode == 1 ? sample_num : 0;
  e2e.boolean("save_kernel_args", config.save_kernel_args);
}

}  // namespace

bool DumpConfig::wants(std::string_view op_type, std::string_view op_name) const {
  return !only_kernels ||
         std::any_of(kernels.begin(), kernels.end(),
                     [&](const KernelPattern& kernel) { return kernel.matches(op_type, op_name); });
}

bool DumpConfig::wants_device(int64_t local_rank) const {
  return std::find(support_device.begin(), support_device.end(), local_rank) !=
         support_device.end();
}

DumpConfig read_dump_config(const std::string& file) {
  const InputFile input(file);
  const json whole = read_strict_json(input, "dump configuration", kMaxConfigBytes);
  check<ValueError>(whole.is_object(), file, ": expected an object with ", kCommon);
  for (const auto& item : whole.items()) {
    check<ValueError>(std::find(kSections.begin(), kSections.end(), item.key()) != kSections.end(),
                      file, ": unknown field '", item.key(), "'; expected ", kCommon, " and ",
                      kE2e);
  }
  check<ValueError>(whole.contains(kCommon), file, ": ", kCommon, " is missing");
  DumpConfig config;
  const Section common(file, whole, kCommon, kCommonFields);
  read_modes(common, config);
  read_places(common, config);
  read_selection(common, config);
  read_contents(common, config);
  read_e2e(Section(file, whole, kE2e, kE2eFields), config);
  config.text.resize(input.size());
  input.read_at(0, config.text.data(), config.text.size(), "dump configuration");
  return config;
}

}  // namespace tapestry::dump
