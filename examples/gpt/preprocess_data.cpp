// Turns text into a Megatron indexed dataset; see --help.
#include <unistd.h>

#include <boost/program_options.hpp>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/data/prepare.h"
#include "parallel_core/data/sentencepiece_tokenizer.h"
#include "parallel_core/data/tokenizer.h"

namespace {

namespace po = boost::program_options;
namespace data = tapestry::data;
using tapestry::check;
using tapestry::ValueError;

constexpr int kBadInput = 2;

struct Arguments {
  data::PrepareOptions prepare;
  std::string output_prefix;
  std::string tokenizer_type;
  std::string tokenizer_model;
  std::string split_documents;
  int64_t vocab_size = 0;
  bool train_tokenizer = false;
};

po::options_description describe(Arguments& arguments) {
  po::options_description options(
      "Usage: preprocess_data --input FILE... --output_prefix PREFIX --tokenizer_type TYPE\n"
      "Writes PREFIX_text_document.idx and .bin (with --json_key KEY: PREFIX_KEY_document)");
  const auto flag = [](bool* value) { return po::bool_switch(value); };
  auto& input = arguments.prepare.input;
  options.add_options()("help,h", "print this text");
  options.add_options()("input", po::value(&input.files)->multitoken(),
                        "text files; *.json and *.jsonl hold one JSON object a line");
  options.add_options()("output_prefix", po::value(&arguments.output_prefix),
                        "path of the result without its endings");
  options.add_options()("tokenizer_type", po::value(&arguments.tokenizer_type),
                        "byte (257 ids) or sentencepiece");
  options.add_options()("tokenizer_model", po::value(&arguments.tokenizer_model),
                        "SentencePiece model; with --train_tokenizer it is written "
                        "(default PREFIX.model)");
  options.add_options()("train_tokenizer", flag(&arguments.train_tokenizer),
                        "train a SentencePiece model on the input first");
  options.add_options()("vocab_size", po::value(&arguments.vocab_size),
                        "pieces of the trained model");
  options.add_options()("json_key", po::value(&input.json_key),
                        "key of the text; every input file is then JSONL (default for *.json and "
                        "*.jsonl: text)");
  options.add_options()("split_documents",
                        po::value(&arguments.split_documents)->default_value("file"),
                        "what separates documents of a plain text file: file (none), blank_line");
  options.add_options()("append_eod", flag(&arguments.prepare.append_eod),
                        "end each document with the end-of-document id");
  return options;
}

void check_arguments(Arguments& arguments) {
  const auto& input = arguments.prepare.input;
  check<ValueError>(!input.files.empty(), "--input: is missing, expected text files");
  check<ValueError>(!arguments.output_prefix.empty(), "--output_prefix: is missing");
  check<ValueError>(!arguments.tokenizer_type.empty(),
                    "--tokenizer_type: is missing, expected byte or sentencepiece");
  check<ValueError>(
      arguments.split_documents == "file" || arguments.split_documents == "blank_line",
      "--split_documents: \"", arguments.split_documents,
      "\" is unknown, expected file or blank_line");
  if (arguments.split_documents == "blank_line") {
    arguments.prepare.input.split_documents = data::DocumentSplit::kBlankLine;
  }
  if (arguments.train_tokenizer) {
    check<ValueError>(arguments.tokenizer_type == "sentencepiece",
                      "--train_tokenizer: only --tokenizer_type sentencepiece can be trained");
    check<ValueError>(arguments.vocab_size > 0, "--vocab_size: --train_tokenizer needs it");
    if (arguments.tokenizer_model.empty()) {
      arguments.tokenizer_model = arguments.output_prefix + ".model";
    }
  } else {
    check<ValueError>(arguments.vocab_size == 0,
                      "--vocab_size: is only used together with --train_tokenizer");
    check<ValueError>(
        arguments.tokenizer_type != "sentencepiece" || !arguments.tokenizer_model.empty(),
        "--tokenizer_model: the sentencepiece tokenizer needs one, or --train_tokenizer");
  }
  const std::string key = input.json_key.empty() ? "text" : input.json_key;
  check<ValueError>(key.find('/') == std::string::npos, "--json_key: \"", key,
                    "\" becomes part of a file name and must not contain a slash");
  arguments.prepare.output_prefix = arguments.output_prefix + "_" + key + "_document";
}

// One line that is overwritten; nothing where the output is not a terminal.
void show_progress(uint64_t done, uint64_t total) {
  constexpr double kPercent = 100.0;
  std::cerr << "\rpreprocess_data: "
            << static_cast<int>(kPercent * static_cast<double>(done) / static_cast<double>(total))
            << " %" << std::flush;
  if (done == total) {
    std::cerr << "\r\033[K" << std::flush;
  }
}

void run(Arguments& arguments) {
  check_arguments(arguments);
  const auto start = std::chrono::steady_clock::now();
  const auto& input = arguments.prepare.input;
  if (arguments.train_tokenizer) {
    data::train_sentencepiece(input.files, input.json_key, arguments.tokenizer_model,
                              {.vocab_size = arguments.vocab_size});
    std::cout << "trained " << arguments.tokenizer_model << "\n";
  }
  const auto tokenizer = data::make_tokenizer(arguments.tokenizer_type, arguments.tokenizer_model);
  if (::isatty(STDERR_FILENO) != 0) {
    arguments.prepare.progress = show_progress;
  }
  const data::PrepareSummary summary = data::prepare_dataset(arguments.prepare, *tokenizer);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << "wrote " << arguments.prepare.output_prefix << ".{idx,bin} with the "
            << tokenizer->describe() << "\n"
            << summary.documents << " documents (" << summary.empty_documents << " empty), "
            << summary.tokens << " tokens, " << summary.text_bytes << " bytes of text, "
            << seconds.count() << " s\n";
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  const po::options_description options = describe(arguments);
  try {
    std::vector<std::string> words = tapestry::examples::words_of(argc, argv);
    if (tapestry::examples::take_help(words)) {
      std::cout << options;
      return 0;
    }
    po::variables_map values = tapestry::examples::parse_command_line(words, options);
    po::notify(values);
    run(arguments);
    return 0;
  } catch (const tapestry::RuntimeError& error) {
    std::cerr << "preprocess_data: " << error.what() << "\n";
    return 1;
  } catch (const tapestry::Error& error) {
    std::cerr << "preprocess_data: " << error.what() << "\n";
    return kBadInput;
  } catch (const std::exception& error) {
    std::cerr << "preprocess_data: " << error.what() << "\n";
    return 1;
  }
}
