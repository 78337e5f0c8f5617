#include "parallel_core/data/indexed_dataset.h"

#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <system_error>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/data/document_sources.h"
#include "text/sources/text_files.h"
#include "text/tokenizers/tokenizer_record.h"

static_assert(std::endian::native == std::endian::little, "the file formats are little-endian");

namespace tapestry::data {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr uint64_t kVersion = 1;
constexpr uint64_t kHeaderBytes = 34;

template <class T>
T load(const std::string& bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// The arrays begin at an odd address of the file, so they are copied out and never cast.
template <class T>
std::vector<T> load_array(const std::string& bytes, uint64_t offset, uint64_t count) {
  std::vector<T> values(count);
  if (count > 0) {
    std::memcpy(values.data(), bytes.data() + offset, count * sizeof(T));
  }
  return values;
}

template <class T>
void widen(const std::vector<char>& bytes, int64_t count, std::vector<int64_t>& out) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    out.push_back(static_cast<int64_t>(value));
  }
}

template <class T>
void narrow(std::span<const int32_t> tokens, const std::string& path, std::vector<char>& out) {
  out.resize(tokens.size() * sizeof(T));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t token = tokens[i];
    check<ValueError>(std::in_range<T>(token), path, ": token id ", token, " does not fit the ",
                      sizeof(T), "-byte element type of the file");
    const T value = static_cast<T>(token);
    std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
  }
}

// What was probably meant by a prefix without files.
std::string hint_for(const std::string& prefix) {
  for (const char* suffix : {".idx", ".bin"}) {
    if (prefix.ends_with(suffix)) {
      return concat(" (the path of a dataset is given without \"", suffix, "\")");
    }
  }
  // What preprocess_data makes of PREFIX.
  const fs::path path = prefix;
  const fs::path folder = path.parent_path().empty() ? fs::path(".") : path.parent_path();
  std::set<std::string> made;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(path.filename().string() + "_") && name.ends_with("_document.idx")) {
      made.insert(name.substr(0, name.size() - std::string_view(".idx").size()));
    }
  }
  if (!made.empty()) {
    return concat("; did you mean ", (path.parent_path() / *made.begin()).string(), "?");
  }
  if (const auto there = foreign_data(prefix, /*texts=*/true)) {
    return concat("; ", prefix, " is a folder: ", there->name, " ", there->remedy);
  }
  if (fs::is_regular_file(path, error)) {
    return concat(
        "; ", prefix,
        " is a file, but this is the path of a dataset without its endings: make one of a "
        "text with preprocess_data, or give the file as dataset_config.text");
  }
  return "; a dataset is made of a text with preprocess_data";
}

void remove_old(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    throw IoError(concat(
        path, ": the old file cannot be replaced: ", std::generic_category().message(errno)));
  }
}

}  // namespace

InputFile open_dataset_file(const std::string& prefix, const char* suffix) {
  try {
    return InputFile(prefix + suffix);
  } catch (const IoError& error) {
    throw IoError(fs::exists(prefix + suffix) ? error.what() : error.what() + hint_for(prefix));
  }
}

int64_t size_of(TokenType type) {
  switch (type) {
    case TokenType::kUInt8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUInt16:
      return 2;
    case TokenType::kInt32:
      return 4;
    case TokenType::kInt64:
      return 8;
  }
  return 0;
}

TokenType token_type_for_vocabulary(int64_t vocab_size) {
  constexpr int64_t kFirstWide = 65500;
  return vocab_size < kFirstWide ? TokenType::kUInt16 : TokenType::kInt32;
}

IndexedDataset::IndexedDataset(const std::string& prefix)
    : prefix_(prefix), bin_(open_dataset_file(prefix, ".bin")) {
  read_index();
}

