#include "autograd/tensor/system_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// First number in a file; -1 if the file is not there or holds none ("max").
int64_t number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t number = -1;
  return file >> number ? number : -1;
}

// Number after `name` in a file of lines "name number"; 0 if it is not there.
int64_t field_in(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    int64_t number = 0;
    if (words >> word >> number && word == name) {
      return number;
    }
  }
  return 0;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // file cache in memory.stat, which the kernel gives back
};
constexpr GroupFiles kVersion1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                  "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"/memory.max", "/memory.current", "inactive_file"};

// What the group and the groups around it leave; a limit holds for everything below it.
int64_t group_headroom(const std::string& mount, std::string group, const GroupFiles& files) {
  int64_t headroom = kUnlimited;
  while (true) {
    const std::string folder = mount + group;
    const int64_t limit = number_in(folder + files.limit);
    const int64_t usage = number_in(folder + files.usage);
    if (limit >= 0 && usage >= 0) {
      const int64_t cache = field_in(folder + "/memory.stat", files.reclaimable);
      headroom =
          std::min(headroom, std::max<int64_t>(0, limit - std::max<int64_t>(0, usage - cache)));
    }
    if (group.empty()) {
      return headroom;
    }
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

}  // namespace

int64_t available_memory(const std::string& root) {
  const std::string base = root.ends_with('/') ? root.substr(0, root.size() - 1) : root;
  int64_t available = kUnlimited;
  if (const int64_t kib = field_in(base + "/proc/meminfo", "MemAvailable:"); kib > 0) {
    available = kib * 1024;
  }
  // Lines "id:controllers:/group"; version 2 has the id 0 and no controllers.
  std::ifstream groups(base + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = concat(",", line.substr(first + 1, second - first - 1), ",");
    std::string group = line.substr(second + 1);
    if (group == "/") {
      group.clear();
    }
    if (controllers == ",,") {
      for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
        available = std::min(available, group_headroom(base + mount, group, kVersion2));
      }
    } else if (controllers.find(",memory,") != std::string::npos) {
      available =
          std::min(available, group_headroom(base + "/sys/fs/cgroup/memory", group, kVersion1));
    }
  }
  return available;
}

ProcessMemory process_memory(const std::string& root) {
  constexpr int64_t kKib = 1024;
  const std::string status = root + (root.ends_with('/') ? "" : "/") + "proc/self/status";
  return {.current_bytes = kKib * field_in(status, "VmRSS:"),
          .peak_bytes = kKib * field_in(status, "VmHWM:")};
}

void check_available(std::string_view what, int64_t bytes) {
  constexpr int64_t kAsked = int64_t{64} << 20;  // what is smaller is not worth reading files for
  if (bytes < kAsked) {
    return;
  }
  const int64_t available = available_memory();
  check<RuntimeError>(bytes <= available, what, ": no memory for ", bytes,
                      " bytes: the machine has ", available, " left for this process");
}

}  // namespace tapestry
