#include "autograd/io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "autograd/io/packed_folder.h"

namespace tapestry {

namespace {

// What a path is that is no regular file.
const char* kind_of(mode_t mode) {
  return S_ISDIR(mode)    ? "a folder"
         : S_ISFIFO(mode) ? "a pipe"
         : S_ISSOCK(mode) ? "a socket"
                          : "a device";
}

}  // namespace

std::string read_file(const std::string& path, uint64_t max_bytes, std::string_view hint) {
  try {
    if (const PackedPath packed = packed_path(path); !packed.name.empty()) {
      const auto files = packed_files(packed.folder);
      const auto found = files->find(packed.name);
      check<IoError>(found != files->end(), path, ": ", packed.folder,
                     " says nothing of this kind");
      check<IoError>(found->second.size() <= max_bytes, path, ": has ", found->second.size(),
                     " bytes, expected at most ", max_bytes);
      return found->second;
    }
    const InputFile file(path);
    const auto check_size = [&](uint64_t bytes) {
      check<IoError>(bytes <= max_bytes, path, ": has ", bytes, " bytes, expected at most ",
                     max_bytes);
    };
    check_size(file.size());
    std::string content(file.size(), '\0');
    file.read_at(0, content.data(), content.size(), "content");
    // What the size does not tell: files of /proc have none.
    for (std::string more(size_t{1} << 12U, '\0');;) {
      const size_t got = file.read_some(content.size(), more.data(), more.size(), "content");
      if (got == 0) {
        return content;
      }
      content.append(more, 0, got);
      check_size(content.size());
    }
  } catch (const IoError& error) {
    if (hint.empty()) {
      throw;
    }
    throw IoError(concat(error.what(), "; ", hint));
  }
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // Without O_NONBLOCK the open of a pipe that nobody writes to would never return.
  do {
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) {
    throw IoError(concat(path_, ": cannot be read: ", std::generic_category().message(errno)));
  }
  struct stat status {};
  const int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (error != 0 || !S_ISREG(status.st_mode)) {
    ::close(std::exchange(descriptor_, -1));
    throw IoError(
        error != 0
            ? concat(path_, ": cannot be read: ", std::generic_category().message(error))
            : concat(path_, ": cannot be read: not a regular file but ", kind_of(status.st_mode)));
  }
  size_ = static_cast<uint64_t>(status.st_size);
  try {
    refuse_pointer();
  } catch (...) {
    ::close(std::exchange(descriptor_, -1));
    throw;
  }
}

// A clone without git-lfs has texts of three lines in place of large files.
void InputFile::refuse_pointer() const {
  constexpr std::string_view kBeginning = "version https://git-lfs.github.com/spec/";
  constexpr uint64_t kMostBytes = 1024;  // by the specification of Git LFS
  if (size_ < kBeginning.size() || size_ > kMostBytes) {
    return;
  }
  std::array<char, kBeginning.size()> text{};
  read_at(0, text.data(), text.size(), "content");
  check<IoError>(std::string_view(text.data(), text.size()) != kBeginning, path_,
                 ": is a Git LFS pointer and not the file itself; fetch that with git lfs pull");
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
  if (read_some(offset, data, bytes, field) < bytes) {
    fail(offset, field, "the file was truncated while it was read");
  }
}

size_t InputFile::read_some(uint64_t offset,
                            void* data,
                            size_t bytes,
                            std::string_view field) const {
  auto* out = static_cast<std::byte*>(data);
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        ::pread(descriptor_, out + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      fail(offset + done, field, "cannot read: ", std::generic_category().message(errno));
    }
    if (got == 0) {
      break;
    }
    done += static_cast<size_t>(got);
  }
  return done;
}

}  // namespace tapestry
