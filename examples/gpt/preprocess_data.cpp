// Turns text into a Megatron indexed dataset; see --help.
#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/data/prepare.h"
#include "parallel_core/training/log/terminal.h"
#include "parallel_core/training/program.h"
#include "text/sources/text_files.h"
#include "text/tokenizers/kinds/character_tokenizer.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/kinds/sentencepiece_tokenizer.h"
#include "text/tokenizers/tokenizer.h"
#include "text/util/file.h"

namespace {

namespace po = boost::program_options;
namespace data = tapestry::data;
using tapestry::check;
using tapestry::concat;
using tapestry::ValueError;
using tapestry::examples::print_wrapped;

struct Arguments {
  data::PrepareOptions prepare;
  std::string output_prefix;
  std::string tokenizer_type;
  std::string tokenizer_model;
  std::string split_documents;
  int64_t vocab_size = 0;
  double character_coverage = 0;
  bool grow_vocab = false;
  bool skip_bad_lines = false;
  bool train_tokenizer = false;
};

po::options_description describe(Arguments& arguments) {
  const std::string caption = tapestry::fit_to_terminal(
      tapestry::OutputStream::kOut,
      "Usage: preprocess_data --input FILE... --output_prefix PREFIX --tokenizer_type TYPE\n"
      "Writes PREFIX_text_document.idx and .bin (with --json_key KEY: PREFIX_KEY_document), and\n"
      "beside them which bytes of which file each document is: .sources.json, .sources.npy");
  po::options_description options(caption, tapestry::examples::help_columns());
  const auto flag = [](bool* value) { return po::bool_switch(value); };
  auto& input = arguments.prepare.input;
  options.add_options()("help,h", "print this text");
  options.add_options()("input", po::value(&input.files)->multitoken()->value_name("FILE..."),
                        "text files, folders of them, or patterns such as 'corpus/*.txt'; *.jsonl, "
                        "*.ndjson, *.jl and *.json hold one JSON object a line");
  options.add_options()("output_prefix", po::value(&arguments.output_prefix)->value_name("PREFIX"),
                        "path of the result without its endings");
  options.add_options()(
      "tokenizer_type", po::value(&arguments.tokenizer_type)->value_name("TYPE"),
      "byte | sentencepiece | character | huggingface: 257 ids, pieces of words, one id for each "
      "character of the text, or a tokenizer.json (or vocab.json with merges.txt)");
  options.add_options()("tokenizer_model",
                        po::value(&arguments.tokenizer_model)->value_name("FILE"),
                        "file of the tokenizer, for huggingface also the folder of a model; with "
                        "--train_tokenizer it is written (default PREFIX.model)");
  options.add_options()("train_tokenizer", flag(&arguments.train_tokenizer),
                        "make the tokenizer, sentencepiece or character, of the input first");
  options.add_options()("vocab_size", po::value(&arguments.vocab_size)->value_name("N"),
                        "pieces of the SentencePiece model that is trained");
  options.add_options()("grow_vocab", flag(&arguments.grow_vocab),
                        "raise --vocab_size where the characters of the text do not fit");
  options.add_options()("character_coverage",
                        po::value(&arguments.character_coverage)->value_name("X"),
                        "share of the text whose characters get a piece of their own, the others "
                        "are encoded as bytes (default 0.9995, or what --vocab_size has room for)");
  options.add_options()("json_key", po::value(&input.json_key)->value_name("KEY"),
                        "key of the text; every input file is then JSONL (default for *.jsonl "
                        "and its like: text)");
  options.add_options()("skip_bad_lines", flag(&arguments.skip_bad_lines),
                        "leave out lines of JSONL that cannot be read, and list them");
  options.add_options()(
      "split_documents",
      po::value(&arguments.split_documents)->default_value("file")->value_name("WHERE"),
      "file | blank_line: where a document of a plain text file ends");
  options.add_options()("append_eod", flag(&arguments.prepare.append_eod),
                        "end each document with the end-of-document id");
  return options;
}

void check_arguments(Arguments& arguments) {
  auto& input = arguments.prepare.input;
  check<ValueError>(!input.files.empty(), "--input: is missing, expected text files");
  check<ValueError>(!arguments.output_prefix.empty(), "--output_prefix: is missing");
  check<ValueError>(!arguments.tokenizer_type.empty(),
                    concat("--tokenizer_type: is missing, expected ", data::kTokenizerTypes));
  check<ValueError>(
      arguments.split_documents == "file" || arguments.split_documents == "blank_line",
      "--split_documents: \"", arguments.split_documents,
      "\" is unknown, expected file or blank_line");
  if (arguments.split_documents == "blank_line") {
    arguments.prepare.input.split_documents = data::DocumentSplit::kBlankLine;
  }
  const std::string& type = arguments.tokenizer_type;
  const bool trains_pieces = arguments.train_tokenizer && type == "sentencepiece";
  if (arguments.train_tokenizer) {
    check<ValueError>(type == "sentencepiece" || type == "character",
                      "--train_tokenizer: only --tokenizer_type sentencepiece and character have "
                      "something to learn from a text");
    check<ValueError>(arguments.vocab_size > 0 || !trains_pieces,
                      "--vocab_size: --train_tokenizer needs it");
    if (arguments.tokenizer_model.empty()) {
      arguments.tokenizer_model = arguments.output_prefix + ".model";
    }
  } else {
    check<ValueError>(
        type == "byte" || !arguments.tokenizer_model.empty() || !data::is_tokenizer_type(type),
        "--tokenizer_model: the ", type, " tokenizer needs one",
        type == "huggingface" ? "" : ", or --train_tokenizer");
  }
  for (const auto& [given, option] :
       {std::pair{arguments.vocab_size != 0, "--vocab_size"},
        std::pair{arguments.grow_vocab, "--grow_vocab"},
        std::pair{arguments.character_coverage != 0, "--character_coverage"}}) {
    check<ValueError>(!given || trains_pieces, option,
                      ": is only used together with --train_tokenizer and --tokenizer_type "
                      "sentencepiece");
  }
  input.files = data::text_files(input.files, "--input",
                                 {arguments.output_prefix + "_", arguments.output_prefix + "."});
  const bool has_lines = !input.json_key.empty() ||
                         std::any_of(input.files.begin(), input.files.end(), [](const auto& file) {
                           return data::is_json_lines_name(file);
                         });
  check<ValueError>(!arguments.skip_bad_lines || has_lines,
                    "--skip_bad_lines: no input file is JSONL by its name, and there is no "
                    "--json_key");
  const std::string key = input.json_key.empty() ? "text" : input.json_key;
  check<ValueError>(key.find('/') == std::string::npos, "--json_key: \"", key,
                    "\" becomes part of a file name and must not contain a slash");
  arguments.prepare.output_prefix = arguments.output_prefix + "_" + key + "_document";
}

constexpr auto kError = tapestry::OutputStream::kError;

// One line that is overwritten; nothing where the output is not a terminal.
bool g_progress_shown = false;

void hide_progress() {
  if (std::exchange(g_progress_shown, false)) {
    std::cerr << tapestry::kClearLine << std::flush;
  }
}

void show_progress(uint64_t done, uint64_t total) {
  constexpr double kPercent = 100.0;
  std::cerr << "\rpreprocess_data: "
            << static_cast<int>(kPercent * static_cast<double>(done) / static_cast<double>(total))
            << " %" << std::flush;
  g_progress_shown = true;
  if (done == total) {
    hide_progress();
  }
}

// What training says of itself: over the line of progress, or as a line where there is no terminal.
void show_work(const std::string& message) {
  if (tapestry::is_terminal(kError) && tapestry::in_foreground(kError)) {
    std::cerr << tapestry::kClearLine << "preprocess_data: " << message << std::flush;
    g_progress_shown = true;
  } else {
    std::cerr << "preprocess_data: " << message << std::endl;
  }
}

void note(const std::string& remark) { print_wrapped(concat("note: ", remark, "\n")); }

// Where PREFIX_... is written.
std::string output_folder(const Arguments& arguments) {
  const auto folder = std::filesystem::path(arguments.output_prefix).parent_path();
  return folder.empty() ? "." : folder.string();
}

void run(Arguments& arguments) {
  check_arguments(arguments);
  const auto start = std::chrono::steady_clock::now();
  data::TextInput& input = arguments.prepare.input;
  for (const std::string& remark :
       data::check_text_files(input.files, /*json_lines=*/!input.json_key.empty())) {
    note(remark);
  }
  const std::string name = std::filesystem::path(arguments.output_prefix).filename().string();
  for (const std::string& remark :
       data::remove_stale_temporaries(output_folder(arguments), name + "_")) {
    note(remark);
  }
  data::BadLines bad;
  if (arguments.skip_bad_lines) {
    input.on_bad_line = [](const std::string&) {};  // training a tokenizer reads them first
  }
  if (arguments.train_tokenizer && arguments.tokenizer_type == "character") {
    data::train_character_tokenizer(input, arguments.tokenizer_model);
  } else if (arguments.train_tokenizer) {
    data::SentencePieceTrainingOptions training{.vocab_size = arguments.vocab_size,
                                                .grow_vocab = arguments.grow_vocab,
                                                .report = show_work};
    if (arguments.character_coverage != 0) {
      training.character_coverage = arguments.character_coverage;
    }
    const std::vector<std::string> remarks =
        data::train_sentencepiece(input, arguments.tokenizer_model, training);
    hide_progress();
    for (const std::string& remark : remarks) {
      note(remark);
    }
  }
  if (arguments.train_tokenizer) {
    print_wrapped(concat("trained ", arguments.tokenizer_model, "\n"));
  }
  arguments.prepare.tokenizer_model =
      data::tokenizer_file(arguments.tokenizer_type, arguments.tokenizer_model);
  const auto tokenizer = data::make_tokenizer(arguments.tokenizer_type, arguments.tokenizer_model);
  if (arguments.skip_bad_lines) {
    input.on_bad_line = [&bad](const std::string& message) { bad.add(message); };
  }
  if (tapestry::is_terminal(kError) && tapestry::in_foreground(kError)) {
    arguments.prepare.progress = show_progress;
  }
  const data::PrepareSummary summary = data::prepare_dataset(arguments.prepare, *tokenizer);
  if (bad.count > 0) {
    note(bad.text());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  print_wrapped(concat("wrote ", arguments.prepare.output_prefix, ".{idx,bin} with the ",
                       tokenizer->describe(), "\n", summary.documents,
                       summary.documents == 1 ? " document (" : " documents (",
                       summary.empty_documents, " empty), ", summary.tokens, " tokens, ",
                       summary.text_bytes, " bytes of text, ", seconds.count(), " s\n"));
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  const po::options_description options = describe(arguments);
  tapestry::name_signals("preprocess_data");
  try {
    std::vector<std::string> words = tapestry::examples::words_of(argc, argv);
    if (tapestry::examples::answer_help(words, options)) {
      return tapestry::kFinished;
    }
    po::variables_map values = tapestry::examples::parse_command_line(words, options);
    po::notify(values);
    run(arguments);
    return tapestry::kFinished;
  } catch (const std::exception& error) {
    hide_progress();
    tapestry::examples::say("preprocess_data", tapestry::failure_message(error));
    return tapestry::exit_code_of(error);
  }
}
