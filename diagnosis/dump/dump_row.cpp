#include "diagnosis/dump/dump_row.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "autograd/tensor/error.h"

namespace tapestry::dump {
namespace {

constexpr auto kFirstColumns =
    std::to_array<std::string_view>({"Op Type", "Op Name", "Task ID", "Stream ID", "Timestamp",
                                     "IO", "Slot", "Data Size", "Data Type", "Shape"});
constexpr auto kLastColumns =
    std::to_array<std::string_view>({"Module", "Pass", "Micro Batch", "Samples", "Global Shape",
                                     "Begin", "State", "Source", "File"});
constexpr auto kStateNames = std::to_array<std::string_view>({"whole", "slice", "partial", "copy"});
constexpr std::string_view kGradients = "Gradients/";
/// More than any batch has, and little memory for a hostile table to ask for.
constexpr int64_t kMaxSamples = int64_t{1} << 16U;

std::string shape_field(const Shape& shape) {
  std::string text = "(";
  for (int64_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? "," : "") + std::to_string(shape[i]);
  }
  return text + ")";
}

std::string begin_field(const std::vector<AxisRanges>& ranges) {
  std::string text = "(";
  for (size_t axis = 0; axis < ranges.size(); ++axis) {
    text += axis > 0 ? "," : "";
    const AxisRanges& along = ranges[axis];
    const auto length = [](const AxisRange& range) { return range.end - range.begin; };
    const bool equal = std::all_of(along.begin(), along.end(), [&](const AxisRange& range) {
      return length(range) == length(along.front());
    });
    for (size_t i = 0; i < along.size(); ++i) {
      text += (i > 0 ? "+" : "") + std::to_string(along[i].begin);
      if (!equal) {
        text += ":" + std::to_string(length(along[i]));
      }
    }
  }
  return text + ")";
}

std::string samples_field(const std::vector<int64_t>& samples, int64_t axis) {
  std::string text;
  for (size_t i = 0; i < samples.size();) {
    size_t end = i + 1;
    while (end < samples.size() && samples[end] == samples[end - 1] + 1) {
      ++end;
    }
    text += (i > 0 ? " " : "") + std::to_string(samples[i]);
    if (end - i > 1) {
      text += "-" + std::to_string(samples[end - 1]);
    }
    i = end;
  }
  return axis == 0 || samples.empty() ? text : text + "@" + std::to_string(axis);
}

/// The pieces between separators; none of an empty text.
std::vector<std::string_view> pieces_of(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    pieces.push_back(text.substr(0, end));
    if (end == std::string_view::npos) {
      break;
    }
    text = text.substr(end + 1);
    if (text.empty()) {
      pieces.push_back(text);
    }
  }
  return pieces;
}

/// "2", " 3" of "(2, 3)"; nothing if the parentheses are missing. NumPy's "(2,)" is understood.
std::optional<std::vector<std::string_view>> tuple_pieces(std::string_view text) {
  if (text.size() < 2 || text.front() != '(' || text.back() != ')') {
    return std::nullopt;
  }
  text = text.substr(1, text.size() - 2);
  if (text.ends_with(',')) {
    text.remove_suffix(1);
  }
  auto pieces = pieces_of(text, ',');
  for (std::string_view& piece : pieces) {
    while (piece.starts_with(' ')) {
      piece.remove_prefix(1);
    }
  }
  return pieces;
}

std::optional<Shape> shape_of(std::string_view text) {
  const auto pieces = tuple_pieces(text);
  if (!pieces.has_value() || pieces->size() > size_t{kMaxDims}) {
    return std::nullopt;
  }
  Shape shape;
  for (const std::string_view piece : *pieces) {
    const auto size = parse_integer(piece);
    if (!size.has_value() || *size < 0) {
      return std::nullopt;
    }
    shape.push_back(*size);
  }
  return shape;
}

/// What "0", "0+12" or "0:3+12:5" means for a part with `size` elements along the axis; nothing if
/// it means nothing.
std::optional<AxisRanges> axis_ranges_of(std::string_view text, int64_t size) {
  const auto pieces = pieces_of(text, '+');
  AxisRanges ranges;
  for (const std::string_view piece : pieces) {
    const size_t colon = piece.find(':');
    const auto begin = parse_integer(piece.substr(0, colon));
    const auto length = colon != std::string_view::npos
                            ? parse_integer(piece.substr(colon + 1))
                            : size / static_cast<int64_t>(pieces.size());
    // Far from where sums of them overflow.
    constexpr int64_t kMost = int64_t{1} << 60U;
    if (!begin.has_value() || !length.has_value() || *begin < 0 || *begin > kMost || *length < 0 ||
        *length > kMost) {
      return std::nullopt;
    }
    ranges.push_back({*begin, *begin + *length});
  }
  return ranges.empty() ? std::nullopt : std::optional(ranges);
}

