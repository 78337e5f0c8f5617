// A library to be loaded before a program (LD_PRELOAD), for which one call to the file system, or
// every one from it on, fails or lies.
//
// FAULTY_DISK        the folder: calls on paths below it, and on files opened there, are counted
// FAULTY_DISK_CALL   which: open, read, write, fsync, rename, mmap, close, truncate, mkdir, unlink
// FAULTY_DISK_NUMBER the call that is hit, from 1
// FAULTY_DISK_FAULT  ENOSPC, EIO, EINTR, EDQUOT, EACCES: it fails, and nothing is done;
//                    short: half is done, and half is reported;
//                    torn: half is done, then EIO;
//                    half: half is done (of what cannot be halved nothing), the whole is reported;
//                    zeros: as half, with zeros in place of the other half;
//                    flip: all is done, with one bit another one
// FAULTY_DISK_STAYS  set: every call from that one on
// FAULTY_DISK_LOG    a file, outside of the folder: "hit CALL PATH" for a call that is hit, and at
//                    the end "count CALL N" for each kind of call
// FAULTY_DISK_FREE   "1000000 0 50": the bytes that are free below the folder, or above it, each
// time
//                    someone asks; the last of them from then on
//
// A fault that a call cannot have leaves it as it is.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace {

enum Call : uint8_t {
  kOpen,
  kRead,
  kWrite,
  kFsync,
  kRename,
  kMmap,
  kClose,
  kTruncate,
  kMkdir,
  kUnlink,
  kCalls,
};
constexpr std::array<const char*, kCalls> kNames = {"open", "read",  "write",    "fsync", "rename",
                                                    "mmap", "close", "truncate", "mkdir", "unlink"};

