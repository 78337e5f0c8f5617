#include "interop/export/resized_folder.h"

#include <filesystem>

#include "autograd/tensor/error.h"
#include "interop/export/export_source.h"
#include "interop/export/hf_export.h"
#include "text/tokenizers/huggingface/tokenizer_files.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

// What stands under a name that is to be written goes under the first one that is free.
void move_aside(const std::string& path) {
  std::string to;
  for (int number = 1; to.empty() || fs::exists(to); ++number) {
    to = concat(path, ".old.", number);
  }
  fs::rename(path, to);
}

}  // namespace

std::string resized_folder_of(const std::string& output_dir) {
  return (fs::path(output_dir) / "resized_model").string();
}

int64_t ids_of_run(const AllConfig& config, const std::string& from_hf) {
  const DatasetConfig& dataset = config.dataset_config;
  if (dataset.tokenizer_model) {
    return data::make_tokenizer(
               dataset.tokenizer_type,
               data::tokenizer_file(dataset.tokenizer_type, *dataset.tokenizer_model))
        ->vocab_size();
  }
  return dataset.tokenizer_type == "byte"
             ? data::make_tokenizer(dataset.tokenizer_type, "")->vocab_size()
             : tokenizer_of_folder(from_hf)->vocab_size();
}

std::string resized_folder(const std::string& from_hf,
                           int64_t rows,
                           const std::string& output,
                           bool replaces) {
  ExportSource source = open_export_source(from_hf);
  if (add_rows(source, rows) == 0) {
    return from_hf;
  }
  if (fs::exists(output) && !fs::is_empty(output)) {
    check<ValueError>(replaces, output,
                      ": is there already; take another output_dir, or --overwrite, which moves it "
                      "aside");
    move_aside(output);
  }
  fs::create_directories(fs::path(output).parent_path());
  export_hf(source, output, {});
  return output;
}

}  // namespace tapestry
