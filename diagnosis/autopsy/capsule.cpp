#include "diagnosis/autopsy/capsule.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "autograd/io/atomic_file.h"
#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/npy.h"
#include "autograd/tensor/error.h"
#include "parallel_core/data/step_dataset.h"
#include "text/util/checksum.h"

namespace tapestry::autopsy {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int kFormatVersion = 1;

std::string record_path(const std::string& folder) { return folder + "/capsule.json"; }
std::string data_path(const std::string& folder) { return folder + "/data"; }
std::string rows_path(const std::string& folder, int64_t rank) {
  return concat(data_path(folder), "/step_0/rank_", rank);
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// An integer array of these sizes; empty if there is no such file.
std::vector<int64_t> read_integers(const std::string& path, const Shape& shape) {
  if (!fs::exists(path)) {
    return {};
  }
  const NpyArray array = read_npy(path);
  check<IoError>(array.dtype == kInt64 && array.shape == shape, path, ": is ", name_of(array.dtype),
                 " ", array.shape, ", expected int64 ", shape);
  std::vector<int64_t> values(static_cast<size_t>(array.shape.numel()));
  std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
  return values;
}

// Calls field(name, member) for what the file has under the names of members, in this order.
template <class AnyRecord, class Field>
void each_record_field(AnyRecord& record, const Field& field) {
  field("step", record.step);
  field("applied", record.applied);
  field("skipped", record.skipped);
  field("seed", record.seed);
  field("loss_scale", record.loss_scale);
  field("scale_good_steps", record.scale_good_steps);
  field("data_parallel_size", record.data_parallel_size);
  field("forward_only", record.forward_only);
  field("anomaly", record.anomaly);
  field("verdict", record.verdict);
  field("layout", record.layout);
}

}  // namespace

std::string bits_text(double value) { return data::hexadecimal(std::bit_cast<uint64_t>(value)); }

double value_of_bits(const std::string& text) {
  uint64_t bits = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, bits, 16);
  check<ValueError>(parsed.ec == std::errc() && parsed.ptr == end && text.size() == 16, "'", text,
                    "' is not the 16 hexadecimal digits of a number's bits");
  return std::bit_cast<double>(bits);
}

