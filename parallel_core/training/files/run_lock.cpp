#include "parallel_core/training/files/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <string_view>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/input_file.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

// Empty for what cannot be read: a process that has ended, a lock that was just removed.
std::string content_of(const std::string& path) {
  try {
    return read_file(path);
  } catch (const IoError&) {
    return {};
  }
}

std::string first_line(std::string text) {
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

std::string boot_id() { return first_line(content_of("/proc/sys/kernel/random/boot_id")); }

// Field 22 of /proc/PID/stat: when the process was started. 0 if there is no such process.
int64_t start_of(int64_t pid) {
  const std::string text = content_of(concat("/proc/", pid, "/stat"));
  const size_t name_end = text.rfind(')');  // the name may hold blanks and brackets
  if (name_end == std::string::npos) {
    return 0;
  }
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) {
    fields >> field;
  }
  int64_t start = 0;
  std::from_chars(field.data(), field.data() + field.size(), start);
  return start;
}

// Of one line, without what a terminal might take for commands.
std::string command_of_self() {
  std::string text = content_of("/proc/self/cmdline");
  while (!text.empty() && text.back() == '\0') {
    text.pop_back();
  }
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 127; }, ' ');
  constexpr size_t kShown = 200;
  return text.size() > kShown ? text.substr(0, kShown) + "..." : text;
}

std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::array<char, 40> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return {text.data(), size};
}

std::string lines_of(const LockHolder& holder) {
  return concat("host: ", holder.host, "\npid: ", holder.pid, "\nstarted: ", holder.started,
                "\ncommand: ", holder.command, "\nboot_id: ", holder.boot_id,
                "\nprocess_start: ", holder.process_start,
                holder.job.empty()
                    ? std::string()
                    : concat("\njob: ", holder.job, "\njob_start: ", holder.job_start),
                "\n");
}

int64_t number_in(std::string_view digits) {
  int64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets any
  return value == nullptr ? "" : first_line(value);
}

// A batch system that starts a job again, or pretrain_gpt.sh --restarts.
void read_job(LockHolder& holder) {
  holder.job = variable("TAPESTRY_JOB");
  if (!holder.job.empty()) {
    holder.job_start = number_in(variable("TAPESTRY_JOB_START"));
  } else if (const std::string slurm = variable("SLURM_JOB_ID"); !slurm.empty()) {
    holder.job = "slurm-" + slurm;
    holder.job_start = number_in(variable("SLURM_RESTART_COUNT"));
  }
}

std::optional<LockHolder> parse_holder(const std::string& text) {
  LockHolder holder;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) {
      continue;
    }
    const std::string name = line.substr(0, colon);
    const std::string value = line.substr(colon + 2);
    if (name == "host") {
      holder.host = value;
    } else if (name == "pid") {
      holder.pid = number_in(value);
    } else if (name == "started") {
      holder.started = value;
    } else if (name == "command") {
      holder.command = value;
    } else if (name == "boot_id") {
      holder.boot_id = value;
    } else if (name == "process_start") {
      holder.process_start = number_in(value);
    } else if (name == "job") {
      holder.job = value;
    } else if (name == "job_start") {
      holder.job_start = number_in(value);
    }
  }
  return holder.pid > 0 ? std::optional(holder) : std::nullopt;
}

// Whether the path still leads to the open file, which its last holder may have removed.
bool is_still_there(const std::string& path, int descriptor) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

void write_holder(const std::string& path, int descriptor, const LockHolder& holder) {
  const std::string text = lines_of(holder);
  if (::ftruncate(descriptor, 0) != 0 ||
      ::pwrite(descriptor, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    const int error = errno;
    ::unlink(path.c_str());
    ::close(descriptor);
    throw_io_error(path, "write", error);
  }
}

}  // namespace

LockHolder LockHolder::self() {
  LockHolder holder;
  std::array<char, 256> name{};
  holder.host = ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
  holder.pid = ::getpid();
  holder.started = local_time();
  holder.boot_id = tapestry::boot_id();
  holder.process_start = start_of(holder.pid);
  holder.command = command_of_self();
  read_job(holder);
  return holder;
}

std::string LockHolder::describe() const {
  return concat("process ", pid, " on host ", host, ", since ", started,
                command.empty() ? "" : concat(" (", command, ")"));
}

bool LockHolder::is_reachable() const {
  return !boot_id.empty() && boot_id == tapestry::boot_id() && process_start != 0 &&
         start_of(pid) == process_start;
}

bool LockHolder::is_earlier_start_of(const LockHolder& other) const {
  return !job.empty() && job == other.job && job_start < other.job_start;
}

std::optional<LockHolder> read_lock(const std::string& path) {
  return parse_holder(content_of(path));
}

std::unique_ptr<RunLock> RunLock::take(const std::string& path, LockHolder& holder) {
  while (true) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) {
      throw_io_error(path, "open", errno);
    }
    const bool locked = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
    const int reason = locked ? 0 : errno;
    if (reason == EINTR || (locked && !is_still_there(path, descriptor))) {
      ::close(descriptor);
      continue;
    }
    // Some file systems have no such locks: there the process itself is looked for.
    const bool supported = locked || reason == EWOULDBLOCK;
    const std::optional<LockHolder> named = read_lock(path);
    const LockHolder self = LockHolder::self();
    const bool elsewhere = named && named->boot_id != self.boot_id && named->host != self.host &&
                           !named->is_earlier_start_of(self);
    if (supported ? !locked || elsewhere : named && (elsewhere || named->is_reachable())) {
      ::close(descriptor);
      holder = named.value_or(LockHolder{.host = "unknown", .started = "a moment ago"});
      return nullptr;
    }
    write_holder(path, descriptor, self);
    // The constructor is private.
    return std::unique_ptr<RunLock>(new RunLock(path, descriptor, named));
  }
}

RunLock::RunLock(std::string path, int descriptor, std::optional<LockHolder> previous)
    : path_(std::move(path)), descriptor_(descriptor), previous_(std::move(previous)) {}

RunLock::~RunLock() {
  ::unlink(path_.c_str());
  ::close(descriptor_);
}

}  // namespace tapestry
