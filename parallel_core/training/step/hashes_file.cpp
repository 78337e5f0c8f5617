#include "parallel_core/training/step/hashes_file.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "autograd/io/file_lines.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/training/step/metrics.h"
#include "text/util/checksum.h"

namespace tapestry {

namespace {

std::string bits_of_number(double number) {
  return data::hexadecimal(std::bit_cast<uint64_t>(number));
}

// In the order of `names`.
std::string short_hashes(const TensorHashes& names, const TensorHashes& hashes) {
  std::string text;
  for (const auto& [name, unused] : names) {
    const auto found = hashes.find(name);
    text += short_hash(found == hashes.end() ? TensorHash() : found->second);
  }
  return text;
}

// The last line that names tensors.
std::string names_line_in(const std::string& path) {
  std::string found;
  FileLines lines(path);
  for (std::string line; lines.next(line);) {
    take_newline(line);
    if (line.starts_with("{\"class\":")) {
      found = line;
    }
  }
  return found;
}

}  // namespace

HashesFile::HashesFile(std::string path, std::optional<int64_t> resume_step)
    : path_(std::move(path)) {
  if (resume_step) {
    keep_steps_until(path_, *resume_step);
    if (std::ifstream(path_).is_open()) {
      names_line_ = names_line_in(path_);
    }
  }
  file_.open(path_, resume_step ? std::ios::app : std::ios::trunc);
  check<IoError>(file_.is_open(), path_, ": cannot be written; is it a folder, or the output ",
                 "folder read-only?");
}

void HashesFile::write_names(const std::string& bit_class, const TensorHashes& hashes) {
  const auto is_name = [](const auto& entry, const std::string& name) {
    return entry.first == name;
  };
  if (bit_class == written_class_ &&
      std::equal(hashes.begin(), hashes.end(), written_names_.begin(), written_names_.end(),
                 is_name)) {
    return;
  }
  written_class_ = bit_class;
  written_names_.clear();
  for (const auto& [name, hash] : hashes) {
    written_names_.push_back(name);
  }
  std::string line =
      nlohmann::ordered_json{{"class", written_class_}, {"names", written_names_}}.dump();
  if (line != names_line_) {  // of the steps before, where a run goes on
    file_ << line << '\n';
    names_line_ = std::move(line);
  }
}

void HashesFile::write(int64_t step, const std::string& bit_class, const HashesOfStep& hashes) {
  write_names(bit_class, hashes.parameters);
  nlohmann::ordered_json line;
  line["step"] = step;
  line["loss"] = bits_of_number(hashes.loss);
  line["grad_norm"] = bits_of_number(hashes.grad_norm);
  line["parameters"] = short_hashes(hashes.parameters, hashes.parameters);
  if (!hashes.gradients.empty()) {
    line["gradients"] = short_hashes(hashes.parameters, hashes.gradients);
  }
  file_ << line.dump() << '\n';
  file_.flush();
  check<IoError>(file_.good(), path_, ": cannot be written; is the disk full?");
}

}  // namespace tapestry
