#include "parallel_core/dist_checkpointing/part_io.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/dist_checkpointing/slice_runs.h"

namespace tapestry {

namespace {

// Calls visit for pieces of the range of at most `most` elements; whole rows where they are
// shorter, so that a file that has columns together gets long runs of them.
template <class Visit>
void for_each_piece(ElementRange range, int64_t columns, int64_t most, Visit&& visit) {
  const int64_t step = std::max(most / columns * columns, std::min(most, columns));
  for (int64_t begin = range.begin; begin < range.end;) {
    const int64_t end = std::min(range.end, (begin / step + 1) * step);
    visit(ElementRange{begin, end});
    begin = end;
  }
}

int64_t columns_of(const nn::LogicalTensor& logical) {
  const Shape& slice = logical.local_shape();
  return slice.size() == 0 ? 1 : std::max<int64_t>(slice[slice.size() - 1], 1);
}

// Elements `stride` apart, one after the other; `width` is an element's size.
void gather(const std::byte* source, int64_t stride, int64_t count, size_t width, std::byte* out) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(out + static_cast<size_t>(i) * width,
                source + static_cast<size_t>(i * stride) * width, width);
  }
}
void scatter(const std::byte* source, int64_t stride, int64_t count, size_t width, std::byte* out) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(out + static_cast<size_t>(i * stride) * width,
                source + static_cast<size_t>(i) * width, width);
  }
}

// Reads runs; those that follow each other in file and memory with one call.
class RunReader {
 public:
  RunReader(const SafetensorsReader& file, const FilePlace& place, size_t width)
      : file_(file), name_(place.name), width_(width) {}

  void read(const FileRun& run, std::byte* slice) {
    if (run.stride == 1 || run.count == 1) {
      std::byte* to = slice + static_cast<size_t>(run.number) * width_;
      if (count_ > 0 && run.element == element_ + count_ &&
          to == to_ + static_cast<size_t>(count_) * width_) {
        count_ += run.count;
        return;
      }
      flush();
      element_ = run.element;
      count_ = run.count;
      to_ = to;
      return;
    }
    flush();
    column_.resize(static_cast<size_t>(run.count) * width_);
    read_elements(run.element, run.count, column_.data());
    scatter(column_.data(), run.stride, run.count, width_,
            slice + static_cast<size_t>(run.number) * width_);
  }
  void flush() {
    if (count_ > 0) {
      read_elements(element_, count_, to_);
      count_ = 0;
    }
  }

 private:
  void read_elements(int64_t element, int64_t count, std::byte* to) {
    file_.read_bytes(name_, static_cast<uint64_t>(element) * width_,
                     static_cast<size_t>(count) * width_, to);
  }

  const SafetensorsReader& file_;
  const std::string& name_;
  size_t width_;
  int64_t element_ = 0;
  int64_t count_ = 0;
  std::byte* to_ = nullptr;
  std::vector<std::byte> column_;
};

}  // namespace

void write_part(const nn::LogicalTensor& logical,
                const FilePlace& place,
                const Part& part,
                bool only_finite,
                uint64_t begin,
                RangeFile& file) {
  const ElementRange range = range_in_part(logical, part.first, part.values.numel());
  if (range.size() <= 0) {
    return;
  }
  const DType dtype = part.values.dtype();
  const auto width = static_cast<size_t>(size_of(dtype));
  const auto* memory = static_cast<const std::byte*>(part.values.raw());
  const FileRuns runs(logical, place);
  int64_t most = kStagingBytes / size_of(dtype);
  for_each_parameter_run(logical, range, [&](int64_t, int64_t, int64_t count) {
    // What lies together in memory needs no staging; and all rows at once are what makes long runs
    // of a transposed matrix.
    most = std::max(most, count == range.size() ? count : 0);
  });
  std::vector<std::byte> staging;
  std::vector<std::byte> column;
  for_each_piece(range, columns_of(logical), most, [&](ElementRange piece) {
    const std::byte* values = nullptr;  // the piece, one element behind the other
    for_each_parameter_run(logical, piece, [&](int64_t number, int64_t element, int64_t count) {
      const std::byte* run = memory + static_cast<size_t>(element - part.first) * width;
      if (count == piece.size()) {
        values = run;
        return;
      }
      staging.resize(static_cast<size_t>(piece.size()) * width);
      values = staging.data();
      std::memcpy(staging.data() + static_cast<size_t>(number - piece.begin) * width, run,
                  static_cast<size_t>(count) * width);
    });
    check<RuntimeError>(!only_finite || kernels::all_finite(dtype, piece.size(), values),
                        "the weight ", logical.name, " holds values that are not finite");
    runs.for_each(piece, [&](const FileRun& run) {
      const std::byte* first = values + static_cast<size_t>(run.number - piece.begin) * width;
      if (run.stride != 1 && run.count > 1) {
        column.resize(static_cast<size_t>(run.count) * width);
        gather(first, run.stride, run.count, width, column.data());
        first = column.data();
      }
      file.write_at(begin + static_cast<uint64_t>(run.element) * width, first,
                    static_cast<size_t>(run.count) * width);
    });
  });
}

void read_part(const nn::LogicalTensor& logical,
               const FilePlace& place,
               const SafetensorsReader& file,
               const Part& part) {
  const ElementRange range = range_in_part(logical, part.first, part.values.numel());
  const Shape& found = file.entry(place.name).shape;
  check<IndexError>(found == place.shape, file.path(), ": ", place.name, " is ", found,
                    ", expected ", place.shape);
  if (range.size() <= 0) {
    return;
  }
  const DType stored = file.dtype(place.name);
  const auto width = static_cast<size_t>(size_of(stored));
  const DType dtype = part.values.dtype();
  const auto own_width = static_cast<size_t>(size_of(dtype));
  auto* memory = static_cast<std::byte*>(part.values.raw());
  const FileRuns runs(logical, place);
  const int64_t most = kStagingBytes / std::max(size_of(stored), size_of(dtype));
  for_each_piece(range, columns_of(logical), most, [&](ElementRange piece) {
    const Tensor staging = empty({piece.size()}, stored);
    auto* slice = static_cast<std::byte*>(staging.raw());
    RunReader reader(file, place, width);
    runs.for_each(piece, [&](FileRun run) {
      run.number -= piece.begin;
      reader.read(run, slice);
    });
    reader.flush();
    Tensor converted = staging;
    if (stored != dtype) {
      converted = empty({piece.size()}, dtype);
      copy_values(staging, converted);
    }
    const auto* values = static_cast<const std::byte*>(converted.raw());
    for_each_parameter_run(logical, piece, [&](int64_t number, int64_t element, int64_t count) {
      std::memcpy(memory + static_cast<size_t>(element - part.first) * own_width,
                  values + static_cast<size_t>(number - piece.begin) * own_width,
                  static_cast<size_t>(count) * own_width);
    });
  });
}

}  // namespace tapestry