void IndexedDataset::read_index() {
  const InputFile idx = open_dataset_file(prefix_, ".idx");
  const std::string& path = idx.path();
  check<IoError>(idx.size() >= kHeaderBytes, path, ": has ", idx.size(),
                 " bytes, fewer than the header's ", kHeaderBytes, "; the file is truncated");
  // Nothing is taken for the arrays before the header has named the file's size.
  std::string bytes(kHeaderBytes, '\0');
  idx.read_at(0, bytes.data(), bytes.size(), "header");

  check<IoError>(std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) == 0, path,
                 ": offset 0, magic: is not \"MMIDIDX\"; this is not a Megatron index");
  const auto version = load<uint64_t>(bytes, 9);
  check<IoError>(version == kVersion, path, ": offset 9, version: ", version, ", expected ",
                 kVersion);
  const auto code = load<uint8_t>(bytes, 17);
  check<IoError>(code != 6 && code != 7, path, ": offset 17, dtype code: ", int{code},
                 " is a floating-point type; token ids are integers");
  token_type_ = static_cast<TokenType>(code);
  check<IoError>(size_of(token_type_) > 0, path, ": offset 17, dtype code: ", int{code},
                 " is unknown, expected 1, 2, 3, 4, 5 or 8");

  const auto sequences = load<uint64_t>(bytes, 18);
  const auto boundaries = load<uint64_t>(bytes, 26);
  uint64_t sequence_bytes = 0;
  uint64_t boundary_bytes = 0;
  uint64_t expected = 0;
  const bool overflow = __builtin_mul_overflow(sequences, uint64_t{12}, &sequence_bytes) ||
                        __builtin_mul_overflow(boundaries, uint64_t{8}, &boundary_bytes) ||
                        __builtin_add_overflow(sequence_bytes, boundary_bytes, &expected) ||
                        __builtin_add_overflow(expected, kHeaderBytes, &expected);
  check<IoError>(!overflow, path, ": offset 18, counts: ", sequences, " sequences and ", boundaries,
                 " boundaries are more than any file can hold");
  check<IoError>(sequences == 0 || idx.size() != expected + sequences, path,
                 ": has a byte of modes per sequence: multimodal datasets are not supported");
  check<IoError>(idx.size() == expected, path, ": has ", idx.size(), " bytes, but offset 18 names ",
                 sequences, " sequences and offset 26 ", boundaries, " boundaries, which take ",
                 expected, "; the file is truncated or damaged");
  check<IoError>(boundaries >= 1, path,
                 ": offset 26, boundaries: 0, expected at least 1 (documents + 1)");
  bytes.resize(idx.size());
  idx.read_at(0, bytes.data(), bytes.size(), "index");

  const uint64_t lengths_at = kHeaderBytes;
  const uint64_t offsets_at = lengths_at + 4 * sequences;
  const uint64_t boundaries_at = offsets_at + 8 * sequences;
  lengths_ = load_array<int32_t>(bytes, lengths_at, sequences);
  offsets_ = load_array<int64_t>(bytes, offsets_at, sequences);
  document_indices_ = load_array<int64_t>(bytes, boundaries_at, boundaries);

  const auto item = static_cast<uint64_t>(size_of(token_type_));
  uint64_t next = 0;
  for (uint64_t i = 0; i < sequences; ++i) {
    check<IoError>(lengths_[i] >= 0, path, ": offset ", lengths_at + 4 * i, ", length of sequence ",
                   i, ": ", lengths_[i], " is negative");
    const int64_t offset = offsets_[i];
    check<IoError>(offset >= 0 && static_cast<uint64_t>(offset) % item == 0, path, ": offset ",
                   offsets_at + 8 * i, ", byte offset of sequence ", i, ": ", offset,
                   " is not a non-negative multiple of the ", item, "-byte element");
    // Neither the product (below 2^34) nor the sum (below 2^63 + 2^34) can overflow 64 bits.
    const uint64_t end = static_cast<uint64_t>(offset) + static_cast<uint64_t>(lengths_[i]) * item;
    check<IoError>(end <= bin_.size(), path, ": sequence ", i, " ends at byte ", end, " of ",
                   bin_.path(), ", which has only ", bin_.size(),
                   "; the .bin file is truncated or belongs to another .idx");
    contiguous_ = contiguous_ && static_cast<uint64_t>(offset) == next;
    next = end;
    num_tokens_ += lengths_[i];
  }
  const auto last = static_cast<int64_t>(sequences);
  check<IoError>(document_indices_.front() == 0, path, ": offset ", boundaries_at,
                 ", first document boundary: ", document_indices_.front(), ", expected 0");
  for (uint64_t d = 1; d < boundaries; ++d) {
    check<IoError>(document_indices_[d] >= document_indices_[d - 1], path, ": offset ",
                   boundaries_at + 8 * d, ", document boundary ", d, ": ", document_indices_[d],
                   " is smaller than the one before, ", document_indices_[d - 1]);
  }
  check<IoError>(document_indices_.back() == last, path, ": offset ",
                 boundaries_at + 8 * (boundaries - 1),
                 ", last document boundary: ", document_indices_.back(),
                 ", expected the number of sequences, ", last);
}

void IndexedDataset::read(int64_t sequence,
                          int64_t offset,
                          int64_t count,
                          std::vector<int64_t>& out) const {
  check<IndexError>(sequence >= 0 && sequence < num_sequences(), prefix_, ": sequence ", sequence,
                    " of ", num_sequences());
  const auto index = static_cast<size_t>(sequence);
  check<IndexError>(
      offset >= 0 && count >= 0 && offset <= lengths_[index] && count <= lengths_[index] - offset,
      prefix_, ": sequence ", sequence, " has ", lengths_[index], " tokens, not ", count,
      " from position ", offset);
  if (count == 0) {
    return;
  }
  const int64_t item = size_of(token_type_);
  std::vector<char> bytes(static_cast<size_t>(count * item));
  bin_.read_at(static_cast<uint64_t>(offsets_[index] + offset * item), bytes.data(), bytes.size(),
               concat("tokens of sequence ", sequence));
  out.reserve(out.size() + static_cast<size_t>(count));
  switch (token_type_) {
    case TokenType::kUInt8:
      return widen<uint8_t>(bytes, count, out);
    case TokenType::kInt8:
      return widen<int8_t>(bytes, count, out);
    case TokenType::kInt16:
      return widen<int16_t>(bytes, count, out);
    case TokenType::kInt32:
      return widen<int32_t>(bytes, count, out);
    case TokenType::kInt64:
      return widen<int64_t>(bytes, count, out);
    case TokenType::kUInt16:
      return widen<uint16_t>(bytes, count, out);
  }
}

