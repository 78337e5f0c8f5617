#include "tests/fuzz/targets.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <stdexcept>

#include "autograd/tensor/error.h"
#include "interop/architectures/registry.h"
#include "tests/fuzz/allocation_meter.h"

namespace tapestry::fuzz {

namespace {

namespace fs = std::filesystem;

constexpr const char* kMemoryFileSystem = "/dev/shm";
constexpr std::string_view kMark = "=== ";
constexpr size_t kMaxFiles = 8;
constexpr size_t kMaxName = 80;

bool is_usable_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName && name.front() != '.' &&
         name.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
             "0123456789._-") == std::string_view::npos;
}

}  // namespace

InputFolder::InputFolder() {
  std::error_code ignored;
  const bool in_memory =
      fs::is_directory(kMemoryFileSystem, ignored) && ::access(kMemoryFileSystem, W_OK) == 0;
  const fs::path base = in_memory ? fs::path(kMemoryFileSystem) : fs::temp_directory_path();
  path_ = (base / "tapestry_fuzz_XXXXXX").string();
  if (::mkdtemp(path_.data()) == nullptr) {
    throw std::runtime_error("cannot make a folder in " + base.string());
  }
}

InputFolder::~InputFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void InputFolder::put(std::string_view name, std::string_view content) {
  const std::string path = file(name);
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool whole = descriptor >= 0;
  if (whole) {
    whole =
        ::write(descriptor, content.data(), content.size()) == static_cast<ssize_t>(content.size());
    ::close(descriptor);
  }
  if (!whole) {
    throw std::runtime_error("cannot write " + path);
  }
  names_.emplace_back(name);
}

void InputFolder::put_bundle(std::string_view input) {
  while (input.starts_with(kMark) && names_.size() < kMaxFiles) {
    input.remove_prefix(kMark.size());
    const size_t line = input.find('\n');
    if (line == std::string_view::npos) {
      return;
    }
    const std::string_view name = input.substr(0, line);
    input.remove_prefix(line + 1);
    const size_t next = input.find("\n=== ");
    if (is_usable_name(name)) {
      put(name, input.substr(0, next));
    }
    input = next == std::string_view::npos ? std::string_view() : input.substr(next + 1);
  }
}

void InputFolder::clear() {
  for (const std::string& name : names_) {
    ::unlink(file(name).c_str());
  }
  names_.clear();
}

size_t allowed_memory(size_t input_bytes, size_t factor) {
  constexpr size_t kBase = size_t{256} << 10U;  // streams' buffers, messages
  return kBase + factor * input_bytes;
}

std::string fault_of(const Target& target, InputFolder& folder, std::string_view input) {
  architectures::all();  // the table is no part of what an input asks for
  folder.clear();
  target.put(folder, input);
  const size_t allowed = allowed_memory(input.size(), target.memory_factor);
  const AllocationMeter meter(allowed);
  std::string message;
  try {
    target.read(folder);
  } catch (const IoError& error) {
    message = error.what();
  } catch (const ValueError& error) {
    message = error.what();
  } catch (const TypeError& error) {
    message = error.what();
  } catch (const std::exception& error) {
    if (!meter.exceeded()) {
      return std::string("throws what a reader must not throw: ") + error.what();
    }
  }
  if (meter.exceeded()) {
    return "asks for " + std::to_string(meter.peak()) + " bytes, more than the " +
           std::to_string(allowed) + " that an input of " + std::to_string(input.size()) +
           " may take";
  }
  if (!message.empty() && message.find(folder.path()) == std::string::npos) {
    return "a message does not name the file: " + message;
  }
  return {};
}

}  // namespace tapestry::fuzz
