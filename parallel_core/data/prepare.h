// From text files to an indexed dataset, as a stream.
#pragma once

#include <cstdint>
#include <string>

#include "text/sources/text_source.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry::data {

struct PrepareOptions {
  TextInput input;
  /// Path of the result without ".idx" and ".bin".
  std::string output_prefix;
  /// File of the tokenizer, which the record beside the data names; empty for bytes.
  std::string tokenizer_model;
  /// Appends the tokenizer's end-of-document id to each document that has tokens.
  bool append_eod = false;
  ReadProgress progress;
};

struct PrepareSummary {
  int64_t documents = 0;
  int64_t empty_documents = 0;
  int64_t tokens = 0;
  /// Bytes of text that were encoded.
  int64_t text_bytes = 0;
};

/// Encodes every document as one sequence and writes PREFIX.bin, PREFIX.idx, the record of the
/// tokenizer, PREFIX.tokenizer.json, and where each document comes from, PREFIX.sources.json and
/// PREFIX.sources.npy (document_sources.h). A document without tokens is stored as an empty one.
/// ValueError if no document has tokens, or append_eod is asked of a tokenizer without such an id;
/// on any error nothing is left behind. Texts are encoded on num_threads() threads; the files do
/// not depend on how many.
PrepareSummary prepare_dataset(const PrepareOptions& options, const Tokenizer& tokenizer);

}  // namespace tapestry::data
