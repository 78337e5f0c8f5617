// Writes a trained model, or an adapter, in the form that other programs run.
#include <boost/program_options.hpp>
#include <exception>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/dist_checkpointing/manifest.h"
#include "parallel_core/export/export_source.h"
#include "parallel_core/export/gguf_export.h"
#include "parallel_core/export/hf_export.h"
#include "parallel_core/export/merge_adapter.h"
#include "parallel_core/training/program.h"
#include "parallel_core/training/resume.h"

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
      "       export [--checkpoint BASE] --adapter DIR --merge --to hf --output DIR [--type TYPE]",
      tapestry::examples::help_columns());
  const auto text = [](const char* name) { return po::value<std::string>()->value_name(name); };
  options.add_options()("checkpoint", text("DIR"),
                        "a checkpoint, a folder of checkpoints or a run's folder (the latest is "
                        "taken), or the folder of a Hugging Face model")(
      "adapter", text("DIR"),
      "the folder of a PEFT adapter, or a checkpoint of a run with LoRA; its base is the folder of "
      "--checkpoint, left out: where the adapter says")(
      "merge", "write one model of base and adapter, a folder like the base's")(
      "to", text("FORM"), "hf: a folder for the transformers library; gguf: a file for llama.cpp")(
      "type", text("TYPE"),
      "of the weights: F32, F16, BF16 or, in GGUF, Q8_0; left out: hf as they are stored, gguf "
      "F32")("output", text("PATH"), "the folder or file to make")(
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

// An adapter, as it is or merged with its base.
int export_adapter(const std::string& base,
                   const std::string& adapter,
                   const std::string& to,
                   const std::string& type,
                   const std::string& output,
                   bool merge) {
  tapestry::check<tapestry::ValueError>(
      to == "hf",
      "--adapter: a GGUF file is made of one model; merge the adapter first (--merge "
      "--to hf), and export the folder that this makes");
  const std::string folder = tapestry::resolve_checkpoint(adapter);
  if (folder != adapter) {
    say(kProgram, concat("the adapter is ", folder));
  }
  tapestry::verify_weights(folder, /*checksums=*/true, *tapestry::single_process_group());
  if (!merge) {
    tapestry::check<tapestry::ValueError>(type.empty(),
                                          "--type: an adapter is exported as it is stored");
    tapestry::export_adapter_folder(folder, output);
    say(kProgram, concat("wrote ", output));
    return kFinished;
  }
  tapestry::MergeOptions options{.base = base, .adapter = folder, .output = output};
  if (!type.empty()) {
    options.dtype = dtype_of_type(type);
  }
  const tapestry::MergeSummary summary = tapestry::merge_adapter(options);
  for (const std::string& remark : summary.remarks) {
    say(kProgram, remark);
  }
  say(kProgram, concat("wrote ", output, ": ", summary.base, " with ", summary.modules,
                       summary.modules == 1 ? " matrix" : " matrices", " merged and ",
                       summary.replaced, " tensors replaced of ", summary.tensors));
  return kFinished;
}

int run(int argc, char** argv) {
  const po::options_description options = export_options();
  std::vector<std::string> words = tapestry::examples::words_of(argc, argv);
  if (tapestry::examples::take_help(words)) {
    std::ostringstream text;
    text << options;
    tapestry::print_result(text.str());
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
  tapestry::check<tapestry::ValueError>(to == "gguf" || given("name").empty(),
                                        "--name is for --to gguf");
  const std::string type = given("type");
  const std::string output = given("output");
  tapestry::check<tapestry::ValueError>(adapter || arguments.count("merge") == 0,
                                        "--merge is for --adapter");
  if (adapter) {
    return export_adapter(given("checkpoint"), given("adapter"), to, type, output,
                          arguments.count("merge") != 0);
  }
  const tapestry::ExportSource source = tapestry::open_export_source(given("checkpoint"));
  if (source.folder != given("checkpoint")) {
    say(kProgram, concat("exports ", source.folder));
  }
  tapestry::verify_weights(source.folder, /*checksums=*/true, *tapestry::single_process_group());
  if (to == "gguf") {
    tapestry::GgufOptions gguf;
    gguf.name = given("name");
    gguf.type = type.empty() ? tapestry::GgufType::kF32 : tapestry::gguf_type(type);
    for (const std::string& remark : tapestry::export_gguf(source, output, gguf)) {
      say(kProgram, remark);
    }
  } else {
    tapestry::HfExportOptions hf;
    hf.max_shard_bytes = arguments["max_shard_size"].as<uint64_t>();
    if (!type.empty()) {
      hf.dtype = dtype_of_type(type);
    }
    tapestry::export_hf(source, output, hf);
  }
  say(kProgram, concat("wrote ", output));
  return kFinished;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    say(kProgram, error.what());
    return tapestry::exit_code_of(error);
  }
}
