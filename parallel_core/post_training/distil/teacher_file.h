// Texts with what a teacher says of each token of their completions, in one safetensors file:
//
//   ids             int32 [tokens]        the texts' tokens, one text behind the other
//   offsets         int64 [texts + 1]     where each text begins, and the end of all
//   prompt_lengths  int64 [texts]         tokens before its completion
//   log_probs       float32 [positions]   of the completions' own tokens
//   top_ids         int32 [positions, K]  the likeliest tokens, likeliest first
//   top_log_probs   float32 [positions, K]
//
// A position is a token of a completion; the first token of a text without a prompt, before which
// there is nothing, has none. Log-probabilities are of softmax(logits / temperature) over the whole
// vocabulary; what is left of 1 is the rest's. Metadata: kind, version, model, temperature, top_k,
// vocab_size, tokenizer_type, tokenizer_vocab_size, tokenizer_checksum, texts_checksum.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "autograd/io/safetensors.h"
#include "parallel_core/pipeline_parallel/token_scores.h"
#include "parallel_core/post_training/rows/sequence_set.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry::post_training {

struct TeacherFileHeader {
  std::string model;  ///< the teacher's folder
  data::TokenizerIdentity tokenizer;
  int64_t vocab_size = 0;  ///< columns of the teacher's logits
  int64_t top_k = 0;
  double temperature = 1;
};

/// Writes such a file as the values come; it appears complete at finish(), or not at all.
class TeacherFileWriter {
 public:
  /// The texts that `set` has. ValueError for a path that is no name of a file in a folder;
  /// IoError, of a full disk before anything has been computed.
  TeacherFileWriter(std::string path, const TeacherFileHeader& header, const SequenceSet& set);
  TeacherFileWriter(const TeacherFileWriter&) = delete;
  TeacherFileWriter& operator=(const TeacherFileWriter&) = delete;
  /// Without finish(): nothing is left.
  ~TeacherFileWriter();

  /// The positions of a text, all of them: row `first_row` of the tensors and those behind it.
  void write(int64_t text, const TopLogProbs& top, const Tensor& log_probs, int64_t first_row);
  /// ValueError if a text was not written.
  void finish();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Such a file, opened: all but the values of its positions is read and checked. Reading is
/// thread-safe.
class TeacherFile {
 public:
  /// IoError for anything that is no such file, or one that is cut off; ValueError where tensors
  /// and metadata disagree.
  explicit TeacherFile(const std::string& path);

  const std::string& path() const { return reader_.path(); }
  const TeacherFileHeader& header() const { return header_; }
  const std::shared_ptr<const SequenceSet>& texts() const { return texts_; }
  int64_t positions(int64_t text) const;

  /// Of `count` positions of a text from `first` on: k likeliest, the k best of the file's, and the
  /// log-probabilities of the tokens themselves. Written row by row from `ids`, `log_probs` and
  /// `own` on. IndexError for an id outside of the vocabulary, ValueError for what is no
  /// log-probability or an id that a row has twice, each with the file and the place.
  void read(int64_t text,
            int64_t first,
            int64_t count,
            int64_t k,
            int32_t* ids,
            float* log_probs,
            float* own) const;

 private:
  void read_header();
  void read_texts();
  // `seen` has an entry for each id, all false before and afterwards.
  void check_row(int64_t text,
                 int64_t position,
                 const int32_t* ids,
                 const float* log_probs,
                 std::vector<uint8_t>& seen) const;

  SafetensorsReader reader_;
  TeacherFileHeader header_;
  std::shared_ptr<const SequenceSet> texts_;
  std::vector<int64_t> first_positions_;  // of each text, and the end of all
};

/// Positions of a text: see above.
int64_t scored_positions(int64_t tokens, int64_t prompt);

/// ValueError, with both sides, unless the file's texts can teach a student with this tokenizer
/// (of a type "" nothing is known) and vocabulary.
void check_teacher_file(const TeacherFile& file,
                        const data::TokenizerIdentity& tokenizer,
                        int64_t vocab_size);

}  // namespace tapestry::post_training