std::optional<std::vector<AxisRanges>> ranges_of(std::string_view text, const Shape& shape) {
  const auto pieces = tuple_pieces(text);
  if (!pieces.has_value() || static_cast<int64_t>(pieces->size()) != shape.size()) {
    return std::nullopt;
  }
  std::vector<AxisRanges> ranges;
  for (const std::string_view piece : *pieces) {
    const auto along = axis_ranges_of(piece, shape[static_cast<int64_t>(ranges.size())]);
    if (!along.has_value()) {
      return std::nullopt;
    }
    ranges.push_back(*along);
  }
  return ranges;
}

/// Appends what "4" or "4-7" means; false if it means nothing.
bool append_samples(std::string_view text, std::vector<int64_t>& samples) {
  const size_t dash = text.find('-');
  const auto first = parse_integer(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_integer(text.substr(dash + 1));
  if (!first.has_value() || !last.has_value() || *first < 0 || *last < *first ||
      *last - *first >= kMaxSamples - static_cast<int64_t>(samples.size())) {
    return false;
  }
  for (int64_t sample = *first; sample <= *last; ++sample) {
    samples.push_back(sample);
  }
  return true;
}

}  // namespace

std::string_view name_of(TensorState state) { return kStateNames[static_cast<size_t>(state)]; }

std::optional<TensorState> tensor_state_of(std::string_view name) {
  const auto* found = std::find(kStateNames.begin(), kStateNames.end(), name);
  if (found == kStateNames.end()) {
    return std::nullopt;
  }
  return static_cast<TensorState>(found - kStateNames.begin());
}

std::vector<std::string> dump_columns(StatisticSet chosen) {
  std::vector<std::string> columns(kFirstColumns.begin(), kFirstColumns.end());
  for (int i = 0; i < kNumStatistics; ++i) {
    if (chosen.has(static_cast<Statistic>(i))) {
      columns.emplace_back(column_of(static_cast<Statistic>(i)));
    }
  }
  columns.insert(columns.end(), kLastColumns.begin(), kLastColumns.end());
  return columns;
}

std::vector<std::string> dump_fields(const DumpRow& row, StatisticSet chosen) {
  std::vector<std::string> fields = {row.op_type,
                                     row.op_name,
                                     std::to_string(row.task_id),
                                     std::to_string(row.stream_id),
                                     std::to_string(row.timestamp),
                                     row.input ? "input" : "output",
                                     std::to_string(row.slot),
                                     std::to_string(row.data_size),
                                     row.data_type,
                                     shape_field(row.shape)};
  for (int i = 0; i < kNumStatistics; ++i) {
    const auto statistic = static_cast<Statistic>(i);
    if (chosen.has(statistic)) {
      fields.push_back(statistic == Statistic::kMd5
                           ? row.statistics.md5
                           : number_field(row.statistics.value(statistic)));
    }
  }
  fields.push_back(row.module);
  fields.push_back(row.pass);
  fields.push_back(std::to_string(row.micro_batch));
  fields.push_back(samples_field(row.samples, row.sample_axis));
  fields.push_back(shape_field(row.global_shape));
  fields.push_back(begin_field(row.ranges));
  fields.emplace_back(name_of(row.state));
  fields.push_back(row.source);
  fields.push_back(row.file);
  return fields;
}

DumpRowReader::DumpRowReader(const CsvTable& table) : table_(table) {
  for (const std::string_view column : {"Op Type", "Op Name", "IO", "Slot", "Data Type", "Shape"}) {
    table.column(column);
  }
  for (size_t column = 0; column < table.columns().size(); ++column) {
    if (const auto statistic = statistic_of_column(table.columns()[column])) {
      statistics_.emplace_back(*statistic, column);
    }
  }
}

