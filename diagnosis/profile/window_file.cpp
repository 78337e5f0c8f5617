#include "diagnosis/profile/window_file.h"

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"

namespace tapestry::profile {

namespace {

using nlohmann::json;

constexpr uint64_t kMaxBytes = uint64_t{1} << 20U;

constexpr std::string_view kKeys =
    "start_step, stop_step, profiler_level, profile_memory, with_stack, profile_communication, "
    "parallel_strategy, data_process, data_simplification";

int64_t step_of(const json& value, const std::string& key, const std::string& name) {
  check<ValueError>(value.is_number_integer() && value.get<int64_t>() >= 1, name, ": ", key,
                    " must be a step, counted from 1; got ", value.dump());
  return value.get<int64_t>();
}

bool flag_of(const json& value, const std::string& key, const std::string& name) {
  check<ValueError>(value.is_boolean(), name, ": ", key, " must be true or false; got ",
                    value.dump());
  return value.get<bool>();
}

std::string level_of(const json& value, const std::string& name) {
  if (value.is_number_integer()) {
    const auto level = value.get<int64_t>();
    if (level >= -1 && level <= 2) {
      return "level" + std::to_string(level < 0 ? 0 : level);
    }
  }
  if (value.is_string()) {
    for (const char* level : {"level0", "level1", "level2"}) {
      if (value.get<std::string>() == level) {
        return level;
      }
    }
  }
  throw ValueError(concat(name, ": profiler_level must be -1, 0, 1, 2, \"level0\", \"level1\" or ",
                          "\"level2\"; got ", value.dump()));
}

}  // namespace

WindowRequest read_window_request(const std::string& text, const std::string& name) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  check<ValueError>(object.is_object(), name, ": is no JSON object");
  WindowRequest out;
  for (const auto& [key, value] : object.items()) {
    if (key == "start_step") {
      out.first = step_of(value, key, name);
    } else if (key == "stop_step") {
      out.last = step_of(value, key, name);
    } else if (key == "profiler_level") {
      out.level = level_of(value, name);
    } else if (key == "profile_memory") {
      out.memory = flag_of(value, key, name);
    } else if (key == "with_stack") {
      out.with_stack = flag_of(value, key, name);
    } else if (key == "profile_communication") {
      out.communication = flag_of(value, key, name);
    } else if (key == "parallel_strategy") {
      out.parallel_strategy = flag_of(value, key, name);
    } else if (key == "data_process") {
      out.data_process = flag_of(value, key, name);
    } else if (key == "data_simplification") {
      out.data_simplification = flag_of(value, key, name);
    } else {
      throw ValueError(concat(name, ": unknown key ", key, "; known are ", kKeys));
    }
  }
  check<ValueError>(out.first > 0 && out.last > 0, name, ": start_step and stop_step are needed");
  check<ValueError>(out.last >= out.first, name, ": stop_step ", out.last,
                    " lies before start_step ", out.first);
  return out;
}

std::string window_file(const std::string& path) {
  return std::filesystem::is_directory(path) ? path + "/profiler_config.json" : path;
}

std::string WatchedText::read_if_changed() {
  std::string text;
  std::string problem;
  try {
    text = read_file(path_, kMaxBytes);
  } catch (const IoError& error) {
    std::error_code ignored;
    if (std::filesystem::exists(path_, ignored)) {  // else not there yet, or gone again
      problem = error.what();
    }
  }
  const bool is_new = problem != std::exchange(last_problem_, problem);
  check<IoError>(problem.empty() || !is_new, problem);
  if (text == last_) {
    return {};
  }
  last_ = text;
  return text;
}

}  // namespace tapestry::profile
