#include "interop/export/grown_tables.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

constexpr int64_t kReadBytes = int64_t{4} << 20U;

// The mean of all rows, in their dtype.
std::vector<char> mean_row(const TensorSource& files, const std::string& name) {
  const int64_t rows = files.shape(name)[0];
  const int64_t columns = files.shape(name)[1];
  const DType dtype = files.dtype(name);
  const int64_t row_bytes = columns * size_of(dtype);
  const int64_t step = std::max<int64_t>(1, kReadBytes / row_bytes);
  std::vector<double> sums(static_cast<size_t>(columns));
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    const Tensor stored = empty({count, columns}, dtype);
    files.read_bytes(name, static_cast<uint64_t>(row * row_bytes),
                     static_cast<size_t>(count * row_bytes), stored.raw());
    const Tensor values = stored.to(kFloat64);
    const double* at = values.data<double>();
    for (int64_t i = 0; i < count * columns; ++i) {
      sums[static_cast<size_t>(i % columns)] += at[i];
    }
  }
  const Tensor mean = empty({columns}, kFloat64);
  for (int64_t i = 0; i < columns; ++i) {
    mean.data<double>()[i] = sums[static_cast<size_t>(i)] / static_cast<double>(rows);
  }
  const Tensor rounded = mean.to(dtype);
  std::vector<char> out(static_cast<size_t>(row_bytes));
  std::memcpy(out.data(), rounded.raw(), out.size());
  return out;
}

}  // namespace

GrownTables::GrownTables(std::unique_ptr<TensorSource> files,
                         const std::vector<std::string>& tables,
                         int64_t rows)
    : files_(std::move(files)) {
  for (const std::string& name : tables) {
    if (!files_->contains(name)) {
      continue;
    }
    const Shape& stored = files_->shape(name);
    check<ValueError>(stored.size() == 2 && stored[0] > 0 && stored[0] <= rows,
                      files_->file_of(name), ": ", name, " has the shape ", stored,
                      ", which cannot grow to ", rows, " rows");
    tables_[name] = {
        .shape = {rows, stored[1]},
        .stored_bytes = static_cast<uint64_t>(stored.numel() * size_of(files_->dtype(name))),
        .new_row = mean_row(*files_, name)};
  }
}

const Shape& GrownTables::shape(const std::string& name) const {
  const auto grown = tables_.find(name);
  return grown == tables_.end() ? files_->shape(name) : grown->second.shape;
}

void GrownTables::read(const std::string& name, void* destination) const {
  const int64_t bytes = shape(name).numel() * size_of(dtype(name));
  read_bytes(name, 0, static_cast<size_t>(bytes), destination);
}

void GrownTables::read_bytes(const std::string& name,
                             uint64_t offset,
                             size_t bytes,
                             void* destination) const {
  const auto grown = tables_.find(name);
  if (grown == tables_.end()) {
    files_->read_bytes(name, offset, bytes, destination);
    return;
  }
  const Table& table = grown->second;
  const auto all = static_cast<uint64_t>(table.shape.numel() * size_of(dtype(name)));
  check<IndexError>(offset <= all && bytes <= all - offset, name, ": bytes ", offset, " to ",
                    offset + bytes, " do not lie within its ", all);
  auto* out = static_cast<char*>(destination);
  if (offset < table.stored_bytes) {
    const auto stored = static_cast<size_t>(std::min<uint64_t>(bytes, table.stored_bytes - offset));
    files_->read_bytes(name, offset, stored, out);
    out += stored;
    offset += stored;
    bytes -= stored;
  }
  while (bytes > 0) {
    const size_t within = static_cast<size_t>(offset % table.new_row.size());
    const size_t count = std::min(bytes, table.new_row.size() - within);
    std::memcpy(out, table.new_row.data() + within, count);
    out += count;
    offset += count;
    bytes -= count;
  }
}

}  // namespace tapestry
