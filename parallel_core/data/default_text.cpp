#include "parallel_core/data/default_text.h"

#include <sys/wait.h>

#include <cctype>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "parallel_core/data/indexed_dataset.h"
#include "parallel_core/data/prepare.h"
#include "text/sources/text_files.h"
#include "text/tokenizers/kinds/character_tokenizer.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/kinds/sentencepiece_tokenizer.h"
#include "text/tokenizers/tokenizer_record.h"
#include "text/util/checksum.h"
#include "text/util/file.h"

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

// The dataset if it is there, whole, newer than what it was made of, and made with the tokenizer.
std::optional<IndexedDataset> existing_dataset(const std::string& prefix,
                                               const std::vector<std::string>& sources,
                                               const Tokenizer& tokenizer) {
  if (!is_newer(prefix + ".idx", sources)) {
    return std::nullopt;
  }
  try {
    const auto record = read_tokenizer_record(prefix);
    if (!record || !(record->tokenizer == tokenizer.identity())) {
      return std::nullopt;
    }
    return std::optional<IndexedDataset>(std::in_place, prefix);
  } catch (const IoError&) {
    return std::nullopt;  // damaged: it is made anew
  }
}

std::unique_ptr<Tokenizer> existing_tokenizer(const std::string& type,
                                              const std::string& model,
                                              const std::vector<std::string>& sources) {
  if (!is_newer(model, sources)) {
    return nullptr;
  }
  try {
    return make_tokenizer(type, model);
  } catch (const IoError&) {
    return nullptr;
  }
}

// Whether the tokenizer is made of the text.
bool makes_tokenizer(const CorpusOptions& options) {
  return options.tokenizer_type != "byte" && options.tokenizer_model.empty();
}

// Where it lies then.
std::string made_model_path(const std::string& name, const CorpusOptions& options) {
  const std::string& type = options.tokenizer_type;
  return concat(
      options.dataset_dir, "/", name, "_", type,
      type == "sentencepiece" ? concat("_", options.vocab_size) : std::string(),
      options.character_coverage ? concat("_", *options.character_coverage) : std::string(),
      ".model");
}

std::string corpus_prefix(const std::string& name,
                          const CorpusOptions& options,
                          const Tokenizer& tokenizer) {
  // Of one size there are several.
  constexpr size_t kDigits = 8;
  const std::string which = options.tokenizer_type == "huggingface"
                                ? "_" + tokenizer.identity().checksum.substr(0, kDigits)
                                : std::string();
  return concat(options.dataset_dir, "/", name, "_", options.tokenizer_type, "_",
                tokenizer.vocab_size(), which, "_text_document");
}

std::vector<std::string> files_of(const std::vector<std::string>& entries,
                                  const CorpusOptions& options) {
  std::vector<std::string> without = options.without;
  without.push_back(options.dataset_dir + "/");
  return text_files(entries, "dataset_config.text", without);
}

// Under which a corpus of such files is kept.
std::string name_of_text(const std::vector<std::string>& files, const CorpusOptions& options) {
  std::string paths = options.skip_bad_lines ? "without bad lines\n" : "";
  for (const std::string& file : files) {
    paths += fs::absolute(file).lexically_normal().string() + "\n";
  }
  constexpr size_t kDigits = 8;
  return concat(fs::path(files.front()).stem().string(), "_", crc64(paths).substr(0, kDigits));
}

// The tokenizer of the text, which is made where it is not there yet.
std::unique_ptr<Tokenizer> tokenizer_of(const std::string& name,
                                        const TextInput& input,
                                        const CorpusOptions& options,
                                        PreparedCorpus& corpus) {
  const std::string& type = options.tokenizer_type;
  if (!makes_tokenizer(options)) {
    corpus.tokenizer_model = tokenizer_file(type, options.tokenizer_model);
    return make_tokenizer(type, options.tokenizer_model);
  }
  check<ValueError>(is_tokenizer_type(type), "tokenizer_type: \"", type, "\" is unknown, expected ",
                    kTokenizerTypes);
  check<ValueError>(type != "huggingface",
                    "tokenizer_model: the huggingface tokenizer is not made of a text; name a "
                    "tokenizer.json, or the folder of a model");
  corpus.tokenizer_model = made_model_path(name, options);
  if (auto tokenizer = existing_tokenizer(type, corpus.tokenizer_model, input.files)) {
    return tokenizer;
  }
  corpus.prepared = true;
  if (type == "character") {
    train_character_tokenizer(input, corpus.tokenizer_model);
  } else {
    corpus.remarks = train_sentencepiece(input, corpus.tokenizer_model,
                                         {.vocab_size = options.vocab_size,
                                          .character_coverage = options.character_coverage,
                                          .report = options.report});
  }
  return make_tokenizer(type, corpus.tokenizer_model);
}