DumpRow DumpRowReader::read(size_t row) const {
  DumpRow out;
  const auto text = [&](std::string_view column, std::string otherwise = {}) {
    const auto found = table_.find(column);
    return found.has_value() ? table_.at(row, *found) : otherwise;
  };
  // An integer from 0 on; 0 where the column is missing.
  const auto integer = [&](std::string_view column) {
    const auto found = table_.find(column);
    if (!found.has_value()) {
      return int64_t{0};
    }
    const auto value = parse_integer(table_.at(row, *found));
    if (!value.has_value() || *value < 0) {
      table_.fail(row, *found, "is no integer from 0 on");
    }
    return *value;
  };
  out.op_type = text("Op Type");
  out.op_name = text("Op Name");
  out.task_id = integer("Task ID");
  out.stream_id = integer("Stream ID");
  out.timestamp = integer("Timestamp");
  const std::string io = text("IO");
  if (io != "input" && io != "output") {
    table_.fail(row, table_.column("IO"), "is neither input nor output");
  }
  out.input = io == "input";
  out.slot = integer("Slot");
  out.data_size = integer("Data Size");
  out.data_type = text("Data Type");
  const auto shape = [&](std::string_view column) {
    const auto parsed = shape_of(text(column));
    if (!parsed.has_value()) {
      table_.fail(row, table_.column(column), "is no shape, as (2,3) is one");
    }
    return *parsed;
  };
  out.shape = shape("Shape");
  for (const auto& [statistic, column] : statistics_) {
    const std::string& field = table_.at(row, column);
    out.has.add(statistic);
    if (statistic == Statistic::kMd5) {
      out.statistics.md5 = field;
      continue;
    }
    const auto value = parse_number(field);
    if (!value.has_value()) {
      table_.fail(row, column, "is no number");
    }
    if (!out.statistics.set(statistic, *value)) {
      table_.fail(row, column, "is no count");
    }
  }
  out.module = text("Module");
  out.pass = text("Pass", out.op_name.starts_with(kGradients) ? "backward" : "forward");
  out.micro_batch = integer("Micro Batch");
  const std::string samples = text("Samples");
  const size_t at_sign = samples.find('@');
  if (at_sign != std::string::npos) {
    const auto axis = parse_integer(std::string_view(samples).substr(at_sign + 1));
    if (!axis.has_value() || *axis < 0) {
      table_.fail(row, table_.column("Samples"), "names no axis behind the @");
    }
    out.sample_axis = *axis;
  }
  for (const std::string_view item : pieces_of(std::string_view(samples).substr(0, at_sign), ' ')) {
    if (!append_samples(item, out.samples)) {
      table_.fail(row, table_.column("Samples"), "is no list of samples, as 0-3 8 is one");
    }
  }
  out.global_shape = table_.find("Global Shape").has_value() ? shape("Global Shape") : out.shape;
  if (const auto column = table_.find("Begin"); column.has_value()) {
    const auto ranges = ranges_of(table_.at(row, *column), out.shape);
    if (!ranges.has_value()) {
      table_.fail(row, *column, concat("is no place, as (0,4) is one, of a tensor ", out.shape));
    }
    out.ranges = *ranges;
  }
  if (const auto column = table_.find("State"); column.has_value()) {
    const auto state = tensor_state_of(table_.at(row, *column));
    if (!state.has_value()) {
      table_.fail(row, *column, "is none of whole, slice, partial and copy");
    }
    out.state = *state;
  }
  out.source = text("Source");
  out.file = text("File");
  try {
    checked_numel("shape", out.shape, 16);
    checked_numel("global shape", out.global_shape, 16);
    check_place(out);
  } catch (const ValueError& error) {
    table_.fail(row, table_.column("Op Name"), error.what());
  }
  out.statistics.count = out.shape.numel();
  return out;
}

void check_place(DumpRow& row) {
  const int64_t axes = row.shape.size();
  check<ValueError>(row.global_shape.size() == axes, "is ", row.shape, " of a whole of ",
                    row.global_shape, ", which has another number of axes");
  if (row.ranges.empty()) {
    for (const int64_t size : row.shape) {
      row.ranges.push_back({{0, size}});
    }
  }
  check<ValueError>(static_cast<int64_t>(row.ranges.size()) == axes, "has ranges of ",
                    row.ranges.size(), " axes but ", axes, " axes");
  for (int64_t axis = 0; axis < axes; ++axis) {
    int64_t covered = 0;
    for (const AxisRange& range : row.ranges[static_cast<size_t>(axis)]) {
      check<ValueError>(
          0 <= range.begin && range.begin <= range.end && range.end <= row.global_shape[axis],
          "has indices ", range.begin, " to ", range.end, " along axis ", axis,
          ", and the whole 0 to ", row.global_shape[axis]);
      covered += range.end - range.begin;
    }
    check<ValueError>(covered == row.shape[axis], "has ", row.shape[axis], " elements along axis ",
                      axis, ", and ranges of ", covered);
  }
  check<ValueError>(row.state == TensorState::kSlice || row.state == TensorState::kPartial ||
                        row.shape == row.global_shape,
                    "is ", name_of(row.state), " but ", row.shape, " where the whole is ",
                    row.global_shape);
  if (!row.samples.empty()) {
    check<ValueError>(row.sample_axis >= 0 && row.sample_axis < axes, "has samples along axis ",
                      row.sample_axis, " and only ", axes, " axes");
    const auto samples = static_cast<int64_t>(row.samples.size());
    check<ValueError>(row.global_shape[row.sample_axis] % samples == 0, "has ",
                      row.global_shape[row.sample_axis], " rows along axis ", row.sample_axis,
                      ", which are not ", samples, " samples of equal length");
  }
}

}  // namespace tapestry::dump
