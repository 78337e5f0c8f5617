#include "parallel_core/training/log/json_log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "autograd/io/json.h"

namespace tapestry {

namespace {

std::atomic<bool> g_json{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // handlers read it

// The host's name as it stands in JSON, without its quotes; cut off where it is longer.
constexpr size_t kMostOfHost = 256;
std::array<char, kMostOfHost + 1> g_host{};

std::string host_name() {
  std::array<char, kMostOfHost + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string dumped(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json json_of(const LogField& field) {
  if (const auto* number = std::get_if<double>(&field.value)) {
    if (std::isnan(*number)) {
      return "nan";
    }
    if (std::isinf(*number)) {
      return *number > 0 ? "inf" : "-inf";
    }
    return *number;
  }
  if (const auto* whole = std::get_if<int64_t>(&field.value)) {
    return *whole;
  }
  return std::get<bool>(field.value);
}

// "2026-11-28T19:15:39.123+01:00"
std::string local_time_text() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  std::array<char, 32> day{};
  std::strftime(day.data(), day.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  const long minutes = parts.tm_gmtoff / 60;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%s.%03d%c%02ld:%02ld", day.data(),
                static_cast<int>(milliseconds), minutes < 0 ? '-' : '+', std::labs(minutes) / 60,
                std::labs(minutes) % 60);
  return text.data();
}

// A text that is put together without memory of the heap.
class HandlerText {
 public:
  void add(std::string_view text) {
    for (const char letter : text) {
      if (size_ < text_.size()) {
        text_[size_++] = letter;
      }
    }
  }
  void add_number(unsigned value, int digits) {
    for (unsigned place = digits == 4 ? 1000 : 10; place > 0; place /= 10) {
      const std::array<char, 1> digit = {static_cast<char>('0' + value / place % 10)};
      add({digit.data(), 1});
    }
  }
  void write_to(int descriptor) const {
    [[maybe_unused]] const ssize_t written = ::write(descriptor, text_.data(), size_);
  }

 private:
  std::array<char, 1024> text_{};
  size_t size_ = 0;
};

}  // namespace

std::string json_log_line(std::string_view level,
                          int rank,
                          const std::string& message,
                          const LogFields& fields) {
  static const std::string host = host_name();
  nlohmann::ordered_json line;
  line["time"] = local_time_text();
  line["level"] = level;
  line["rank"] = rank;
  line["host"] = host;
  line["message"] = message;
  for (const LogField& field : fields) {
    line[field.name] = json_of(field);
  }
  return dumped(line);
}

void set_json_of_process(bool json) {
  if (json) {
    const std::string quoted = dumped(host_name());
    const std::string host = quoted.substr(1, quoted.size() - 2);
    if (host.size() < g_host.size()) {
      host.copy(g_host.data(), host.size());
    }
  }
  g_json.store(json);
}

bool json_of_process() noexcept { return g_json.load(); }

void write_json_from_handler(int descriptor,
                             std::string_view level,
                             std::string_view first,
                             std::string_view second) noexcept {
  const auto now = std::chrono::time_point_cast<std::chrono::seconds>(
      std::chrono::system_clock::now());  // clock_gettime, which handlers may call
  const auto day = std::chrono::floor<std::chrono::days>(now);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss time(now - day);
  HandlerText line;
  line.add("{\"time\":\"");
  line.add_number(static_cast<unsigned>(static_cast<int>(date.year())), 4);
  line.add("-");
  line.add_number(static_cast<unsigned>(date.month()), 2);
  line.add("-");
  line.add_number(static_cast<unsigned>(date.day()), 2);
  line.add("T");
  line.add_number(static_cast<unsigned>(time.hours().count()), 2);
  line.add(":");
  line.add_number(static_cast<unsigned>(time.minutes().count()), 2);
  line.add(":");
  line.add_number(static_cast<unsigned>(time.seconds().count()), 2);
  line.add("Z\",\"level\":\"");
  line.add(level);
  line.add("\",\"rank\":0,\"host\":\"");  // other ranks leave it to the first one
  line.add(g_host.data());
  line.add("\",\"message\":\"");
  line.add(first);
  line.add(second);
  line.add("\"}\n");
  line.write_to(descriptor);
}

}  // namespace tapestry
