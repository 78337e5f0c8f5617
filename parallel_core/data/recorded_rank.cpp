#include "parallel_core/data/recorded_rank.h"

#include <cstring>
#include <filesystem>
#include <limits>

#include "autograd/io/npy.h"
#include "autograd/tensor/error.h"

namespace tapestry::data {
namespace {

namespace fs = std::filesystem;

template <class From, class To>
std::vector<To> converted(const NpyArray& array) {
  std::vector<To> values(static_cast<size_t>(array.shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    From value;
    std::memcpy(&value, array.bytes.data() + i * sizeof(From), sizeof(From));
    values[i] = static_cast<To>(value);
  }
  return values;
}

std::vector<int64_t> read_ids(const std::string& path, Shape& shape) {
  const NpyArray array = read_npy(path);
  check<ValueError>(is_integral(array.dtype), path, ": holds ", name_of(array.dtype),
                    ", expected integers");
  check<ValueError>(array.shape.size() == 2, path, ": has shape ", array.shape,
                    ", expected [rows, seq]");
  shape = array.shape;
  switch (array.dtype) {
    case DType::kInt8:
      return converted<int8_t, int64_t>(array);
    case DType::kUInt8:
      return converted<uint8_t, int64_t>(array);
    case DType::kInt32:
      return converted<int32_t, int64_t>(array);
    default:
      return converted<int64_t, int64_t>(array);
  }
}

std::vector<float> read_mask(const std::string& path, Shape& shape) {
  const NpyArray array = read_npy(path);
  shape = array.shape;
  switch (array.dtype) {
    case DType::kFloat32:
      return converted<float, float>(array);
    case DType::kFloat64:
      return converted<double, float>(array);
    case DType::kFloat16:
      return converted<Float16, float>(array);
    case DType::kBool:
      return converted<uint8_t, float>(array);
    case DType::kInt8:
      return converted<int8_t, float>(array);
    case DType::kUInt8:
      return converted<uint8_t, float>(array);
    case DType::kInt32:
      return converted<int32_t, float>(array);
    case DType::kInt64:
      return converted<int64_t, float>(array);
    default:
      throw ValueError(
          concat(path, ": holds ", name_of(array.dtype), ", expected a mask of float32"));
  }
}

void check_ids(const std::string& path,
               const std::vector<int64_t>& ids,
               int64_t seq,
               int64_t vocab_size) {
  for (size_t i = 0; vocab_size > 0 && i < ids.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    check<ValueError>(ids[i] >= 0 && ids[i] < vocab_size, path, ": row ", at / seq, ", position ",
                      at % seq, ": id ", ids[i], " is outside the vocabulary of ", vocab_size);
  }
}

// Which keys are hidden, [rows, S, S]; nothing if that is the causal mask in every row.
std::vector<uint8_t> read_attention_mask(const std::string& path, int64_t rows, int64_t seq) {
  Shape shape;
  const std::vector<float> mask = read_mask(path, shape);
  const bool shared = shape == Shape{seq, seq};
  check<ValueError>(shared || shape == Shape{rows, seq, seq} || shape == Shape{rows, 1, seq, seq},
                    path, ": has shape ", shape, ", expected [", seq, ", ", seq, "], [", rows, ", ",
                    seq, ", ", seq, "] or [", rows, ", 1, ", seq, ", ", seq, "]");
  const auto square = static_cast<size_t>(seq * seq);
  std::vector<uint8_t> hidden(static_cast<size_t>(rows) * square);
  bool causal = true;
  for (size_t i = 0; i < hidden.size(); ++i) {
    hidden[i] = mask[shared ? i % square : i] != 0 ? 1 : 0;
    const auto query = static_cast<int64_t>(i % square) / seq;
    const auto key = static_cast<int64_t>(i % square) % seq;
    causal = causal && (hidden[i] != 0) == (key > query);
  }
  if (causal) {
    hidden.clear();
  }
  return hidden;
}

}  // namespace

Batch read_recorded_rank(const std::string& folder, int64_t vocab_size) {
  Shape shape;
  Shape label_shape;
  Shape mask_shape;
  const std::string tokens_path = folder + "/tokens.npy";
  const std::string labels_path = folder + "/labels.npy";
  const std::string mask_path = folder + "/loss_mask.npy";
  Batch batch;
  batch.tokens = read_ids(tokens_path, shape);
  batch.labels = read_ids(labels_path, label_shape);
  if (fs::exists(mask_path)) {
    batch.loss_mask = read_mask(mask_path, mask_shape);
  } else {
    mask_shape = label_shape;
    for (const int64_t label : batch.labels) {
      batch.loss_mask.push_back(label < 0 ? 0.0F : 1.0F);
    }
  }
  check<ValueError>(shape.numel() > 0, tokens_path, ": has shape ", shape,
                    ", expected at least one row of one token");
  check<ValueError>(label_shape == shape, labels_path, ": has shape ", label_shape,
                    ", but tokens.npy has ", shape);
  check<ValueError>(mask_shape == shape, mask_path, ": has shape ", mask_shape,
                    ", but tokens.npy has ", shape);
  batch.batch = shape[0];
  batch.seq = shape[1];
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    check<ValueError>(
        batch.loss_mask[i] >= 0 && batch.loss_mask[i] < std::numeric_limits<float>::infinity(),
        mask_path, ": value ", i, " is ", batch.loss_mask[i],
        ", expected a finite number of at least 0");
    if (batch.labels[i] < 0 && batch.loss_mask[i] == 0) {
      batch.labels[i] = 0;
    }
  }
  check_ids(tokens_path, batch.tokens, batch.seq, vocab_size);
  check_ids(labels_path, batch.labels, batch.seq, vocab_size);
  const std::string attention_path = folder + "/attention_mask.npy";
  if (fs::exists(attention_path)) {
    batch.attention_mask = read_attention_mask(attention_path, batch.batch, batch.seq);
  }
  return batch;
}

int64_t recorded_rows(const std::string& folder) {
  const std::string path = folder + "/tokens.npy";
  const Shape shape = read_npy_shape(path);
  check<ValueError>(shape.size() == 2 && shape.numel() > 0, path, ": has shape ", shape,
                    ", expected [rows, seq], at least one row of one token");
  return shape[0];
}

}  // namespace tapestry::data
