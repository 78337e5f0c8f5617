#include "autograd/io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>

namespace tapestry {

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // Without O_NONBLOCK the open of a pipe that nobody writes to would never return.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) {
    throw IoError(concat(path_, ": cannot open: ", std::generic_category().message(errno)));
  }
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw IoError(concat(path_, ": cannot read: not a regular file"));
  }
  size_ = static_cast<uint64_t>(status.st_size);
  refuse_pointer();
}

// A clone without git-lfs has texts of three lines in place of large files.
void InputFile::refuse_pointer() {
  constexpr std::string_view kBeginning = "version https://git-lfs.github.com/spec/";
  constexpr uint64_t kMostBytes = 1024;  // by the specification of Git LFS
  std::array<char, kBeginning.size()> text{};
  if (size_ > kMostBytes ||
      ::pread(descriptor_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
      std::string_view(text.data(), text.size()) != kBeginning) {
    return;
  }
  ::close(descriptor_);
  throw IoError(concat(path_,
                       ": is a Git LFS pointer and not the file itself; fetch that with "
                       "git lfs pull"));
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      size_(other.size_),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void InputFile::read_at(uint64_t offset, void* data, size_t bytes, std::string_view field) const {
  uint64_t end = 0;
  if (!checked_add(offset, bytes, end) || end > size_) {
    fail(offset, field, bytes, " bytes expected, but the file ends at ", size_, " (truncated?)");
  }
  auto* out = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, out, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      fail(offset, field, "cannot read: ", std::generic_category().message(errno));
    }
    if (got == 0) {
      fail(offset, field, "the file was truncated while it was read");
    }
    out += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

}  // namespace tapestry
