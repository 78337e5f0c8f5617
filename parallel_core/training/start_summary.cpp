#include "parallel_core/training/start_summary.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/batch_rampup.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/data/indexed_dataset.h"
#include "parallel_core/estimates/trained_share.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/log/logging.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/tokenizer.h"
#include "text/util/numbers.h"

namespace tapestry {

namespace {

std::string model_text(const AllConfig& config, const StartFacts& facts) {
  if (!facts.own_model.empty()) {
    return facts.own_model;
  }
  const TransformerConfig& m = config.model_config;
  const MoEConfig& moe = m.moe;
  const std::string experts = moe.num_experts > 1
                                  ? concat(moe.moe_router_topk, " of ", moe.num_experts,
                                           " experts of ", moe_ffn_hidden_size(m), ", ")
                                  : std::string();
  return concat(
      with_thousands(parameter_count(m)), " parameters",
      moe.num_experts > 1 ? concat(", ", with_thousands(active_parameter_count(m)), " active")
                          : std::string(),
      ": ", m.num_layers, " layers of width ", m.hidden_size, " (MLP ", m.ffn_hidden_size, ", ",
      experts, m.num_attention_heads, " heads), ",
      m.mtp_num_layers > 0 ? concat("and ", m.mtp_num_layers, " for tokens behind the next one, ")
                           : std::string(),
      "vocabulary ", m.vocab_size, ", sequences of ", m.seq_length, " tokens");
}

// Documents and tokens of the data sets that the configuration names.
std::string data_text(const AllConfig& config, const RunData& data, const std::string& tokenizer) {
  int64_t documents = 0;
  int64_t tokens = 0;
  std::string names;
  const DatasetConfig& d = config.dataset_config;
  std::vector<std::string> entries;
  for (const auto* paths : {&d.data_path, &d.train_data_path}) {
    const std::vector<std::string> more = paths->value_or(std::vector<std::string>());
    entries.insert(entries.end(), more.begin(), more.end());
  }
  for (const std::string& entry : entries) {
    if (!std::filesystem::exists(entry + ".idx")) {
      continue;  // a weight
    }
    const data::IndexedDataset set(entry);
    documents += set.num_documents();
    tokens += set.num_tokens();
    names += (names.empty() ? "" : ", ") + entry;
  }
  if (!names.empty()) {
    return concat(names, ": ", with_thousands(documents),
                  documents == 1 ? " document, " : " documents, ", with_thousands(tokens),
                  " tokens");
  }
  std::string text = data.description;  // ends with the tokenizer, which has a line of its own
  if (!tokenizer.empty() && text.ends_with(", " + tokenizer)) {
    text.resize(text.size() - tokenizer.size() - 2);
  }
  return text;
}

std::string tokenizer_description(const AllConfig& config, const RunData& data) {
  const std::string& type = config.dataset_config.tokenizer_type;
  const bool has_no_text =
      config.dataset_config.step_data_dir || (data.opened.own && data.tokenizer_model.empty());
  if (has_no_text || (type != "byte" && data.tokenizer_model.empty())) {
    return {};
  }
  return data::make_tokenizer(type, data.tokenizer_model)->describe();
}

// A row for each rank, but for no more than a screen has room for.
std::vector<std::string> cores_rows(const std::vector<RankPlacement>& placements) {
  constexpr size_t kShown = 8;
  if (placements.size() == 1) {
    return {placements.front().describe()};
  }
  std::vector<std::string> rows = placement_lines(placements);
  if (rows.size() > kShown) {
    const size_t more = rows.size() - kShown;
    rows.resize(kShown);
    rows.push_back(concat("and ", more, more == 1 ? " rank" : " ranks", " more: see info.log"));
  }
  return rows;
}

std::string precision_text(const AllConfig& config) {
  const TransformerConfig& m = config.model_config;
  const OptimizerConfig& o = config.optimizer_config;
  std::string text = concat("computes in ", name_of(m.compute_dtype), "; parameters ",
                            name_of(m.params_dtype), ", gradients ", name_of(o.main_grads_dtype));
  const bool adam = o.optimizer_type == "AdamW" || o.optimizer_type == "Adam";
  if (adam || o.optimizer_type == "Lion") {
    text += concat(", moments ", name_of(o.exp_avg_dtype),
                   !adam || o.exp_avg_sq_dtype == o.exp_avg_dtype
                       ? std::string()
                       : concat(" and ", name_of(o.exp_avg_sq_dtype)));
  }
  return text;
}

std::string memory_text(const AllConfig& config, const StartFacts& facts) {
  const std::string there =
      concat(size_text(facts.available), " available",
             facts.ranks_on_host > 1 ? concat(" to each of ", facts.ranks_on_host, " ranks here")
                                     : std::string());
  if (!facts.own_model.empty()) {
    return concat(there, "; what the model needs shows after the first step");
  }
  const MemoryEstimate estimate = estimate_memory(config, get_data_parallel_world_size());
  return concat("about ", size_text(estimate.peak()), " needed",
                facts.ranks > 1 ? " by a rank" : "", ", ", there);
}

std::string length_text(const AllConfig& config) {
  const int64_t ranks = get_data_parallel_world_size();
  const int64_t steps = total_training_iters(config, ranks);
  const BatchSchedule batches(config, ranks);
  const int64_t length = config.model_config.seq_length;
  const std::string step =
      concat(batches.ramps() ? concat(with_thousands(batches.batch_at(0) * length), " to ")
                             : std::string(),
             with_thousands(batches.full() * length), " tokens a step");
  if (steps == 0) {
    return concat(*config.training_config.epochs, " epochs, ", step);
  }
  return concat(with_thousands(steps), " steps, ", step, ", ",
                with_thousands(batches.consumed_after(steps) * length), " in all");
}

}  // namespace

std::string start_summary(const AllConfig& config, const RunData& data, const StartFacts& facts) {
  std::string text;
  const auto add = [&](const std::string& label, const std::string& row) {
    text += concat(text.empty() ? "" : "\n", summary_row(label, row));
  };
  const std::string tokenizer = tokenizer_description(config, data);
  const std::string& output = config.training_config.output_dir;
  add("model", model_text(config, facts));
  if (config.model_config.lora.use_lora) {
    add("trained", trained_share_text(config.model_config));
  }
  add("data", data_text(config, data, tokenizer));
  add("tokenizer",
      tokenizer.empty() ? "none found beside the data: needed for texts alone" : tokenizer);
  add("layout", concat(layout_line(config.parallel_config, get_data_parallel_world_size()),
                       facts.ranks > 1 ? concat(" on ", facts.ranks, " ranks") : std::string()));
  add("machine", concat(num_threads(), num_threads() == 1 ? " thread" : " threads",
                        facts.ranks > 1 ? " a rank" : "", ", ", name_of(cpu_level()),
                        facts.progress_text.empty() ? "" : "; ", facts.progress_text));
  for (const std::string& row : cores_rows(facts.placements)) {
    add(text.find("\ncores") == std::string::npos ? "cores" : "", row);
  }
  add("precision", precision_text(config));
  add("memory", memory_text(config, facts));
  add("length", length_text(config));
  if (!facts.time.empty()) {
    add("time", facts.time);
  }
  add("files", concat("in ", output, ": log/rank_0/info.log, metrics.jsonl, config.yaml"));
  for (const auto& [section, keys] : changed_keys(config)) {
    add(text.find("\nchanged") == std::string::npos ? "changed" : "", concat(section, ": ", keys));
  }
  return text;
}

}  // namespace tapestry
