// The text that the presets train on: the King James Bible, in the public domain, as the Debian
// package bible-kjv prints it. Also prepares any other text for training at first use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/sources/text_source.h"
#include "text/util/heartbeat.h"

namespace tapestry::data {

/// Turns the output of `bible -l COLUMNS` with unbroken lines into running text: each chapter is a
/// heading such as "Genesis 1" and one line a verse, without numbers; a blank line separates
/// chapters. ValueError, with the line, for anything else.
std::string clean_bible(std::string_view printed);

/// Runs a shell command and returns what it prints. IoError if it fails; `advice` ends the
/// message. RuntimeError if a signal ends it.
std::string run_command(const std::string& command, const std::string& advice);

struct CorpusOptions {
  /// Folder of the prepared files; it is made if need be.
  std::string dataset_dir;
  /// "byte", "sentencepiece", "character" or "huggingface".
  std::string tokenizer_type = "sentencepiece";
  /// Pieces of the SentencePiece model that is trained; other tokenizers have the ids that they
  /// need.
  int64_t vocab_size = 512;
  /// Of a SentencePiece model that is trained.
  std::optional<double> character_coverage;
  /// A model to use instead of making one of the text, as huggingface needs it.
  std::string tokenizer_model;
  /// Leave out bad lines of JSONL; the remarks list them.
  bool skip_bad_lines = false;
  /// Of a text that is a folder, what the caller writes into it: left out as in text_files.
  std::vector<std::string> without;
  /// Told of work that takes long.
  WorkReport report = nullptr;
};

/// What training needs to know of a prepared text.
struct PreparedCorpus {
  /// Path of the indexed dataset without ".idx" and ".bin".
  std::string prefix;
  /// Empty for the byte tokenizer.
  std::string tokenizer_model;
  int64_t vocab_size = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
  /// Whether anything had to be made; false if all files were there.
  bool prepared = false;
  /// Of the text and the tokenizer, for the log.
  std::vector<std::string> remarks;
};

/// Makes the tokenizer of the text and encodes it, each document ended by the end-of-document id:
/// DIR/NAME_TOKENIZER_VOCAB.model and DIR/NAME_TOKENIZER_VOCAB_text_document.{idx,bin} (for
/// huggingface with digits of its checksum behind VOCAB), with the record of the tokenizer. Files
/// that are complete, newer than what they are made of, and made with this tokenizer are used
/// again; every file appears under its name only when complete, and processes that start at once
/// wait for the first.
PreparedCorpus prepare_corpus(const std::string& name,
                              const TextInput& input,
                              const CorpusOptions& options);

/// prepare_corpus of text files, folders of them and patterns (text_files), under the name of the
/// first file and a hash of their full paths.
PreparedCorpus prepare_text(const std::vector<std::string>& entries, const CorpusOptions& options);

/// Whether prepare_text would find all files and make none. IoError for a tokenizer_model that
/// cannot be read.
bool text_is_prepared(const std::vector<std::string>& entries, const CorpusOptions& options);

/// prepare_corpus of DIR/bible.txt, which is written first where it is missing.
PreparedCorpus prepare_default_text(const CorpusOptions& options);

}  // namespace tapestry::data