template <class Function>
Function* real(const char* name, Function* /*type*/) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}
// The library's own function of the same name, found once.
#define REAL(function)                                      \
  ([] {                                                     \
    static const auto found = real(#function, &::function); \
    return found;                                           \
  }())

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

enum class Fault : uint8_t { kNone, kError, kShort, kTorn, kHalf, kZeros, kFlip };

int error_of(const std::string& name) {
  return name == "ENOSPC"   ? ENOSPC
         : name == "EIO"    ? EIO
         : name == "EINTR"  ? EINTR
         : name == "EDQUOT" ? EDQUOT
         : name == "EACCES" ? EACCES
                            : 0;
}

class Plan {
 public:
  static Plan& get() {
    static auto* const plan = new Plan;  // files are closed after the last destructor
    return *plan;
  }

  bool is_below(std::string_view path) const {
    return !folder_.empty() && path.starts_with(folder_) &&
           (path.size() == folder_.size() || path[folder_.size()] == '/');
  }

  // Counts the call; what is to happen to it.
  Fault of(Call call, const std::string& path) {
    if (!is_below(path)) {
      return Fault::kNone;
    }
    const int64_t number = ++counts_[call];
    if (call != call_ || (stays_ ? number < number_ : number != number_)) {
      return Fault::kNone;
    }
    log(std::string("hit ") + kNames[call] + " " + path + "\n");
    return fault_;
  }
  int error() const { return error_; }

  // What is said to be free there; below 0: the truth.
  int64_t free_bytes(const std::string& path) {
    if (free_.empty() || !(is_below(path) || folder_.starts_with(path))) {
      return -1;
    }
    const size_t number = asked_++;
    return free_[std::min(number, free_.size() - 1)];
  }

  void log_counts() {
    std::string text;
    for (size_t call = 0; call < kCalls; ++call) {
      text += std::string("count ") + kNames[call] + " " + std::to_string(counts_[call]) + "\n";
    }
    log(text);
  }

 private:
  Plan() {
    std::array<char, PATH_MAX> name = {};
    const std::string folder = variable("FAULTY_DISK");
    folder_ = ::realpath(folder.c_str(), name.data()) == nullptr ? folder : name.data();
    const std::string call = variable("FAULTY_DISK_CALL");
    call_ = std::find(kNames.begin(), kNames.end(), call) - kNames.begin();
    number_ = std::atoll(variable("FAULTY_DISK_NUMBER").c_str());
    stays_ = !variable("FAULTY_DISK_STAYS").empty();
    log_ = variable("FAULTY_DISK_LOG");
    const std::string free = variable("FAULTY_DISK_FREE");
    for (size_t at = 0; at < free.size(); at = std::min(free.find(' ', at), free.size() - 1) + 1) {
      free_.push_back(std::atoll(free.c_str() + at));
    }
    const std::string fault = variable("FAULTY_DISK_FAULT");
    error_ = error_of(fault);
    fault_ = error_ != 0        ? Fault::kError
             : fault == "short" ? Fault::kShort
             : fault == "torn"  ? Fault::kTorn
             : fault == "half"  ? Fault::kHalf
             : fault == "zeros" ? Fault::kZeros
             : fault == "flip"  ? Fault::kFlip
                                : Fault::kNone;
  }

  void log(const std::string& text) const {
    if (log_.empty()) {
      return;
    }
    const int file = REAL(open)(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file >= 0) {
      [[maybe_unused]] const ssize_t ignored = REAL(write)(file, text.data(), text.size());
      REAL(close)(file);
    }
  }

  std::string folder_;
  std::string log_;
  Fault fault_ = Fault::kNone;
  int error_ = 0;
  int64_t call_ = kCalls;
  int64_t number_ = 0;
  bool stays_ = false;
  std::vector<int64_t> free_;
  std::atomic<size_t> asked_ = 0;
  std::array<std::atomic<int64_t>, kCalls> counts_ = {};
};

std::string path_of(int descriptor) {
  std::array<char, PATH_MAX> path = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = ::readlink(link.c_str(), path.data(), path.size());
  return {path.data(), size > 0 ? static_cast<size_t>(size) : 0};
}

// Absolute, without "." in between; links are left as they are.
std::string path_of(int folder, const char* name) {
  std::string path = name;
  if (!path.starts_with('/')) {
    std::array<char, PATH_MAX> here = {};
    const std::string base = folder == AT_FDCWD ? (::getcwd(here.data(), here.size()) == nullptr
                                                       ? std::string()
                                                       : std::string(here.data()))
                                                : path_of(folder);
    path = base + "/" + path;
  }
  for (size_t at = path.find("/./"); at != std::string::npos; at = path.find("/./")) {
    path.erase(at, 2);
  }
  return path;
}

// A call that is done or not: true, with the result, where it is not passed on.
bool refused(Call call, const std::string& path, int& result) {
  const Fault fault = Plan::get().of(call, path);
  if (fault == Fault::kError) {
    errno = Plan::get().error();
    result = -1;
    return true;
  }
  result = 0;
  return fault == Fault::kHalf;
}

// A transfer of `bytes`; `move(data, bytes)` moves the first of them.
template <class Move>
ssize_t write_with(int descriptor, const void* data, size_t bytes, const Move& move) {
  const Fault fault = Plan::get().of(kWrite, path_of(descriptor));
  const auto* first = static_cast<const std::byte*>(data);
  const size_t half = bytes / 2;
  switch (fault) {
    case Fault::kError:
      errno = Plan::get().error();
      return -1;
    case Fault::kShort:
      return move(first, std::max<size_t>(half, std::min<size_t>(bytes, 1)));
    case Fault::kTorn:
      move(first, half);
      errno = EIO;
      return -1;
    case Fault::kHalf:
      return move(first, half) < 0 ? -1 : static_cast<ssize_t>(bytes);
    case Fault::kZeros:
    case Fault::kFlip: {
      // Aligned as the medium wants it of transfers past the cache.
      const size_t room = (bytes / 4096 + 2) * 4096;
      auto* memory = static_cast<std::byte*>(std::aligned_alloc(4096, room));
      std::byte* copy = memory + reinterpret_cast<uintptr_t>(data) % 4096;
      std::memcpy(copy, data, bytes);
      if (fault == Fault::kZeros) {
        std::memset(copy + half, 0, bytes - half);
      } else if (bytes > 0) {
        copy[half] ^= std::byte{1};
      }
      const ssize_t moved = move(copy, bytes);
      std::free(memory);
      return moved;
    }
    default:
      return move(first, bytes);
  }
}

template <class Move>
ssize_t read_with(int descriptor, void* data, size_t bytes, const Move& move) {
  switch (Plan::get().of(kRead, path_of(descriptor))) {
    case Fault::kError:
      errno = Plan::get().error();
      return -1;
    case Fault::kShort:
      return move(data, std::max<size_t>(bytes / 2, std::min<size_t>(bytes, 1)));
    case Fault::kTorn:
      errno = EIO;
      return -1;
    default:
      return move(data, bytes);
  }
}

template <class Open>
int open_with(const std::string& path, const Open& open) {
  if (Plan::get().of(kOpen, path) == Fault::kError) {
    errno = Plan::get().error();
    return -1;
  }
  return open();
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

__attribute__((destructor)) void log_counts() { Plan::get().log_counts(); }

}  // namespace

// The C library's functions, with its signatures; the 64 in a name says nothing on this platform.
extern "C" {

#define OPEN(name)                                                                            \
  int name(const char* path, int flags, ...) {                                                \
    va_list arguments;                                                                        \
    va_start(arguments, flags);                                                               \
    const mode_t mode = mode_of(flags, arguments);                                            \
    va_end(arguments);                                                                        \
    return open_with(path_of(AT_FDCWD, path), [&] { return REAL(name)(path, flags, mode); }); \
  }
OPEN(open)
OPEN(open64)
#undef OPEN

#define OPENAT(name)                                                         \
  int name(int folder, const char* path, int flags, ...) {                   \
    va_list arguments;                                                       \
    va_start(arguments, flags);                                              \
    const mode_t mode = mode_of(flags, arguments);                           \
    va_end(arguments);                                                       \
    return open_with(path_of(folder, path),                                  \
                     [&] { return REAL(name)(folder, path, flags, mode); }); \
  }
OPENAT(openat)
OPENAT(openat64)
#undef OPENAT

#define FOPEN(name)                                \
  FILE* name(const char* path, const char* mode) { \
    FILE* file = nullptr;                          \
    open_with(path_of(AT_FDCWD, path), [&] {       \
      file = REAL(name)(path, mode);               \
      return 0;                                    \
    });                                            \
    return file;                                   \
  }
FOPEN(fopen)
FOPEN(fopen64)
#undef FOPEN

int close(int descriptor) {
  const Fault fault = Plan::get().of(kClose, path_of(descriptor));
  const int result = REAL(close)(descriptor);
  if (fault == Fault::kError) {
    errno = Plan::get().error();
    return -1;
  }
  return result;
}

ssize_t read(int descriptor, void* data, size_t bytes) {
  return read_with(descriptor, data, bytes,
                   [&](void* to, size_t now) { return REAL(read)(descriptor, to, now); });
}

#define PREAD(name)                                                       \
  ssize_t name(int descriptor, void* data, size_t bytes, off_t offset) {  \
    return read_with(descriptor, data, bytes, [&](void* to, size_t now) { \
      return REAL(name)(descriptor, to, now, offset);                     \
    });                                                                   \
  }
PREAD(pread)
PREAD(pread64)
#undef PREAD

ssize_t write(int descriptor, const void* data, size_t bytes) {
  return write_with(descriptor, data, bytes, [&](const std::byte* from, size_t now) {
    return REAL(write)(descriptor, from, now);
  });
}

#define PWRITE(name)                                                                    \
  ssize_t name(int descriptor, const void* data, size_t bytes, off_t offset) {          \
    return write_with(descriptor, data, bytes, [&](const std::byte* from, size_t now) { \
      return REAL(name)(descriptor, from, now, offset);                                 \
    });                                                                                 \
  }
PWRITE(pwrite)
PWRITE(pwrite64)
#undef PWRITE

ssize_t writev(int descriptor, const iovec* pieces, int count) {
  std::vector<std::byte> all;
  for (int i = 0; i < count; ++i) {
    const auto* data = static_cast<const std::byte*>(pieces[i].iov_base);
    all.insert(all.end(), data, data + pieces[i].iov_len);
  }
  return write_with(descriptor, all.data(), all.size(), [&](const std::byte* from, size_t now) {
    return REAL(write)(descriptor, from, now);
  });
}

#define SYNC(name)                                                                         \
  int name(int descriptor) {                                                               \
    int result = 0;                                                                        \
    return refused(kFsync, path_of(descriptor), result) ? result : REAL(name)(descriptor); \
  }
SYNC(fsync)
SYNC(fdatasync)
#undef SYNC

#define TRUNCATE(name)                                                                      \
  int name(int descriptor, off_t bytes) {                                                   \
    int result = 0;                                                                         \
    return refused(kTruncate, path_of(descriptor), result) ? result                         \
                                                           : REAL(name)(descriptor, bytes); \
  }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)
#undef TRUNCATE

// Says what is wrong by its value.
#define ALLOCATE(name)                                     \
  int name(int descriptor, off_t offset, off_t bytes) {    \
    int result = 0;                                        \
    return refused(kTruncate, path_of(descriptor), result) \
               ? (result < 0 ? errno : 0)                  \
               : REAL(name)(descriptor, offset, bytes);    \
  }
ALLOCATE(posix_fallocate)
ALLOCATE(posix_fallocate64)
#undef ALLOCATE

int rename(const char* from, const char* to) {
  int result = 0;
  return refused(kRename, path_of(AT_FDCWD, to), result) ? result : REAL(rename)(from, to);
}

int renameat2(
    int from_folder, const char* from, int to_folder, const char* to, unsigned int flags) {
  int result = 0;
  return refused(kRename, path_of(to_folder, to), result)
             ? result
             : REAL(renameat2)(from_folder, from, to_folder, to, flags);
}

int mkdir(const char* path, mode_t mode) {
  int result = 0;
  return refused(kMkdir, path_of(AT_FDCWD, path), result) ? result : REAL(mkdir)(path, mode);
}

int unlink(const char* path) {
  int result = 0;
  return refused(kUnlink, path_of(AT_FDCWD, path), result) ? result : REAL(unlink)(path);
}

int unlinkat(int folder, const char* path, int flags) {
  int result = 0;
  return refused(kUnlink, path_of(folder, path), result) ? result
                                                         : REAL(unlinkat)(folder, path, flags);
}

int remove(const char* path) {
  int result = 0;
  return refused(kUnlink, path_of(AT_FDCWD, path), result) ? result : REAL(remove)(path);
}

#define STATVFS(name, type)                                               \
  int name(const char* path, type* space) {                               \
    const int result = REAL(name)(path, space);                           \
    const int64_t free = Plan::get().free_bytes(path_of(AT_FDCWD, path)); \
    if (result == 0 && free >= 0) {                                       \
      space->f_bavail = static_cast<decltype(space->f_bavail)>(free);     \
      space->f_frsize = 1;                                                \
      space->f_bsize = 1;                                                 \
    }                                                                     \
    return result;                                                        \
  }
STATVFS(statvfs, struct statvfs)
STATVFS(statvfs64, struct statvfs64)
#undef STATVFS

#define MAP(name)                                                                               \
  void* name(void* at, size_t bytes, int protection, int flags, int descriptor, off_t offset) { \
    int result = 0;                                                                             \
    return descriptor >= 0 && refused(kMmap, path_of(descriptor), result)                       \
               ? MAP_FAILED                                                                     \
               : REAL(name)(at, bytes, protection, flags, descriptor, offset);                  \
  }
MAP(mmap)
MAP(mmap64)
#undef MAP

}  // extern "C"
