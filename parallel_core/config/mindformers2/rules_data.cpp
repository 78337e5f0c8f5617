// Rules of `train_dataset`.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/mindformers2/reading.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/expand_path.h"

namespace tapestry::config::mindformers2 {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLoader = "train_dataset.dataloader";
constexpr const char* kAlpaca = "train_dataset.dataloader.handler.AlpacaInstructDataHandler";
constexpr const char* kPacking = "train_dataset.dataloader.handler.PackingHandler";
constexpr const char* kTake = "train_dataset.dataloader.handler.take.n";
constexpr const char* kPath = "train_dataset.dataloader.path";
constexpr const char* kFiles = "train_dataset.dataloader.data_files";

void check_length(Reading& r, const std::string& path) {
  if (r.given(path) && r.has_section("model") && r.integer(path) != r.integer("model.seq_length")) {
    r.error(path, concat("is ", r.text(path), ", but model.seq_length is ",
                         r.text("model.seq_length"), "; rows have one length"));
  }
}

// "1, 0, 0" without the spaces.
std::string shares(const std::string& text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out), [](char c) { return c != ' '; });
  return out;
}

// MindFormers has no key for the tokenizer of a data set, whose own record says it.
void take_tokenizer(Reading& r, const std::string& path) {
  for (const std::string& prefix : r.texts(path)) {
    std::ifstream in(prefix + ".tokenizer.json");
    if (!in) {
      continue;  // a weight, or a data set without a record
    }
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const nlohmann::json record = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    const auto type = record.is_object() ? record.find("tokenizer_type") : record.end();
    if (type != record.end() && type->is_string()) {
      r.put("dataset_config.tokenizer_type",
            scalar_node(type->get<std::string>(), r.place(path), /*quoted=*/true));
    }
    return;
  }
}

void translate_blend(Reading& r) {
  const std::string config = concat(kLoader, ".config.");
  if (!r.given(config + "data_path")) {
    r.error(config + "data_path", "is needed: prefixes of data sets, with weights before them");
  }
  take_tokenizer(r, config + "data_path");
  r.put("dataset_config.split",
        scalar_node(shares(r.text(config + "split")), r.place(config + "split"), true));
  check_length(r, config + "seq_length");
  if (r.flag(config + "create_compressed_eod_mask")) {
    r.put("dataset_config.reset_attention_mask", "True", config + "create_compressed_eod_mask");
  }
  for (const auto& [key, here] : {std::pair{"eod", "dataset_config.eos_token_id"},
                                  std::pair{"pad", "dataset_config.pad_token_id"}}) {
    if (r.given(config + key) && r.integer(config + key) >= 0) {
      r.put(here, r.text(config + key), config + key);
    }
  }
}

// The files that are named, or those of a folder of this machine.
std::vector<std::string> files_of(Reading& r) {
  if (r.given(kFiles)) {
    return r.texts(kFiles);
  }
  const std::string path = r.text(kPath);
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    return {path};
  }
  if (fs::is_directory(path, error)) {
    return {path + "/*.json*"};
  }
  if (path.empty() || path == "json") {
    r.error(kPath, "needs data_files beside it: JSONL files with the examples");
  } else {
    r.error(kPath,
            concat("'", path,
                   "' is no file or folder of this machine, and data sets of a hub are not "
                   "fetched; download it and give `path: json` with `data_files: [FILE.jsonl]`"));
  }
  return {};
}

// More examples than are to be taken would all be trained on.
void check_take(Reading& r, const std::vector<std::string>& files) {
  if (!r.given(kTake)) {
    return;
  }
  const int64_t most = r.integer(kTake);
  int64_t lines = 0;
  for (const std::string& file : files) {
    std::ifstream in(file);
    for (std::string line; lines <= most && std::getline(in, line);) {
      lines += line.find_first_not_of(" \t\r") != std::string::npos ? 1 : 0;
    }
  }
  if (lines > most) {
    r.error(kTake, concat("the files have more than ", most,
                          " examples, of which all are read; "
                          "write the first ones to a file of "
                          "their own: head -n ",
                          most, " ", files.front()));
  }
}

void translate_examples(Reading& r) {
  const std::vector<std::string> files = files_of(r);
  if (files.empty()) {
    return;
  }
  check_take(r, files);
  r.put("dataset_config.sft_data_path",
        list_node(files, r.place(r.given(kFiles) ? kFiles : kPath), true));
  if (r.given(concat(kLoader, ".shuffle"))) {
    r.put("dataset_config.shuffle", *r.find(concat(kLoader, ".shuffle")));
  } else {
    r.put("dataset_config.shuffle", "False", concat(kLoader, ".shuffle"));
  }
  check_length(r, concat(kAlpaca, ".seq_length"));
  check_length(r, concat(kPacking, ".seq_length"));
  const bool packs = r.given(concat(kPacking, ".type"));
  r.put("dataset_config.sft_packing", packs ? "True" : "False",
        concat(packs ? std::string(kPacking) : std::string(kLoader), ".type"));
  r.put("dataset_config.split", scalar_node("1,0,0", Place{kDefaultPlace}, true));
  const std::string folder = concat(kAlpaca, ".tokenizer.pretrained_model_dir");
  const std::string weights = r.text("checkpoint.load_path");
  if (r.given(folder)) {
    r.put("dataset_config.tokenizer_type", "huggingface", folder);
    r.put("dataset_config.tokenizer_model", *r.find(folder));
  } else if (!weights.empty() && fs::exists(weights + "/tokenizer.json")) {
    r.put("dataset_config.tokenizer_type", "huggingface", "checkpoint.load_path");
    r.put("dataset_config.tokenizer_model", *r.find("checkpoint.load_path"));
  }
}

// Keys of the other kind of loader say nothing.
void refuse_others(Reading& r, bool blend) {
  constexpr std::string_view kBlend = "datasets_type|sizes|config";
  constexpr std::string_view kHuggingFace =
      "load_func|path|data_files|split|handler|create_attention_mask|create_compressed_eod_mask|"
      "compressed_eod_mask_length|use_broadcast_data";
  for (const std::string& path : r.given_below(kLoader)) {
    const std::string below = path.substr(std::string_view(kLoader).size() + 1);
    const std::string name = below.substr(0, below.find('.'));
    const auto others = split_text(blend ? kHuggingFace : kBlend, '|');
    if (std::find(others.begin(), others.end(), name) != others.end()) {
      r.error(path,
              concat("belongs to ", blend ? "HFDataLoader" : "BlendedMegatronDatasetDataLoader",
                     ", and the type is another; leave it out"));
    }
  }
}

}  // namespace

void translate_data(Reading& r) {
  const std::string type = r.text(concat(kLoader, ".type"));
  if (type.empty()) {
    if (r.has_section("train_dataset") && r.errors.empty()) {
      r.error(concat(kLoader, ".type"),
              "is needed: BlendedMegatronDatasetDataLoader or HFDataLoader");
    }
    return;
  }
  const bool blend = type == "BlendedMegatronDatasetDataLoader";
  refuse_others(r, blend);
  if (blend) {
    translate_blend(r);
  } else {
    translate_examples(r);
  }
}

}  // namespace tapestry::config::mindformers2
