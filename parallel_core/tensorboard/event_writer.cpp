#include "parallel_core/tensorboard/event_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/crc32c.h"
#include "autograd/io/input_file.h"
#include "autograd/tensor/error.h"

namespace tapestry::report {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr size_t kLengthBytes = 12;                  // with their checksum
constexpr uint64_t kMostBytes = uint64_t{1} << 30U;  // of one event; more is no length

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Of the folder, by name, which is the order in which TensorBoard reads them.
std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with(kPrefix)) {
      paths.push_back(entry->path().string());
    }
  }
  check<IoError>(!error || error == std::errc::no_such_file_or_directory, folder,
                 ": cannot be read: ", error.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// The seconds in a file's name; 0 if it has none.
int64_t seconds_of(const std::string& path) {
  const std::string name = fs::path(path).filename().string().substr(kPrefix.size());
  int64_t seconds = 0;
  std::from_chars(name.data(), name.data() + name.size(), seconds);
  return seconds;
}

template <class T>
T number_at(const std::string& bytes, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  }
  return value;
}

bool is_sound(const std::string& bytes, size_t begin, size_t size) {
  return number_at<uint32_t>(bytes, begin + size) == masked_crc(crc32c(bytes.data() + begin, size));
}

// The event of the record at an offset; empty where there is no whole one.
std::string event_of_record(const InputFile& file, uint64_t offset) {
  std::string bytes(kLengthBytes, 0);
  if (file.size() - offset < kRecordFrame) {
    return {};
  }
  file.read_at(offset, bytes.data(), bytes.size(), "length");
  const auto size = number_at<uint64_t>(bytes, 0);
  if (!is_sound(bytes, 0, sizeof(uint64_t)) || size > kMostBytes ||
      size > file.size() - offset - kRecordFrame) {
    return {};
  }
  bytes.resize(size + sizeof(uint32_t));
  file.read_at(offset + kLengthBytes, bytes.data(), bytes.size(), "event");
  if (!is_sound(bytes, 0, size)) {
    return {};
  }
  bytes.resize(size);
  return bytes;
}

struct KeptPart {
  uint64_t bytes = 0;
  bool has_values = false;
};

bool is_text(const std::string& tag) { return tag.ends_with("/text_summary"); }

// What of a file stays: all before the first value of a later step.
KeptPart kept_part(const InputFile& file, int64_t last_step) {
  KeptPart kept;
  while (kept.bytes < file.size()) {
    const std::string event = event_of_record(file, kept.bytes);
    const std::optional<EventHead> head = read_event_head(event);
    if (event.empty() || !head) {
      break;
    }
    const bool over_steps = !head->tags.empty() && !head->tags.front().ends_with(kOverSamples);
    if (over_steps && head->step > last_step) {
      break;
    }
    kept.has_values |= over_steps && !is_text(head->tags.front());
    kept.bytes += event.size() + kRecordFrame;
  }
  return kept;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name.front() == 0) {
    return "localhost";
  }
  std::string text = name.data();
  std::replace(text.begin(), text.end(), '/', '_');
  return text;
}

}  // namespace

void cut_events(const std::string& folder, int64_t last_step) {
  for (const std::string& path : event_files(folder)) {
    KeptPart kept;
    uint64_t size = 0;
    {
      const InputFile file(path);
      size = file.size();
      kept = kept_part(file, last_step);
    }
    std::error_code error;
    if (!kept.has_values) {
      fs::remove(path, error);
    } else if (kept.bytes < size) {
      fs::resize_file(path, kept.bytes, error);
    }
    check<IoError>(!error, path, ": cannot be cut to step ", last_step, ": ", error.message());
  }
}

std::string move_events_aside(const std::string& folder, const std::string& name) {
  const fs::path from = fs::path(folder) / name;
  const std::vector<std::string> files = event_files(from.string());
  if (files.empty()) {
    return {};
  }
  try {
    const fs::path old = fs::path(folder) / "old";
    int64_t number = 1;
    while (fs::exists(old / concat("run_", number) / name)) {
      ++number;
    }
    const fs::path aside = old / concat("run_", number) / name;
    fs::create_directories(aside);
    for (const std::string& path : files) {
      fs::rename(path, aside / fs::path(path).filename());
    }
    return aside.string();
  } catch (const fs::filesystem_error& error) {
    throw IoError(concat(from.string(),
                         ": the events of an earlier run cannot be moved aside: ", error.what()));
  }
}

EventWriter::EventWriter(std::string folder, int64_t queue_size)
    : folder_(std::move(folder)), queue_size_(queue_size) {}

EventWriter::~EventWriter() {
  try {
    flush();
  } catch (const Error&) {  // a run that ends well has flushed
  }
  if (file_ >= 0) {
    ::close(file_);
  }
}

void EventWriter::start(int64_t step) { add(start_event(now(), step)); }

void EventWriter::scalars(int64_t step, const std::vector<Scalar>& values) {
  add(scalar_event(now(), step, values));
}

void EventWriter::text(int64_t step, const std::string& tag, const std::string& markdown) {
  add(text_event(now(), step, tag, markdown));
}

void EventWriter::histogram(int64_t step, const std::string& tag, const Histogram& histogram) {
  add(histogram_event(now(), step, tag, histogram));
}

void EventWriter::add(std::string_view event) {
  constexpr auto kPatience = std::chrono::seconds(5);
  const auto time = std::chrono::steady_clock::now();
  if (file_ < 0 && queue_.empty()) {
    queue_ = event_record(version_event(now()));
  }
  if (queued_ == 0) {
    oldest_ = time;
  }
  queue_ += event_record(event);
  ++queued_;
  if (queued_ >= queue_size_ || time - oldest_ >= kPatience) {
    flush();
  }
}

void EventWriter::open() {
  static std::atomic<int64_t> counter{0};
  std::error_code error;
  fs::create_directories(folder_, error);
  check<IoError>(fs::is_directory(folder_), folder_, ": the folder cannot be made: ",
                 error ? error.message() : std::string("there is a file of this name"));
  const std::vector<std::string> earlier = event_files(folder_);
  auto seconds = static_cast<int64_t>(now());
  if (!earlier.empty()) {
    seconds = std::max(seconds, seconds_of(earlier.back()) + 1);
  }
  std::string digits = std::to_string(seconds);
  digits.insert(0, digits.size() < 10 ? 10 - digits.size() : 0, '0');
  path_ = (fs::path(folder_) /
           concat(kPrefix, digits, ".", host_name(), ".", ::getpid(), ".", counter.fetch_add(1)))
              .string();
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) {
    throw_io_error(path_, "be written", errno);
  }
}

void EventWriter::flush() {
  if (queue_.empty()) {
    return;
  }
  if (file_ < 0) {
    open();
  }
  const off_t before = ::lseek(file_, 0, SEEK_END);
  size_t done = 0;
  while (done < queue_.size()) {
    const ssize_t written = ::write(file_, queue_.data() + done, queue_.size() - done);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      const int error = errno;
      const bool shortened = ::ftruncate(file_, before) == 0;
      throw_io_error(path_, shortened ? "be written" : "be written, and ends in a torn record",
                     error);
    }
    done += static_cast<size_t>(written);
  }
  queue_.clear();
  queued_ = 0;
}

}  // namespace tapestry::report