void write_capsule_record(const std::string& folder, const CapsuleRecord& record) {
  Json json = {{"format_version", kFormatVersion}};
  each_record_field(record, [&](const char* name, const auto& member) { json[name] = member; });
  json["loss_bits"] = bits_text(record.loss);
  json["grad_norm_bits"] = bits_text(record.grad_norm);
  json["place"] = record.place;
  json["ranks"] = Json::array();
  for (const CapsuleRank& rank : record.ranks) {
    Json losses = Json::array();
    for (const double loss : rank.local_losses) {
      losses.push_back(bits_text(loss));
    }
    json["ranks"].push_back({{"host", rank.machine.host},
                             {"cpu", rank.machine.cpu},
                             {"processor", rank.machine.processor},
                             {"threads", rank.machine.threads},
                             {"cpu_level", rank.machine.cpu_level},
                             {"blas", rank.machine.blas},
                             {"generator_seed", rank.generator.seed},
                             {"generator_offset", rank.generator.offset},
                             {"local_loss_bits", losses}});
  }
  write_file_atomically(
      record_path(folder),
      json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n");
}

CapsuleRecord read_capsule_record(const std::string& folder) {
  const std::string path = record_path(folder);
  const std::string text =
      read_file(path, kMaxReadBytes, "expected a folder capsule/step_N that a run has written");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  check<IoError>(json.is_object(), path, ": is no JSON object");
  try {
    const auto version = json.at("format_version").get<int64_t>();
    check<IoError>(version == kFormatVersion, path, ": has format_version ", version,
                   ", this program reads ", kFormatVersion);
    CapsuleRecord record;
    each_record_field(record,
                      [&](const char* name, auto& member) { json.at(name).get_to(member); });
    record.loss = value_of_bits(json.at("loss_bits"));
    record.grad_norm = value_of_bits(json.at("grad_norm_bits"));
    record.place = json.at("place");
    for (const Json& rank : json.at("ranks")) {
      CapsuleRank one;
      one.machine = {.host = rank.at("host"),
                     .cpu = rank.at("cpu"),
                     .processor = rank.at("processor"),
                     .threads = rank.at("threads"),
                     .cpu_level = rank.at("cpu_level"),
                     .blas = rank.at("blas")};
      one.generator = {.seed = rank.at("generator_seed"), .offset = rank.at("generator_offset")};
      for (const Json& loss : rank.at("local_loss_bits")) {
        one.local_losses.push_back(value_of_bits(loss));
      }
      check<IoError>(one.machine.threads >= 1, path, ": a rank has ", one.machine.threads,
                     " threads, expected at least 1");
      record.ranks.push_back(std::move(one));
    }
    check<IoError>(record.step >= 1 && record.applied >= 0 && record.skipped >= 0 &&
                       record.data_parallel_size >= 1 && !record.ranks.empty() &&
                       record.ranks.size() <= 1'000'000,
                   path, ": step ", record.step, ", ", record.applied, " updates, ",
                   record.ranks.size(), " ranks and ", record.data_parallel_size,
                   " data-parallel ones cannot be");
    return record;
  } catch (const nlohmann::json::exception& error) {
    throw IoError(concat(path, ": a member is missing or of another type: ", error.what()));
  } catch (const ValueError& error) {
    throw IoError(concat(path, ": ", error.what()));
  }
}

void write_capsule_batches(const std::string& folder,
                           int64_t data_parallel_rank,
                           const std::vector<data::Batch>& micro_batches) {
  check<ValueError>(!micro_batches.empty(), folder, ": a step without micro-batches");
  data::StepRows rows{.rows = 0, .seq = micro_batches.front().seq};
  std::vector<int64_t> sample_ids;
  std::vector<int64_t> position_ids;
  std::vector<uint8_t> attention_mask;
  std::vector<uint8_t> starts;
  for (const data::Batch& batch : micro_batches) {
    check<ValueError>(batch.seq == rows.seq && batch.batch == micro_batches.front().batch, folder,
                      ": micro-batches differ in size");
    rows.rows += batch.batch;
    append(rows.tokens, batch.tokens);
    append(rows.labels, batch.labels);
    append(rows.loss_mask, batch.loss_mask);
    append(sample_ids, batch.sample_ids);
    append(position_ids, batch.position_ids);
    append(attention_mask, batch.attention_mask);
    for (const std::vector<int64_t>& row : batch.document_starts) {
      std::vector<uint8_t> flags(static_cast<size_t>(batch.seq));
      for (const int64_t start : row) {
        flags.at(static_cast<size_t>(start)) = 1;
      }
      append(starts, flags);
    }
  }
  data::write_step(data_path(folder), 0, data_parallel_rank, rows);
  const std::string path = rows_path(folder, data_parallel_rank);
  const auto add = [&](const char* name, DType dtype, const Shape& shape, const auto& values) {
    if (static_cast<int64_t>(values.size()) == shape.numel()) {
      write_npy(concat(path, "/", name, ".npy"), dtype, shape, values.data());
    }
  };
  add("sample_ids", kInt64, {rows.rows}, sample_ids);
  add("position_ids", kInt64, {rows.rows, rows.seq}, position_ids);
  add("attention_mask", kBool, {rows.rows, rows.seq, rows.seq}, attention_mask);
  add("document_starts", kBool, {rows.rows, rows.seq}, starts);
}

int64_t capsule_rows(const std::string& folder) {
  return data::StepDataSource(data_path(folder), data::StepDataSource::Options{}).rows_until(1);
}

std::vector<data::Batch> read_capsule_batches(const std::string& folder,
                                              int64_t data_parallel_rank,
                                              int64_t data_parallel_size,
                                              int64_t micro_batches,
                                              int64_t rows_each) {
  data::StepDataSource source(data_path(folder), /*vocab_size=*/0);
  const std::string path = rows_path(folder, data_parallel_rank);
  const int64_t rows = micro_batches * rows_each;
  const int64_t seq = source.seq_length();
  const std::vector<int64_t> samples = read_integers(path + "/sample_ids.npy", {rows});
  const std::vector<int64_t> positions = read_integers(path + "/position_ids.npy", {rows, seq});
  std::vector<std::byte> starts;
  if (fs::exists(path + "/document_starts.npy")) {
    NpyArray array = read_npy(path + "/document_starts.npy");
    check<IoError>(array.dtype == kBool && array.shape == Shape({rows, seq}), path,
                   "/document_starts.npy: is ", name_of(array.dtype), " ", array.shape,
                   ", expected bool ", Shape({rows, seq}));
    starts = std::move(array.bytes);
  }
  std::vector<data::Batch> batches;
  for (int64_t m = 0; m < micro_batches; ++m) {
    data::Batch batch =
        source.micro_batch({}, m, micro_batches, rows_each, data_parallel_rank, data_parallel_size);
    const int64_t first = m * rows_each;
    if (!samples.empty()) {
      batch.sample_ids.assign(samples.begin() + first, samples.begin() + first + rows_each);
    }
    if (!positions.empty()) {
      batch.position_ids.assign(positions.begin() + first * seq,
                                positions.begin() + (first + rows_each) * seq);
    }
    for (int64_t row = first; row < first + rows_each && !starts.empty(); ++row) {
      std::vector<int64_t>& of_row = batch.document_starts.emplace_back();
      for (int64_t i = 0; i < seq; ++i) {
        if (starts[static_cast<size_t>(row * seq + i)] != std::byte{0}) {
          of_row.push_back(i);
        }
      }
    }
    batch.origin = {};
    batches.push_back(std::move(batch));
  }
  return batches;
}

}  // namespace tapestry::autopsy
