#include "parallel_core/training/data/own_run_data.h"

#include <memory>
#include <string>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/register.h"
#include "parallel_core/training/data/take_up_data.h"

namespace tapestry::internal {

namespace {

// "name {option: value, ...}"
std::string own_data_name(const DatasetConfig& d) {
  const auto& options = d.data_source_kwargs.values;
  return concat(*d.data_source, " ",
                config::to_yaml(config::Value(config::Value::Map(options.begin(), options.end()))));
}

}  // namespace

RunData open_own(const AllConfig& config, DataUse use, const DataState* resumed) {
  const DatasetConfig& d = config.dataset_config;
  const DataSourceFactory make = ModuleRegistry::get_item<ModuleType::kDataset>(*d.data_source);
  RunData run;
  run.description = own_data_name(d);
  run.tokenizer_model = d.tokenizer_model.value_or("");
  run.opened.seq_length = config.model_config.seq_length;
  run.opened.own = run.description;
  take_up(config, resumed, use, run.opened, run);
  run.start = run.opened.position;
  const auto open = [&](DataPart part) {
    std::unique_ptr<data::DataSource> source = make(config, part);
    check<ValueError>(source == nullptr || source->seq_length() == config.model_config.seq_length,
                      "dataset_config.data_source ", *d.data_source, ": rows have ",
                      source != nullptr ? source->seq_length() : 0,
                      " tokens, model_config.seq_length is ", config.model_config.seq_length);
    return source;
  };
  if (use == DataUse::kTraining) {
    run.train = open(DataPart::kTrain);
    check<ValueError>(run.train != nullptr, "dataset_config.data_source ", *d.data_source,
                      ": what is registered makes no data to train on");
  }
  const bool validates = config.training_config.eval_interval || use == DataUse::kEvaluation;
  if (validates) {
    run.validation = open(DataPart::kValidation);
    check<ValueError>(run.validation != nullptr || !config.training_config.eval_interval,
                      "training_config.eval_interval is set, but dataset_config.data_source ",
                      *d.data_source, " has nothing for validation; set eval_interval to null");
  }
  run.test = open(DataPart::kTest);
  return run;
}

}  // namespace tapestry::internal
