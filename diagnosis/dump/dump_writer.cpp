#include "diagnosis/dump/dump_writer.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/io/json.h"
#include "autograd/io/npy.h"
#include "autograd/kernels/reduce.h"
#include "diagnosis/dump/dense.h"
#include "diagnosis/dump/dump_layout.h"
#include "diagnosis/dump/md5.h"
#include "diagnosis/dump/plain_file.h"

namespace tapestry::dump {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileName = 255;  // bytes, of ext4, xfs, NFS, ...

void make_folders(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    throw_io_error(path, "make the folder", error.value());
  }
}

int64_t microseconds_now() {
  using std::chrono::duration_cast;
  using std::chrono::microseconds;
  using std::chrono::system_clock;
  return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
}

/// A name as part of a file's name.
std::string file_part(std::string_view name) {
  std::string part(name);
  std::replace_if(
      part.begin(), part.end(),
      [](char letter) {
        const bool kept = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                          (letter >= '0' && letter <= '9') || letter == '_' || letter == '-' ||
                          letter == '.';
        return !kept;
      },
      '_');
  return part;
}

/// TYPE.NAME and the ending, where too long with part of the name and the checksum of the whole.
std::string file_name(std::string_view op_type, std::string_view op_name, std::string_view ending) {
  const std::string whole = file_part(op_type) + "." + file_part(op_name);
  if (whole.size() + ending.size() <= kMaxFileName) {
    return whole + std::string(ending);
  }
  const std::string named = concat(op_type, ".", op_name);
  const std::string checksum = "~" + md5_hex(named.data(), named.size()).substr(0, 16);
  return whole.substr(0, kMaxFileName - ending.size() - checksum.size()) + checksum +
         std::string(ending);
}

DumpRow row_of(const DumpedTensor& tensor) {
  DumpRow row;
  row.op_type = tensor.op_type;
  row.op_name = tensor.op_name;
  row.task_id = tensor.task_id;
  row.timestamp = tensor.timestamp != 0 ? tensor.timestamp : microseconds_now();
  row.input = tensor.input;
  row.slot = tensor.slot;
  const DType dtype = tensor.original_dtype.value_or(tensor.value.dtype());
  row.data_size = checked_numel("dump", tensor.value.shape(), size_of(dtype));
  row.data_type = name_of(dtype);
  row.shape = tensor.value.shape();
  row.module = tensor.module;
  row.pass = tensor.pass;
  row.micro_batch = tensor.micro_batch;
  row.samples = tensor.samples;
  row.sample_axis = tensor.sample_axis;
  row.global_shape = tensor.global_shape.value_or(row.shape);
  row.ranges = tensor.ranges;
  row.state = tensor.state;
  row.source = tensor.source;
  try {
    check_place(row);
  } catch (const ValueError& error) {
    throw ValueError(concat("dump: ", tensor.op_name, ": ", tensor.input ? "input " : "output ",
                            tensor.slot, " ", error.what()));
  }
  return row;
}

}  // namespace

/// The folder of an iteration while it is written.
class DumpWriter::Iteration {
 public:
  Iteration(int64_t number, const std::string& rank_folder, const DumpConfig& config)
      : number_(number),
        rank_folder_(rank_folder),
        graph_((fs::path(rank_folder) / config.net_name / kGraphId).string()),
        folder_((fs::path(graph_) / unfinished_name(number)).string()) {
    for (const std::string& old : {folder_, final_folder()}) {
      check<IoError>(!fs::exists(old) || is_iteration_folder(old), old,
                     ": is there and is no dump; choose another `path` or net_name");
    }
    fs::remove_all(folder_);
    make_folders(folder_);
    table_.emplace(path_of(config.saves_statistics() ? kStatisticTable : kTensorTable),
                   PlainFile::kNew);
  }

  std::string path_of(std::string_view name) const { return (fs::path(folder_) / name).string(); }

  void add_line(const std::string& line) {
    table_->write(line);
    table_->flush();
  }

  void add_op(int64_t task_id, const std::string& op_name) {
    if (tasks_.insert(task_id).second) {
      order_.emplace_back(task_id, op_name);
    }
  }

  /// True once per name.
  bool add_attributes(const std::string& name) { return attributes_.insert(name).second; }

  void finish() {
    table_.reset();
    const fs::path order = fs::path(rank_folder_) / "execution_order";
    make_folders(order.string());
    std::sort(order_.begin(), order_.end());
    std::string names = "NodeExecutionOrder-FullNameWithScope\n";
    for (const auto& [task_id, name] : order_) {
      names += csv_line({name});
    }
    PlainFile file((order / "ms_execution_order_graph_0.csv").string(), PlainFile::kNew);
    file.write(names);
    file.flush();
    const std::string number = std::to_string(number_) + "\n";
    PlainFile history((order / "ms_global_execution_order_graph_0.csv").string(),
                      PlainFile::kAppend);
    history.write(number);
    history.flush();
    fs::remove_all(final_folder());
    std::error_code error;
    fs::rename(folder_, final_folder(), error);
    if (error) {
      throw_io_error(final_folder(), "rename the finished folder to it", error.value());
    }
  }

 private:
  std::string final_folder() const { return (fs::path(graph_) / std::to_string(number_)).string(); }

  int64_t number_;
  std::string rank_folder_;
  std::string graph_;
  std::string folder_;
  std::optional<PlainFile> table_;
  std::set<int64_t> tasks_;
  std::vector<std::pair<int64_t, std::string>> order_;
  std::set<std::string> attributes_;
};

