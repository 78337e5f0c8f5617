#include "diagnosis/dump/plain_file.h"

#include <cerrno>
#include <utility>

#include "autograd/io/atomic_file.h"

namespace tapestry::dump {

PlainFile::PlainFile(std::string path, Mode mode)
    : path_(std::move(path)),
      stream_(path_, std::ios::binary | (mode == kNew ? std::ios::trunc : std::ios::app)) {
  check_stream("open");
}

void PlainFile::write(const void* data, size_t bytes) {
  stream_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  check_stream("write");
}

void PlainFile::flush() {
  stream_.flush();
  check_stream("write");
}

void PlainFile::check_stream(std::string_view action) {
  if (!stream_) {
    throw_io_error(path_, action, errno == 0 ? EIO : errno);
  }
}

}  // namespace tapestry::dump
