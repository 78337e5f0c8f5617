// Writes a trained model, or an adapter, in the form that other programs run.
#include <boost/program_options.hpp>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "interop/export/export_source.h"
#include "interop/export/gguf_adapter.h"
#include "interop/export/gguf_export.h"
#include "interop/export/hf_export.h"
#include "interop/export/merge_adapter.h"
#include "interop/export/new_folder.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/training/checkpoints/resume.h"
#include "parallel_core/training/program.h"

namespace {

namespace po = boost::program_options;

using tapestry::concat;
using tapestry::kBadInput;
using tapestry::kFinished;
using tapestry::examples::say;

constexpr const char* kProgram = "export";

po::options_description export_options() {
  po::options_description options(
      "Usage: export --checkpoint DIR --to hf|gguf --output PATH [OPTION]...\n"
      "       export [--checkpoint BASE] --adapter DIR [--merge] --to hf|gguf --output PATH",
      tapestry::examples::help_columns());
  const auto text = [](const char* name) { return po::value<std::string>()->value_name(name); };
  options.add_options()("checkpoint", text("DIR"),
                        "a checkpoint, a folder of checkpoints or a run's folder (the latest is "
                        "taken), the folder of a Hugging Face model, or a GGUF file")(
      "adapter", text("DIR"),
      "a LoRA adapter, PEFT's folder or a run's: by itself, for PEFT (hf) or llama.cpp's --lora "
      "(gguf). Its base is --checkpoint; left out: where the adapter says")(
      "merge", po::bool_switch(), "write one model of base and adapter")(
      "resize_embeddings", po::bool_switch(),
      "give the model a row for each id that its tokenizer has beyond the rows of its table; a new "
      "row is the mean of the others")(
      "to", text("FORM"),
      "hf | gguf: a folder for the transformers library, or a file for llama.cpp")(
      "type", text("TYPE"),
      "F32 | F16 | BF16 | Q8_0: of the weights, the last one in GGUF only; left out: hf as they "
      "are "
      "stored, gguf F32")("output", text("PATH"), "the folder or file to make")(
      "name", text("NAME"), "of the model in a GGUF file; left out: the folder's")(
      "max_shard_size", po::value<uint64_t>()->default_value(5'000'000'000)->value_name("BYTES"),
      "weights of an hf folder beyond this are divided among several files")("help,h",
                                                                             "print this text");
  return options;
}

// The dtype of weights in a Hugging Face folder.
tapestry::DType dtype_of_type(const std::string& type) {
  switch (tapestry::gguf_type(type)) {
    case tapestry::GgufType::kF32:
      return tapestry::kFloat32;
    case tapestry::GgufType::kF16:
      return tapestry::kFloat16;
    case tapestry::GgufType::kBF16:
      return tapestry::kBFloat16;
    default:
      throw tapestry::ValueError(
          concat("--type ", type, ": is for --to gguf; hf has F32, F16 and BF16"));
  }
}

struct Request {
  std::string checkpoint;
  std::string adapter;
  bool to_gguf = false;
  bool resize_embeddings = false;
  std::string type;
  std::string output;
  std::string name;
  uint64_t max_shard_bytes = 0;

  tapestry::GgufType gguf() const {
    return type.empty() ? tapestry::GgufType::kF32 : tapestry::gguf_type(type);
  }
  std::optional<tapestry::DType> dtype() const {
    return type.empty() ? std::nullopt : std::optional(dtype_of_type(type));
  }
};

void export_model(const Request& request, tapestry::ExportSource source) {
  if (source.folder != request.checkpoint && !request.checkpoint.empty()) {
    say(kProgram, concat("exports ", source.folder));
  }
  tapestry::verify_weights(source.folder, /*checksums=*/true, *tapestry::single_process_group());
  if (request.resize_embeddings) {
    const int64_t added = tapestry::grow_vocabulary(source);
    say(kProgram, concat("the vocabulary has ", source.config.model_config.vocab_size, " rows, ",
                         added, " of them new"));
  }
  if (request.to_gguf) {
    for (const std::string& remark : tapestry::export_gguf(
             source, request.output, {.type = request.gguf(), .name = request.name})) {
      say(kProgram, remark);
    }
  } else {
    tapestry::export_hf(source, request.output,
                        {.dtype = request.dtype(), .max_shard_bytes = request.max_shard_bytes});
  }
}

// The folder of an adapter, its files as they were written.
std::string adapter_of(const Request& request) {
  std::string folder = tapestry::resolve_checkpoint(request.adapter);
  if (folder != request.adapter) {
    say(kProgram, concat("the adapter is ", folder));
  }
  tapestry::verify_weights(folder, /*checksums=*/true, *tapestry::single_process_group());
  return folder;
}

// The folder of the model that the adapter belongs to.
std::string base_of(const Request& request) {
  const std::string adapter = tapestry::resolve_checkpoint(request.adapter);
  std::string base = tapestry::find_adapter_base(adapter, request.checkpoint).path;
  tapestry::check<tapestry::ValueError>(
      !base.empty(), adapter,
      ": was trained beside the start values of its run, which are no model; give --checkpoint");
  return base;
}

void export_adapter(const Request& request) {
  const std::string adapter = adapter_of(request);
  if (request.to_gguf) {
    tapestry::export_gguf_adapter(tapestry::open_export_source(base_of(request)), adapter,
                                  request.output, request.gguf());
    return;
  }
  tapestry::check<tapestry::ValueError>(
      request.type.empty(), "--type ", request.type,
      ": an adapter in PEFT's form keeps its dtype; leave it out, or --merge it");
  tapestry::export_adapter_folder(adapter, request.output);
}

void merge_to(const Request& request, const std::string& output) {
  const tapestry::MergeSummary summary =
      tapestry::merge_adapter({.base = request.checkpoint,
                               .adapter = adapter_of(request),
                               .output = output,
                               .dtype = request.to_gguf ? std::nullopt : request.dtype()});
  say(kProgram, concat(summary.base, " with ", summary.modules,
                       summary.modules == 1 ? " matrix" : " matrices", " merged and ",
                       summary.replaced, " tensors replaced of ", summary.tensors));
  for (const std::string& remark : summary.remarks) {
    say(kProgram, remark);
  }
}

// A GGUF file is made of the merged model, which is a folder beside it for as long.
void export_merged(const Request& request) {
  if (!request.to_gguf) {
    merge_to(request, request.output);
    return;
  }
  namespace fs = std::filesystem;
  const tapestry::ExportSource base = tapestry::open_export_source(base_of(request));
  const tapestry::NewFolder work(request.output + ".merged");
  const std::string merged = (fs::path(work.temporary()) / "model").string();
  merge_to(request, merged);
  tapestry::ExportSource source = tapestry::open_export_source(merged);
  source.tokenizer_type = base.tokenizer_type;
  Request as_model = request;
  as_model.checkpoint.clear();
  if (as_model.name.empty()) {
    as_model.name = fs::path(base.folder).filename().string();
  }
  export_model(as_model, source);
}

int run(int argc, char** argv) {
  const po::options_description options = export_options();
  std::vector<std::string> words = tapestry::examples::words_of(argc, argv);
  if (tapestry::examples::answer_help(words, options)) {
    return kFinished;
  }
  po::variables_map arguments = tapestry::examples::parse_command_line(words, options);
  po::notify(arguments);
  const bool adapter = arguments.count("adapter") != 0;
  for (const char* needed : {"checkpoint", "to", "output"}) {
    if (arguments.count(needed) == 0 && !(adapter && needed == std::string_view("checkpoint"))) {
      say(kProgram, concat("--", needed, " is needed; see --help"));
      return kBadInput;
    }
  }
  const auto given = [&](const char* name) {
    return arguments.count(name) == 0 ? std::string() : arguments[name].as<std::string>();
  };
  const std::string to = given("to");
  tapestry::check<tapestry::ValueError>(to == "hf" || to == "gguf", "--to ", to,
                                        ": expected hf or gguf");
  const bool merge = arguments["merge"].as<bool>();
  const bool model = merge || given("adapter").empty();
  tapestry::check<tapestry::ValueError>((to == "gguf" && model) || given("name").empty(),
                                        "--name is for models and --to gguf");
  tapestry::check<tapestry::ValueError>(
      arguments["max_shard_size"].defaulted() || (to == "hf" && given("adapter").empty()),
      "--max_shard_size is for --to hf without --adapter: a merged model is divided among files as "
      "its base is");
  const Request request{.checkpoint = given("checkpoint"),
                        .adapter = given("adapter"),
                        .to_gguf = to == "gguf",
                        .resize_embeddings = arguments["resize_embeddings"].as<bool>(),
                        .type = given("type"),
                        .output = given("output"),
                        .name = given("name"),
                        .max_shard_bytes = arguments["max_shard_size"].as<uint64_t>()};
  tapestry::check<tapestry::ValueError>(!merge || !request.adapter.empty(),
                                        "--merge is for --adapter");
  tapestry::check<tapestry::ValueError>(!request.resize_embeddings || request.adapter.empty(),
                                        "--resize_embeddings is for a model: an adapter keeps the "
                                        "shapes of its base, and --merge makes a "
                                        "model that can be grown");
  if (merge) {
    export_merged(request);
  } else if (!request.adapter.empty()) {
    export_adapter(request);
  } else {
    export_model(request, tapestry::open_export_source(request.checkpoint));
  }
  say(kProgram, concat("wrote ", request.output));
  return kFinished;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    say(kProgram, tapestry::failure_message(error));
    return tapestry::exit_code_of(error);
  }
}
