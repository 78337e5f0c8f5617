#include "parallel_core/config/mindformers2/keys.h"

#include <algorithm>
#include <iterator>

#include "autograd/tensor/error.h"

namespace tapestry::config::mindformers2 {
namespace {

constexpr SectionRow kSections[] = {
    {"checkpoint", "Saving, and what a run starts from or goes on with."},
    {"training", "Length, batches, clipping, seed."},
    {"parallelism", "How ranks share model and data."},
    {"optimizer", "The optimizer."},
    {"lr_scheduler", "The learning rate."},
    {"train_dataset", "The data."},
    {"model", "The model, by the names of Hugging Face."},
    {"monitor", "What is measured beside the loss."},
    {"context", "The machine."},
    {"profiler", "A profile of some steps."},
    {"recompute", "What backward passes compute again."},
    {"recompute_comm", "Communication that is repeated."},
    {"swap", "Activations in another memory."},
    {"callbacks", "A list of mappings, each with a `type`."},
    {"lora_config", "Low-rank fine-tuning; null, or left out: none."},
    {"eval_dataset", "Data that MindFormers 2.0 reads and does not use."},
};

}  // namespace

std::span<const SectionRow> sections() { return kSections; }

const std::vector<Row>& rows() {
  static const std::vector<Row> all = [] {
    std::vector<Row> out;
    for (const auto part : {training_rows(), parallel_rows(), data_rows(), model_rows(),
                            expert_rows(), watch_rows()}) {
      out.insert(out.end(), part.begin(), part.end());
    }
    const auto place = [](const Row& row) {
      return std::find_if(std::begin(kSections), std::end(kSections),
                          [&](const SectionRow& section) { return section.name == row.section; }) -
             std::begin(kSections);
    };
    std::stable_sort(out.begin(), out.end(),
                     [&](const Row& a, const Row& b) { return place(a) < place(b); });
    return out;
  }();
  return all;
}

std::string path_of(const Row& row) {
  return row.key.empty() ? std::string(row.section) : concat(row.section, ".", row.key);
}

const Row* find_row(std::string_view path) {
  const Row* found = nullptr;
  for (const Row& row : rows()) {
    const std::string own = path_of(row);
    if (own == path) {
      return &row;
    }
    if (own.ends_with('*') && path.starts_with(std::string_view(own).substr(0, own.size() - 1))) {
      found = &row;
    }
  }
  return found;
}

bool has_rows_below(std::string_view path) {
  const std::string prefix = concat(path, ".");
  return std::any_of(rows().begin(), rows().end(),
                     [&](const Row& row) { return path_of(row).starts_with(prefix); });
}

}  // namespace tapestry::config::mindformers2
