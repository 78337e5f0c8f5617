#include "parallel_core/post_training/distil/teacher_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/post_training/distil/teacher_file_text.h"

namespace tapestry::post_training {

namespace {

constexpr float kLargestLogProb = 1e-5F;  // rounding may leave a sure token a little above 0

}  // namespace

int64_t scored_positions(int64_t tokens, int64_t prompt) {
  return std::max<int64_t>(tokens - std::max<int64_t>(prompt, 1), 0);
}

TeacherFile::TeacherFile(const std::string& path) : reader_(path) {
  read_header();
  read_texts();
}

void TeacherFile::read_header() {
  const auto& metadata = reader_.metadata();
  const auto text = [&](const char* key) -> const std::string& {
    const auto found = metadata.find(key);
    check<IoError>(found != metadata.end(), path(), ": is no file of a teacher's log-probabilities",
                   metadata.contains("kind") ? concat(" (metadata lack ", key, ")") : std::string(),
                   ", as generate --logprobs K --to FILE writes them");
    return found->second;
  };
  const auto whole = [&](const char* key) {
    const std::string& value = text(key);
    int64_t out = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
    check<IoError>(error == std::errc() && end == value.data() + value.size() && out > 0, path(),
                   ": metadata ", key, " is '", value, "', expected a positive number");
    return out;
  };
  check<IoError>(text("kind") == teacher_file::kKind, path(), ": is of the kind '", text("kind"),
                 "', expected ", teacher_file::kKind);
  check<IoError>(whole("version") == teacher_file::kVersion, path(), ": has version ",
                 text("version"), ", this program reads ", teacher_file::kVersion);
  header_ = {.model = text("model"),
             .tokenizer = {text("tokenizer_type"), whole("tokenizer_vocab_size"),
                           text("tokenizer_checksum")},
             .vocab_size = whole("vocab_size"),
             .top_k = whole("top_k")};
  const std::string& temperature = text("temperature");
  const auto [end, error] = std::from_chars(
      temperature.data(), temperature.data() + temperature.size(), header_.temperature);
  check<IoError>(error == std::errc() && end == temperature.data() + temperature.size() &&
                     header_.temperature > 0 && std::isfinite(header_.temperature),
                 path(), ": metadata temperature is '", temperature,
                 "', expected a number above 0");
  check<IoError>(header_.top_k <= header_.vocab_size, path(), ": top_k ", header_.top_k,
                 " exceeds the vocabulary's ", header_.vocab_size);
}

void TeacherFile::read_texts() {
  const auto expect = [&](const char* name, DType dtype, const Shape& shape) {
    check<IoError>(reader_.contains(name), path(), ": has no tensor ", name);
    const SafetensorsEntry& entry = reader_.entry(name);
    check<IoError>(entry.dtype == dtype && entry.shape == shape, path(), ": ", name, " is ",
                   entry.dtype_name, " ", entry.shape, ", expected ", name_of(dtype), " ", shape);
  };
  const auto length_of = [&](const char* name) {
    check<IoError>(reader_.contains(name) && reader_.entry(name).shape.size() == 1, path(),
                   ": has no list ", name);
    return reader_.entry(name).shape[0];
  };
  const int64_t texts = length_of("prompt_lengths");
  const int64_t tokens = length_of("ids");
  expect("prompt_lengths", kInt64, {texts});
  expect("offsets", kInt64, {texts + 1});
  expect("ids", kInt32, {tokens});
  std::vector<int64_t> offsets(static_cast<size_t>(texts + 1));
  std::vector<int64_t> prompts(static_cast<size_t>(texts));
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  reader_.read("offsets", offsets.data());
  reader_.read("prompt_lengths", prompts.data());
  reader_.read("ids", ids.data());
  check<IoError>(texts > 0, path(), ": has no texts");
  check<IoError>(offsets.front() == 0 && offsets.back() == tokens &&
                     std::is_sorted(offsets.begin(), offsets.end()),
                 path(), ": offsets do not lead through the ", tokens, " ids");
  auto set = std::make_shared<SequenceSet>();
  first_positions_ = {0};
  for (size_t i = 0; i < prompts.size(); ++i) {
    const int64_t length = offsets[i + 1] - offsets[i];
    check<IoError>(prompts[i] >= 0 && prompts[i] <= length, path(), ": text ", i, " has ", length,
                   " tokens and a prompt of ", prompts[i]);
    const std::span<const int32_t> all = std::span<const int32_t>(ids).subspan(
        static_cast<size_t>(offsets[i]), static_cast<size_t>(length));
    for (const int32_t id : all) {
      check<IndexError>(id >= 0 && id < header_.vocab_size, path(), ": text ", i, " has the id ",
                        id, ", outside of the vocabulary of ", header_.vocab_size);
    }
    set->add(all.first(static_cast<size_t>(prompts[i])),
             all.subspan(static_cast<size_t>(prompts[i])));
    first_positions_.push_back(first_positions_.back() + scored_positions(length, prompts[i]));
  }
  const std::string sum = set->checksum();
  check<IoError>(sum == reader_.metadata().at("texts_checksum"), path(),
                 ": the texts' checksum is ", sum, ", the file says ",
                 reader_.metadata().at("texts_checksum"), "; it has been changed");
  texts_ = std::move(set);
  expect("log_probs", kFloat32, {first_positions_.back()});
  expect("top_ids", kInt32, {first_positions_.back(), header_.top_k});
  expect("top_log_probs", kFloat32, {first_positions_.back(), header_.top_k});
}

int64_t TeacherFile::positions(int64_t text) const {
  const auto i = static_cast<size_t>(text);
  return first_positions_[i + 1] - first_positions_[i];
}

void TeacherFile::check_row(int64_t text,
                            int64_t position,
                            const int32_t* ids,
                            const float* log_probs,
                            std::vector<uint8_t>& seen) const {
  const auto place = [&] { return concat(path(), ": text ", text, ", position ", position); };
  const int64_t k = header_.top_k;
  for (int64_t j = 0; j < k; ++j) {
    if (ids[j] < 0 || ids[j] >= header_.vocab_size) {
      throw IndexError(concat(place(), ": has the id ", ids[j], ", outside of the vocabulary of ",
                              header_.vocab_size));
    }
    uint8_t& is_seen = seen[static_cast<size_t>(ids[j])];
    if (is_seen != 0) {
      throw ValueError(concat(place(), ": has the id ", ids[j], " twice"));
    }
    is_seen = 1;
    if (!(log_probs[j] <= kLargestLogProb)) {
      throw ValueError(concat(place(), ": ", log_probs[j], " is no log-probability"));
    }
    if (j > 0 && log_probs[j] > log_probs[j - 1]) {
      throw ValueError(concat(place(), ": the likeliest tokens are not in their order"));
    }
  }
  for (int64_t j = 0; j < k; ++j) {
    seen[static_cast<size_t>(ids[j])] = 0;
  }
}

void TeacherFile::read(int64_t text,
                       int64_t first,
                       int64_t count,
                       int64_t k,
                       int32_t* ids,
                       float* log_probs,
                       float* own) const {
  check<IndexError>(
      first >= 0 && count >= 0 && first + count <= positions(text) && k >= 1 && k <= header_.top_k,
      path(), ": text ", text, " has ", positions(text), " positions with ", header_.top_k,
      " tokens each, asked for ", k, " of ", first, " to ", first + count);
  const auto row = static_cast<uint64_t>(first_positions_[static_cast<size_t>(text)] + first);
  const auto rows = static_cast<size_t>(count);
  const auto width = static_cast<size_t>(header_.top_k);
  std::vector<int32_t> all_ids(rows * width);
  std::vector<float> all_log_probs(rows * width);
  reader_.read_bytes("top_ids", row * width * 4, rows * width * 4, all_ids.data());
  reader_.read_bytes("top_log_probs", row * width * 4, rows * width * 4, all_log_probs.data());
  reader_.read_bytes("log_probs", row * 4, rows * 4, own);
  std::vector<uint8_t> seen(static_cast<size_t>(header_.vocab_size), 0);
  for (size_t r = 0; r < rows; ++r) {
    check_row(text, first + static_cast<int64_t>(r), &all_ids[r * width], &all_log_probs[r * width],
              seen);
    if (!(own[r] <= kLargestLogProb)) {
      throw ValueError(concat(path(), ": text ", text, ", position ",
                              first + static_cast<int64_t>(r), ": ", own[r],
                              " is no log-probability"));
    }
    std::copy_n(&all_ids[r * width], k, ids + static_cast<int64_t>(r) * k);
    std::copy_n(&all_log_probs[r * width], k, log_probs + static_cast<int64_t>(r) * k);
  }
}

void check_teacher_file(const TeacherFile& file,
                        const data::TokenizerIdentity& tokenizer,
                        int64_t vocab_size) {
  const TeacherFileHeader& header = file.header();
  check<ValueError>(header.vocab_size == vocab_size, file.path(), ": the teacher ", header.model,
                    " has a vocabulary of ", header.vocab_size, " tokens, the student of ",
                    vocab_size, "; both must have the same one");
  check<ValueError>(tokenizer.type.empty() || header.tokenizer == tokenizer, file.path(),
                    ": the teacher ", header.model, " has a ", describe(header.tokenizer),
                    ", the student a ", describe(tokenizer), "; both must have the same tokenizer");
}

}  // namespace tapestry::post_training