std::vector<int64_t> IndexedDataset::sequence(int64_t index) const {
  check<IndexError>(index >= 0 && index < num_sequences(), prefix_, ": sequence ", index, " of ",
                    num_sequences());
  std::vector<int64_t> tokens;
  read(index, 0, lengths_[static_cast<size_t>(index)], tokens);
  return tokens;
}

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, TokenType type)
    : prefix_(prefix), token_type_(type), bin_(prefix + ".bin"), idx_(prefix + ".idx") {}

void IndexedDatasetWriter::add_tokens(std::span<const int32_t> tokens) {
  if (tokens.empty()) {
    return;
  }
  const auto count = static_cast<int64_t>(tokens.size());
  check<ValueError>(open_tokens_ + count <= std::numeric_limits<int32_t>::max(), bin_.path(),
                    ": sequence ", num_sequences(),
                    " would have more than 2147483647 tokens, the limit of the format; split the "
                    "text into documents");
  switch (token_type_) {
    case TokenType::kUInt8:
      narrow<uint8_t>(tokens, bin_.path(), scratch_);
      break;
    case TokenType::kInt8:
      narrow<int8_t>(tokens, bin_.path(), scratch_);
      break;
    case TokenType::kInt16:
      narrow<int16_t>(tokens, bin_.path(), scratch_);
      break;
    case TokenType::kInt32:
      narrow<int32_t>(tokens, bin_.path(), scratch_);
      break;
    case TokenType::kInt64:
      narrow<int64_t>(tokens, bin_.path(), scratch_);
      break;
    case TokenType::kUInt16:
      narrow<uint16_t>(tokens, bin_.path(), scratch_);
      break;
  }
  bin_.write(scratch_.data(), scratch_.size());
  open_tokens_ += count;
  num_tokens_ += count;
}

void IndexedDatasetWriter::end_sequence() {
  lengths_.push_back(static_cast<int32_t>(open_tokens_));
  open_tokens_ = 0;
}

void IndexedDatasetWriter::end_document() {
  check<RuntimeError>(open_tokens_ == 0, bin_.path(), ": a document ends inside a sequence of ",
                      open_tokens_, " tokens; call end_sequence() first");
  document_indices_.push_back(num_sequences());
}

void IndexedDatasetWriter::finish(std::string_view record, const DocumentSources* sources) {
  check<RuntimeError>(open_tokens_ == 0 && document_indices_.back() == num_sequences(), bin_.path(),
                      ": the last sequence or document was not ended");
  check<RuntimeError>(
      sources == nullptr || static_cast<int64_t>(sources->documents.size()) == num_documents(),
      bin_.path(), ": has ", num_documents(), " documents, not as many as its sources, ",
      sources != nullptr ? sources->documents.size() : 0);
  const auto put = [this](const auto& value) { idx_.write(&value, sizeof(value)); };
  idx_.write(kMagic, sizeof(kMagic));
  put(kVersion);
  put(static_cast<uint8_t>(token_type_));
  put(static_cast<uint64_t>(lengths_.size()));
  put(static_cast<uint64_t>(document_indices_.size()));
  idx_.write(lengths_.data(), lengths_.size() * sizeof(int32_t));
  int64_t offset = 0;
  for (const int32_t length : lengths_) {
    put(offset);
    offset += length * size_of(token_type_);
  }
  idx_.write(document_indices_.data(), document_indices_.size() * sizeof(int64_t));
  // A dataset without .idx does not exist, so no moment shows an old index beside new tokens, or a
  // dataset beside the record or the sources of another one.
  const std::string record_path = tokenizer_record_path(prefix_);
  remove_old(idx_.path());
  const std::string beside[] = {record_path, sources_json_path(prefix_), sources_npy_path(prefix_)};
  for (const std::string& path : beside) {
    remove_old(path);
  }
  bin_.commit();
  try {
    if (!record.empty()) {
      write_file_atomically(record_path, record);
    }
    if (sources != nullptr) {
      write_document_sources(prefix_, *sources);
    }
    idx_.commit();
  } catch (const IoError&) {
    ::unlink(bin_.path().c_str());
    for (const std::string& path : beside) {
      ::unlink(path.c_str());
    }
    throw;
  }
}

}  // namespace tapestry::data
