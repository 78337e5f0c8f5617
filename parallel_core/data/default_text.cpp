#include "parallel_core/data/default_text.h"

#include <sys/wait.h>

#include <cctype>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "parallel_core/data/file.h"
#include "parallel_core/data/indexed_dataset.h"
#include "parallel_core/data/prepare.h"
#include "parallel_core/data/sentencepiece_tokenizer.h"

namespace tapestry::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBibleChapters = 1189;
constexpr int64_t kBibleVerses = 31102;

struct VerseCount {
  int64_t chapters = 0;
  int64_t verses = 0;
};

VerseCount clean_lines(std::string_view printed, std::string& text) {
  VerseCount count;
  for (int64_t number = 1; !printed.empty(); ++number) {
    const size_t end = std::min(printed.find('\n'), printed.size());
    std::string_view line = printed.substr(0, end);
    printed.remove_prefix(std::min(end + 1, printed.size()));
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) {
      line.remove_suffix(1);
    }
    if (line.empty()) {
      continue;
    }
    if (line.front() != ' ') {  // book and chapter
      text.append(count.chapters > 0 ? "\n" : "").append(line).append("\n");
      ++count.chapters;
      continue;
    }
    line.remove_prefix(line.find_first_not_of(' '));
    const size_t digits = std::min(line.find_first_not_of("0123456789"), line.size());
    check<ValueError>(
        digits > 0 && digits + 1 < line.size() && line[digits] == ' ' && count.chapters > 0,
        "bible: line ", number, ": \"", line.substr(0, 60),
        "\" is neither a chapter heading nor a numbered verse");
    text.append(line.substr(digits + 1)).append("\n");
    ++count.verses;
  }
  return count;
}

bool is_newer(const std::string& path, const std::string& than) {
  std::error_code error;
  const auto made = fs::last_write_time(path, error);
  if (error) {
    return false;
  }
  const auto source = fs::last_write_time(than, error);
  return !error && made >= source;
}

bool is_newer(const std::string& path, const std::vector<std::string>& than) {
  for (const std::string& source : than) {
    if (!is_newer(path, source)) {
      return false;
    }
  }
  return fs::exists(path);
}

// The dataset if it is there, whole, and newer than what it was made of.
std::optional<IndexedDataset> existing_dataset(const std::string& prefix,
                                               const std::vector<std::string>& sources) {
  if (!is_newer(prefix + ".idx", sources)) {
    return std::nullopt;
  }
  try {
    return std::optional<IndexedDataset>(std::in_place, prefix);
  } catch (const IoError&) {
    return std::nullopt;  // damaged: it is made anew
  }
}

std::unique_ptr<Tokenizer> existing_model(const std::string& model,
                                          const std::vector<std::string>& sources) {
  if (!is_newer(model, sources)) {
    return nullptr;
  }
  try {
    return make_tokenizer("sentencepiece", model);
  } catch (const IoError&) {
    return nullptr;
  }
}

PreparedCorpus prepare_locked(const std::string& name,
                              const TextInput& input,
                              const CorpusOptions& options) {
  PreparedCorpus corpus;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::string> sources = input.files;
  if (options.tokenizer_type == "sentencepiece") {
    corpus.tokenizer_model = options.tokenizer_model;
    if (corpus.tokenizer_model.empty()) {
      corpus.tokenizer_model =
          concat(options.dataset_dir, "/", name, "_sentencepiece_", options.vocab_size, ".model");
      tokenizer = existing_model(corpus.tokenizer_model, sources);
      if (!tokenizer) {
        train_sentencepiece(input.files, input.json_key, corpus.tokenizer_model,
                            {.vocab_size = options.vocab_size});
        corpus.prepared = true;
      }
    }
    sources.push_back(corpus.tokenizer_model);
  }
  if (!tokenizer) {
    tokenizer = make_tokenizer(options.tokenizer_type, options.tokenizer_model.empty()
                                                           ? corpus.tokenizer_model
                                                           : options.tokenizer_model);
  }
  corpus.vocab_size = tokenizer->vocab_size();
  corpus.prefix = concat(options.dataset_dir, "/", name, "_", options.tokenizer_type, "_",
                         corpus.vocab_size, "_text_document");
  if (const auto dataset = existing_dataset(corpus.prefix, sources)) {
    corpus.documents = dataset->num_documents();
    corpus.tokens = dataset->num_tokens();
    return corpus;
  }
  PrepareOptions prepare;
  prepare.input = input;
  prepare.output_prefix = corpus.prefix;
  prepare.append_eod = tokenizer->eod_id() >= 0;
  const PrepareSummary summary = prepare_dataset(prepare, *tokenizer);
  corpus.documents = summary.documents;
  corpus.tokens = summary.tokens;
  corpus.prepared = true;
  return corpus;
}

}  // namespace

std::string clean_bible(std::string_view printed) {
  std::string text;
  text.reserve(printed.size());
  const VerseCount count = clean_lines(printed, text);
  check<ValueError>(count.chapters == kBibleChapters && count.verses == kBibleVerses,
                    "bible: printed ", count.verses, " verses in ", count.chapters,
                    " chapters, expected ", kBibleVerses, " in ", kBibleChapters,
                    "; the output is incomplete");
  return text;
}

std::string run_command(const std::string& command, const std::string& advice) {
  FILE* pipe = ::popen(command.c_str(), "r");
  check<IoError>(pipe != nullptr, "\"", command, "\" cannot be started; ", advice);
  std::string output;
  char buffer[1 << 16];
  size_t got = 0;
  while ((got = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0) {
    output.append(buffer, got);
  }
  const int status = ::pclose(pipe);
  const int code = status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  constexpr int kNotFound = 127;
  check<IoError>(code != kNotFound, "\"", command, "\": the command is not installed; ", advice);
  check<IoError>(code == 0, "\"", command, "\" failed with status ", code, "; ", advice);
  return output;
}

PreparedCorpus prepare_corpus(const std::string& name,
                              const TextInput& input,
                              const CorpusOptions& options) {
  check<ValueError>(!options.dataset_dir.empty(), "dataset_dir: is empty, expected a folder");
  make_directories(options.dataset_dir);
  const DirectoryLock lock(options.dataset_dir);
  return prepare_locked(name, input, options);
}

PreparedCorpus prepare_default_text(const CorpusOptions& options) {
  check<ValueError>(!options.dataset_dir.empty(), "dataset_dir: is empty, expected a folder");
  make_directories(options.dataset_dir);
  const std::string text = options.dataset_dir + "/bible.txt";
  {
    const DirectoryLock lock(options.dataset_dir);
    if (!fs::exists(text)) {
      // Wider than the longest verse, so that no line is broken.
      const std::string printed =
          run_command("bible -l 100000 gen1:1-rev22:21 2>/dev/null",
                      "install the text with: apt-get install -y bible-kjv");
      write_file_atomically(text, clean_bible(printed));
    }
  }
  TextInput input;
  input.files = {text};
  input.split_documents = DocumentSplit::kBlankLine;
  return prepare_corpus("bible", input, options);
}

}  // namespace tapestry::data
