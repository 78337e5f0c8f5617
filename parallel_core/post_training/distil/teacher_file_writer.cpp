#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/io/range_file.h"
#include "autograd/io/temporary_names.h"
#include "autograd/tensor/error.h"
#include "parallel_core/post_training/distil/teacher_file.h"
#include "parallel_core/post_training/distil/teacher_file_text.h"

namespace tapestry::post_training {

namespace fs = std::filesystem;

// The texts as the file has them.
struct TeacherTexts {
  std::vector<int32_t> ids;
  std::vector<int64_t> offsets = {0};
  std::vector<int64_t> prompts;
  std::vector<int64_t> first_positions = {0};

  explicit TeacherTexts(const SequenceSet& set) {
    for (int64_t i = 0; i < set.size(); ++i) {
      const auto all = set.ids(i);
      ids.insert(ids.end(), all.begin(), all.end());
      offsets.push_back(std::ssize(ids));
      prompts.push_back(set.prompt_tokens(i));
      first_positions.push_back(first_positions.back() +
                                scored_positions(std::ssize(all), set.prompt_tokens(i)));
    }
  }
  int64_t positions() const { return first_positions.back(); }
};

namespace {

// Reads as the same number again.
std::string text_of(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

std::map<std::string, std::string> metadata_of(const TeacherFileHeader& header,
                                               const SequenceSet& set) {
  return {{"kind", std::string(teacher_file::kKind)},
          {"version", std::to_string(teacher_file::kVersion)},
          {"model", header.model},
          {"temperature", text_of(header.temperature)},
          {"top_k", std::to_string(header.top_k)},
          {"vocab_size", std::to_string(header.vocab_size)},
          {"tokenizer_type", header.tokenizer.type},
          {"tokenizer_vocab_size", std::to_string(header.tokenizer.vocab_size)},
          {"tokenizer_checksum", header.tokenizer.checksum},
          {"texts_checksum", set.checksum()}};
}

}  // namespace

struct TeacherFileWriter::Parts {
  std::string path;
  std::string temporary;
  TemporaryName name;
  int64_t top_k = 0;
  TeacherTexts texts;
  SafetensorsPlan plan;
  std::vector<bool> written;
  // Three places grow at once, each with a buffer of its own.
  std::unique_ptr<RangeFile> beginning;
  std::unique_ptr<RangeFile> ids;
  std::unique_ptr<RangeFile> log_probs;
  std::unique_ptr<RangeFile> own;

  Parts(std::string to, const TeacherFileHeader& header, const SequenceSet& set)
      : path(std::move(to)), top_k(header.top_k), texts(set) {
    const int64_t positions = texts.positions();
    const std::vector<TensorInfo> tensors = {
        {"ids", kInt32, {std::ssize(texts.ids)}},
        {"offsets", kInt64, {std::ssize(texts.offsets)}},
        {"prompt_lengths", kInt64, {std::ssize(texts.prompts)}},
        {"log_probs", kFloat32, {positions}},
        {"top_ids", kInt32, {positions, top_k}},
        {"top_log_probs", kFloat32, {positions, top_k}}};
    plan = plan_safetensors(path, tensors, metadata_of(header, set));
    written.resize(static_cast<size_t>(set.size()));
    const fs::path place(path);
    temporary =
        (place.parent_path() / concat(".", place.filename().string(), ".tmp-", getpid())).string();
    create_range_file(temporary, plan.file_size);
    name = TemporaryName(temporary);
    for (std::unique_ptr<RangeFile>* file : {&beginning, &ids, &log_probs, &own}) {
      *file = std::make_unique<RangeFile>(temporary);
    }
    beginning->write_at(0, plan.prologue.data(), plan.prologue.size());
    beginning->write_at(plan.begin_of("ids"), texts.ids.data(), texts.ids.size() * 4);
    beginning->write_at(plan.begin_of("offsets"), texts.offsets.data(), texts.offsets.size() * 8);
    beginning->write_at(plan.begin_of("prompt_lengths"), texts.prompts.data(),
                        texts.prompts.size() * 8);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts() {
    if (!temporary.empty()) {
      std::error_code none;
      fs::remove(temporary, none);
    }
  }
};

TeacherFileWriter::TeacherFileWriter(std::string path,
                                     const TeacherFileHeader& header,
                                     const SequenceSet& set) {
  const fs::path folder = fs::path(path).parent_path();
  check<ValueError>(!fs::is_directory(path), path, ": is a folder, expected the name of a file");
  check<ValueError>(folder.empty() || fs::is_directory(folder), path, ": there is no folder ",
                    folder.string());
  parts_ = std::make_unique<Parts>(std::move(path), header, set);
}

TeacherFileWriter::~TeacherFileWriter() = default;

void TeacherFileWriter::write(int64_t text,
                              const TopLogProbs& top,
                              const Tensor& log_probs,
                              int64_t first_row) {
  const auto i = static_cast<size_t>(text);
  const auto first = static_cast<uint64_t>(parts_->texts.first_positions[i]);
  const auto rows = static_cast<size_t>(parts_->texts.first_positions[i + 1]) - first;
  const auto width = static_cast<uint64_t>(parts_->top_k);
  const auto from = static_cast<uint64_t>(first_row);
  const auto place = [&](const char* name, uint64_t elements) {
    return parts_->plan.begin_of(name) + elements * 4;
  };
  parts_->ids->write_at(place("top_ids", first * width), top.ids.data<int32_t>() + from * width,
                        rows * width * 4);
  parts_->log_probs->write_at(place("top_log_probs", first * width),
                              top.log_probs.data<float>() + from * width, rows * width * 4);
  parts_->own->write_at(place("log_probs", first), log_probs.data<float>() + from, rows * 4);
  parts_->written[i] = true;
}

void TeacherFileWriter::finish() {
  Parts& parts = *parts_;
  for (size_t i = 0; i < parts.written.size(); ++i) {
    check<ValueError>(parts.written[i], parts.path, ": text ", i, " was not written");
  }
  for (auto* file : {&parts.beginning, &parts.ids, &parts.log_probs, &parts.own}) {
    (*file)->sync();
    (*file)->verify();
    file->reset();
  }
  if (std::rename(parts.temporary.c_str(), parts.path.c_str()) != 0) {
    throw_io_error(parts.path, "be given its name", errno);
  }
  parts.temporary.clear();
  parts.name = TemporaryName();
  sync_directory(fs::path(parts.path).parent_path().string());
}

}  // namespace tapestry::post_training