// Says how far the encoding is, every ten seconds.
ReadProgress slow_progress(const WorkReport& report) {
  if (!report) {
    return nullptr;
  }
  const auto start = std::chrono::steady_clock::now();
  return [report, start, last = start](uint64_t done, uint64_t total) mutable {
    constexpr std::chrono::seconds kInterval(10);
    constexpr uint64_t kPercent = 100;
    const auto now = std::chrono::steady_clock::now();
    if (done == total && now - start >= kInterval) {
      report("turned text into tokens; they go to the disk now");
    } else if (now - last >= kInterval) {
      last = now;
      report(concat("turning text into tokens: ", kPercent * done / total, " %"));
    }
  };
}

PreparedCorpus prepare_locked(const std::string& name,
                              TextInput input,
                              const CorpusOptions& options) {
  PreparedCorpus corpus;
  std::vector<std::string> about_files = remove_stale_temporaries(options.dataset_dir);
  for (const std::string& remark : check_text_files(input.files)) {
    about_files.push_back(remark);
  }
  if (options.skip_bad_lines) {
    input.on_bad_line = [](const std::string&) {};
  }
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(name, input, options, corpus);
  corpus.remarks.insert(corpus.remarks.begin(), about_files.begin(), about_files.end());
  std::vector<std::string> sources = input.files;
  if (!corpus.tokenizer_model.empty()) {
    sources.push_back(corpus.tokenizer_model);
  }
  corpus.vocab_size = tokenizer->vocab_size();
  corpus.prefix = corpus_prefix(name, options, *tokenizer);
  if (const auto dataset = existing_dataset(corpus.prefix, sources, *tokenizer)) {
    corpus.documents = dataset->num_documents();
    corpus.tokens = dataset->num_tokens();
    return corpus;
  }
  BadLines bad;
  if (options.skip_bad_lines) {
    input.on_bad_line = [&bad](const std::string& message) { bad.add(message); };
  }
  PrepareOptions prepare;
  prepare.progress = slow_progress(options.report);
  prepare.input = input;
  prepare.output_prefix = corpus.prefix;
  prepare.tokenizer_model = corpus.tokenizer_model;
  prepare.append_eod = tokenizer->eod_id() >= 0;
  const PrepareSummary summary = prepare_dataset(prepare, *tokenizer);
  corpus.documents = summary.documents;
  corpus.tokens = summary.tokens;
  corpus.prepared = true;
  if (bad.count > 0) {
    corpus.remarks.push_back(bad.text());
  }
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
  constexpr int kSignal = 128;  // what a shell adds to a signal that has ended its command
  const int signal = status >= 0 && WIFSIGNALED(status) ? WTERMSIG(status) : code - kSignal;
  check<RuntimeError>(signal <= 0, "\"", command, "\" was ended by signal ", signal);
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

PreparedCorpus prepare_text(const std::vector<std::string>& entries, const CorpusOptions& options) {
  check<ValueError>(!entries.empty(), "text: no file is given");
  const std::vector<std::string> files = files_of(entries, options);
  check_text_files(files);  // before a folder is made
  return prepare_corpus(name_of_text(files, options), {files}, options);
}

bool text_is_prepared(const std::vector<std::string>& entries, const CorpusOptions& options) {
  const std::vector<std::string> files = files_of(entries, options);
  const std::string name = name_of_text(files, options);
  std::vector<std::string> sources = files;
  std::unique_ptr<Tokenizer> tokenizer;
  if (makes_tokenizer(options)) {
    sources.push_back(made_model_path(name, options));
    tokenizer = existing_tokenizer(options.tokenizer_type, sources.back(), files);
  } else {
    tokenizer = make_tokenizer(options.tokenizer_type, options.tokenizer_model);
    if (!options.tokenizer_model.empty()) {
      sources.push_back(tokenizer_file(options.tokenizer_type, options.tokenizer_model));
    }
  }
  return tokenizer &&
         existing_dataset(corpus_prefix(name, options, *tokenizer), sources, *tokenizer);
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