DumpWriter::DumpWriter(DumpConfig config, int64_t rank, int64_t local_rank)
    : config_(std::move(config)),
      statistics_(config_.saves_statistics() ? config_.statistic_category : StatisticSet()),
      device_wanted_(config_.wants_device(local_rank)),
      rank_folder_((fs::path(config_.path) / rank_folder_name(rank)).string()) {
  if (!device_wanted_) {
    return;
  }
  const fs::path metadata = fs::path(rank_folder_) / ".dump_metadata";
  make_folders(metadata.string());
  write_file_atomically((metadata / "data_dump.json").string(), config_.text);
}

DumpWriter::~DumpWriter() = default;

bool DumpWriter::begin_iteration(int64_t iteration) {
  check<RuntimeError>(!active(), "dump: iteration ", iteration, " begins inside another one");
  const bool enough = config_.overflow_number > 0 && overflows_ >= config_.overflow_number;
  if (!device_wanted_ || !config_.wants(iteration) || enough) {
    return false;
  }
  auto begun = std::make_unique<Iteration>(iteration, rank_folder_, config_);
  begun->add_line(csv_line(dump_columns(statistics_)));
  iteration_ = std::move(begun);
  return true;
}

bool DumpWriter::wants(std::string_view op_type, std::string_view op_name, bool input) const {
  // An op's outputs tell whether it overflows.
  const bool side = input ? config_.inputs : config_.outputs || config_.only_overflow;
  return device_wanted_ && side && config_.wants(op_type, op_name);
}

void DumpWriter::write(const DumpedTensor& tensor) {
  if (!active() || !wants(tensor.op_type, tensor.op_name, tensor.input)) {
    return;
  }
  check<ValueError>(tensor.value.defined(), "dump: ", tensor.op_name, " has no value");
  DumpRow row = row_of(tensor);
  if (config_.only_overflow) {
    hold_or_write(tensor, row);
    return;
  }
  if (!statistics_.empty()) {
    row.statistics = tensor_statistics(tensor.value, statistics_);
  }
  write_row(row, tensor.value);
}

void DumpWriter::hold_or_write(const DumpedTensor& tensor, DumpRow& row) {
  // Whose outputs have all been seen without a NaN needs its inputs no more.
  std::erase_if(
      held_, [&](const auto& held) { return held.first != row.task_id && held.second.has_output; });
  Held& held = held_[row.task_id];
  const Tensor elements = dense(tensor.value);
  if (!row.input) {
    held.has_output = true;
    if (!held.overflows &&
        !kernels::all_finite(elements.dtype(), elements.numel(), elements.raw())) {
      if (config_.overflow_number > 0 && overflows_ >= config_.overflow_number) {
        held_.erase(row.task_id);
        return;
      }
      held.overflows = true;
      ++overflows_;
      for (auto& [before, value] : held.tensors) {
        write_row(before, value);
      }
      held.tensors.clear();
    }
  }
  if (row.input ? !config_.inputs : !config_.outputs) {
    return;
  }
  if (!statistics_.empty()) {
    row.statistics = tensor_statistics(elements, statistics_);
  }
  if (held.overflows) {
    write_row(row, elements);
  } else {
    // Backward passes write into what they were given.
    held.tensors.emplace_back(
        row, config_.saves_values() ? dense_copy(elements, elements.dtype()) : Tensor());
  }
}

void DumpWriter::write_row(DumpRow& row, const Tensor& value) {
  if (config_.saves_values()) {
    const std::string ending = concat(".", row.task_id, ".", row.stream_id, ".", row.timestamp, ".",
                                      row.input ? "input" : "output", ".", row.slot,
                                      ".DefaultFormat.", row.data_type, ".npy");
    row.file = file_name(row.op_type, row.op_name, ending);
    const Tensor elements = value.dtype() == kBFloat16 ? dense_copy(value, kFloat32) : dense(value);
    Shape shape = elements.shape();
    if (config_.sample_num > 0) {
      shape = {std::min(config_.sample_num, elements.numel())};
    }
    const std::string header = npy_header(elements.dtype(), shape);
    PlainFile file(iteration_->path_of(row.file), PlainFile::kNew);
    file.write(header);
    file.write(elements.raw(),
               static_cast<size_t>(shape.numel()) * static_cast<size_t>(size_of(elements.dtype())));
    file.flush();
  }
  iteration_->add_op(row.task_id, row.op_name);
  iteration_->add_line(csv_line(dump_fields(row, statistics_)));
}

void DumpWriter::write_attributes(std::string_view op_type,
                                  std::string_view op_name,
                                  const nlohmann::json& attributes) {
  if (!active() || !config_.save_kernel_args || !config_.wants(op_type, op_name)) {
    return;
  }
  const std::string name = file_name(op_type, op_name, ".json");
  if (!iteration_->add_attributes(name)) {
    return;
  }
  const std::string text = attributes.dump(2) + "\n";
  PlainFile file(iteration_->path_of(name), PlainFile::kNew);
  file.write(text);
  file.flush();
}

void DumpWriter::end_iteration() {
  if (!active()) {
    return;
  }
  held_.clear();
  // Whatever fails, the next iteration can begin.
  const std::unique_ptr<Iteration> iteration = std::move(iteration_);
  iteration->finish();
}

}  // namespace tapestry::dump
