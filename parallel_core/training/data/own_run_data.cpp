#include "parallel_core/training/data/own_run_data.h"

#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/register.h"
#include "parallel_core/training/data/take_up_data.h"

namespace tapestry {

namespace {

// A key that names data, where there are the program's own.
std::string named_data(const DatasetConfig& d) {
  return d.data_path         ? "data_path"
         : d.train_data_path ? "train_data_path"
         : d.text            ? "text"
         : d.sft_data_path   ? "sft_data_path"
         : d.step_data_dir   ? "step_data_dir"
         : d.data_source     ? "data_source"
                             : "";
}

void check_part(const AllConfig& config, const data::DataSource& source, const char* part) {
  const int64_t batch = internal::batch_of(config);
  check<ValueError>(source.seq_length() == config.model_config.seq_length, "the ", part,
                    " data of the program have rows of ", source.seq_length(),
                    " tokens, model_config.seq_length is ", config.model_config.seq_length);
  check<ValueError>(source.size_in_samples() >= batch, "the ", part, " data of the program hold ",
                    source.size_in_samples(), " samples, one global batch needs ", batch);
}

// "NAME {option: value, ...}"
std::string named_with_options(const DatasetConfig& d) {
  const auto& options = d.data_source_kwargs.values;
  return concat(*d.data_source, " ",
                config::to_yaml(config::Value(config::Value::Map(options.begin(), options.end()))));
}

RunData open_provided(const AllConfig& config,
                      const DataProvider& provider,
                      ProcessGroup& world,
                      const DataState* resumed) {
  OwnData made = provider(config, {.rank = world.rank(),
                                   .ranks = world.size(),
                                   .data_parallel_rank = get_data_parallel_rank(),
                                   .data_parallel_size = get_data_parallel_world_size()});
  check<ValueError>(made.train != nullptr, "the program's data have no part for training");
  check<ValueError>(made.validation != nullptr || !config.training_config.eval_interval,
                    "training_config.eval_interval is set, but the program's data have no part "
                    "for validation; give them one, or set eval_interval to null");
  check_part(config, *made.train, "training");
  for (const auto& [part, source] :
       {std::pair{"validation", made.validation.get()}, std::pair{"test", made.test.get()}}) {
    if (source != nullptr) {
      check_part(config, *source, part);
    }
  }
  for (const std::string& other : all_gather_text(world, made.fingerprint)) {
    check<ValueError>(other == made.fingerprint, "the program's data have the fingerprint '",
                      made.fingerprint, "' on one rank and '", other,
                      "' on another; all ranks read the same data");
  }
  RunData run;
  run.opened.seq_length = made.train->seq_length();
  run.opened.own = OwnDataState{.fingerprint = made.fingerprint};
  internal::take_up(config, resumed, DataUse::kTraining, run.opened, run);
  run.start = run.opened.position;
  run.train = std::move(made.train);
  run.validation = config.training_config.eval_interval ? std::move(made.validation) : nullptr;
  run.test = std::move(made.test);
  run.description = std::move(made.description);
  run.tokenizer_model = std::move(made.tokenizer_model);
  return run;
}

}  // namespace

RunData open_own_data(const AllConfig& config,
                      const DataProvider& provider,
                      ProcessGroup& world,
                      const DataState* resumed) {
  const std::string named = named_data(config.dataset_config);
  check<ValueError>(named.empty(), "dataset_config.", named,
                    " names data, but this program has data of its own; leave the key out");
  return open_provided(config, provider, world, resumed);
}

RunData open_registered_data(const AllConfig& config,
                             ProcessGroup& world,
                             const DataState* resumed) {
  const DatasetConfig& d = config.dataset_config;
  const DataProvider provider = ModuleRegistry::get_item<ModuleType::kDataset>(*d.data_source);
  const auto named = [&](const AllConfig& of, const DataRank& rank) {
    OwnData made = provider(of, rank);
    made.description = named_with_options(d);
    made.fingerprint =
        concat(made.description, made.fingerprint.empty() ? "" : ", ", made.fingerprint);
    return made;
  };
  return open_provided(config, named, world, resumed);
}

}  // namespace tapestry
