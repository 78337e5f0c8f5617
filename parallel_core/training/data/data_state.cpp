#include "parallel_core/training/data/data_state.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/training/data/state_object.h"
#include "parallel_core/training/data/task_data_state.h"

namespace tapestry {

namespace {

using Json = nlohmann::ordered_json;
using internal::StateObject;

constexpr int64_t kFormatVersion = 1;
constexpr std::array<const char*, 3> kParts = {"train", "valid", "test"};
constexpr std::array<std::vector<int64_t> data::SamplePlan::*, 3> kPlans = {
    &data::SamplePlan::train, &data::SamplePlan::valid, &data::SamplePlan::test};

Json position_json(const data::BatchPosition& position) {
  return {{"step", position.step}, {"sample", position.first_sample}};
}

data::BatchPosition read_position(StateObject object) {
  const data::BatchPosition position{object.integer("step"), object.integer("sample")};
  object.finish();
  return position;
}

// As the parser of `split` reads it.
std::string plain_split(const std::string& split) {
  std::string plain;
  for (const char letter : split) {
    const bool separates = std::string_view(", /:;\t[]").find(letter) != std::string_view::npos;
    if (!separates) {
      plain += letter;
    } else if (!plain.empty() && plain.back() != ',') {
      plain += ',';
    }
  }
  if (plain.ends_with(',')) {
    plain.pop_back();
  }
  return plain;
}

std::string blend_text(const std::vector<DatasetShare>& datasets) {
  std::string text;
  for (const DatasetShare& share : datasets) {
    text += concat(text.empty() ? "" : ", ",
                   share.weight ? concat(*share.weight, " ") : std::string(), share.files.prefix);
  }
  return text.empty() ? "none" : text;
}

void compare_datasets(const std::vector<DatasetShare>& now,
                      const std::vector<DatasetShare>& then,
                      std::vector<std::string>& found) {
  const bool same_blend =
      std::equal(now.begin(), now.end(), then.begin(), then.end(),
                 [](const auto& a, const auto& b) { return a.weight == b.weight; });
  if (!same_blend) {
    found.push_back(
        concat("the data sets are ", blend_text(now), "; they were ", blend_text(then)));
    return;
  }
  for (size_t i = 0; i < now.size(); ++i) {
    const data::DatasetFingerprint& a = now[i].files;
    const data::DatasetFingerprint& b = then[i].files;
    if (a.same_content(b)) {
      continue;
    }
    const auto files = [](const data::DatasetFingerprint& f) {
      return concat(f.prefix, " (.idx ", f.idx_bytes, " bytes, .bin ", f.bin_bytes,
                    " bytes, checksum ", f.crc64, ")");
    };
    found.push_back(concat("a data set is ", files(a), "; it was ", files(b)));
  }
}

void compare_recorded(const DataState& now,
                      const DataState& then,
                      std::vector<std::string>& found) {
  if (now.recorded->as_samples != then.recorded->as_samples) {
    const auto truth = [](bool value) { return value ? "True" : "False"; };
    found.push_back(concat("dataset_config.step_data_as_samples is ",
                           truth(now.recorded->as_samples), "; it was ",
                           truth(then.recorded->as_samples)));
  } else if (now.recorded->steps < then.recorded->steps) {
    found.push_back(concat("dataset_config.step_data_dir is ", now.recorded->directory, " with ",
                           now.recorded->steps, " steps; it was ", then.recorded->directory,
                           " with ", then.recorded->steps));
  } else if (now.recorded->crc64 != then.recorded->crc64) {
    found.push_back(concat("dataset_config.step_data_dir is ", now.recorded->directory,
                           ", whose first ", then.recorded->steps, " steps have checksum ",
                           now.recorded->crc64, "; it was ", then.recorded->directory,
                           ", where they had ", then.recorded->crc64));
  }
}

std::string blend_text(const ExampleState& examples) {
  std::string text;
  for (const ExampleSource& source : examples.files) {
    text += concat(text.empty() ? "" : ", ",
                   source.weight ? concat(*source.weight, " ") : std::string(), source.file.path,
                   " (", source.file.bytes, " bytes, checksum ", source.file.crc64, ")");
  }
  return text;
}

void compare_examples(const ExampleState& now,
                      const ExampleState& then,
                      std::vector<std::string>& found) {
  const auto compare = [&](const char* what, const auto& a, const auto& b) {
    if (a != b) {
      found.push_back(concat(what, " is ", a, "; it was ", b));
    }
  };
  const auto truth = [](bool value) { return std::string(value ? "True" : "False"); };
  if (!std::equal(now.files.begin(), now.files.end(), then.files.begin(), then.files.end(),
                  [](const auto& a, const auto& b) { return a.same_content(b); })) {
    compare("dataset_config.sft_data_path", blend_text(now), blend_text(then));
  }
  compare("dataset_config.sft_packing", truth(now.packing), truth(then.packing));
  compare("dataset_config.sft_long_examples", now.long_examples, then.long_examples);
  compare("dataset_config.sft_loss", now.loss, then.loss);
  compare("the token that ends a text", now.eod, then.eod);
  const auto shown = [](const std::string& crc64) {
    return crc64.empty() ? std::string("none") : concat("one with checksum ", crc64);
  };
  if (!now.chat_date.empty() || !then.chat_date.empty()) {
    const auto day = [](const std::string& date) { return date.empty() ? "none" : date; };
    compare("dataset_config.chat_date", day(now.chat_date), day(then.chat_date));
  }
  compare("the chat template", shown(now.template_crc64), shown(then.template_crc64));
}

bool has_data_sets(const DataState& state) { return !state.examples && !state.task; }

Json examples_json(const ExampleState& examples) {
  Json files = Json::array();
  for (const ExampleSource& source : examples.files) {
    Json entry = {
        {"path", source.file.path}, {"bytes", source.file.bytes}, {"crc64", source.file.crc64}};
    if (source.weight) {
      entry["weight"] = *source.weight;
    }
    files.push_back(std::move(entry));
  }
  Json json = {{"files", std::move(files)},
               {"packing", examples.packing},
               {"long_examples", examples.long_examples},
               {"loss", examples.loss},
               {"eod", examples.eod},
               {"chat_template_crc64", examples.template_crc64}};
  if (!examples.chat_date.empty()) {
    json["chat_date"] = examples.chat_date;
  }
  return json;
}

ExampleState read_examples(StateObject object, const std::string& source) {
  ExampleState examples;
  object.each("files", [&](StateObject& entry) {
    ExampleSource file;
    file.file = {entry.text("path"), entry.integer("bytes"), entry.checksum("crc64")};
    if (entry.has("weight")) {
      file.weight = entry.weight("weight");
    }
    examples.files.push_back(std::move(file));
  });
  check<IoError>(!examples.files.empty(), source, ": examples: has no file");
  examples.packing = object.boolean("packing");
  examples.long_examples = object.text("long_examples");
  examples.loss = object.text("loss");
  examples.eod = object.integer("eod", -1);
  examples.template_crc64 = object.checksum("chat_template_crc64", /*may_be_empty=*/true);
  if (object.has("chat_date")) {
    examples.chat_date = object.text("chat_date");
  }
  object.finish();
  return examples;
}

}  // namespace

std::string data_state_json(const DataState& state) {
  Json json;
  json["format_version"] = kFormatVersion;
  json["begun"] = position_json(state.begun);
  json["position"] = position_json(state.position);
  json["seq_length"] = state.seq_length;
  if (state.recorded) {
    json["recorded_steps"] = {{"directory", state.recorded->directory},
                              {"steps", state.recorded->steps},
                              {"crc64", state.recorded->crc64}};
    if (state.recorded->as_samples) {
      json["recorded_steps"]["as_samples"] = true;
    }
    return json.dump();
  }
  if (state.own) {
    json["own"] = {{"fingerprint", state.own->fingerprint}};
    return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  }
  if (state.examples) {
    json["examples"] = examples_json(*state.examples);
  }
  if (state.task) {
    json["task"] = internal::task_state_json(*state.task);
  }
  for (size_t part = 0; part < kParts.size() && has_data_sets(state); ++part) {
    Json datasets = Json::array();
    for (const DatasetShare& share : state.datasets[part]) {
      Json entry = {{"prefix", share.files.prefix},
                    {"idx_bytes", share.files.idx_bytes},
                    {"bin_bytes", share.files.bin_bytes},
                    {"crc64", share.files.crc64}};
      if (share.weight) {
        entry["weight"] = *share.weight;
      }
      datasets.push_back(std::move(entry));
    }
    json[kParts[part]] = {{"datasets", std::move(datasets)}, {"samples", state.plan.*kPlans[part]}};
  }
  json["split"] = state.split;
  json["seed"] = state.seed;
  json["shuffle"] = state.shuffle;
  json["tokenizer"] = {{"type", state.tokenizer.type},
                       {"vocab_size", state.tokenizer.vocab_size},
                       {"crc64", state.tokenizer.checksum}};
  // Names of files need not be UTF-8.
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

DataState parse_data_state(const std::string& json, const std::string& source) {
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  check<IoError>(!parsed.is_discarded(), source, ": the state of the data is not JSON");
  StateObject object(parsed, "", source);
  DataState state;
  state.source = source;
  const int64_t version = object.integer("format_version", 1);
  check<IoError>(version == kFormatVersion, source, ": format_version: is ", version,
                 ", this release reads ", kFormatVersion);
  state.begun = read_position(object.object("begun"));
  state.position = read_position(object.object("position"));
  state.seq_length = object.integer("seq_length", 1);
  if (object.has("recorded_steps")) {
    StateObject recorded = object.object("recorded_steps");
    state.recorded = {recorded.text("directory"), recorded.integer("steps", 1),
                      recorded.checksum("crc64"),
                      recorded.has("as_samples") && recorded.boolean("as_samples")};
    recorded.finish();
    object.finish();
    return state;
  }
  if (object.has("own")) {
    StateObject own = object.object("own");
    state.own = OwnDataState{.fingerprint = own.text("fingerprint")};
    own.finish();
    object.finish();
    return state;
  }
  if (object.has("examples")) {
    state.examples = read_examples(object.object("examples"), source);
  }
  if (object.has("task")) {
    state.task = internal::read_task_state(object.object("task"), source);
  }
  for (size_t part = 0; part < kParts.size() && has_data_sets(state); ++part) {
    StateObject of_part = object.object(kParts[part]);
    of_part.each("datasets", [&](StateObject& entry) {
      DatasetShare share;
      share.files = {entry.text("prefix"), entry.integer("idx_bytes"), entry.integer("bin_bytes"),
                     entry.checksum("crc64")};
      if (entry.has("weight")) {
        share.weight = entry.weight("weight");
      }
      state.datasets[part].push_back(std::move(share));
    });
    state.plan.*kPlans[part] = of_part.ascending("samples");
    of_part.finish();
  }
  check<IoError>(!has_data_sets(state) || (!state.datasets[0].empty() && !state.plan.train.empty()),
                 source, ": train: has no data set or no number of samples");
  state.split = object.text("split");
  state.seed = object.integer("seed");
  state.shuffle = object.boolean("shuffle");
  StateObject tokenizer = object.object("tokenizer");
  state.tokenizer = {tokenizer.text("type"), tokenizer.integer("vocab_size"),
                     tokenizer.checksum("crc64", /*may_be_empty=*/true)};
  tokenizer.finish();
  object.finish();
  return state;
}

std::vector<std::string> data_differences(const DataState& now, const DataState& then) {
  std::vector<std::string> found;
  const auto compare = [&](const char* key, const auto& a, const auto& b) {
    if (a != b) {
      found.push_back(concat(key, " is ", a, "; it was ", b));
    }
  };
  const auto kind = [](const DataState& state) {
    return state.recorded   ? concat("dataset_config.step_data_dir ", state.recorded->directory)
           : state.own      ? concat("the program's own, '", state.own->fingerprint, "'")
           : state.examples ? concat("examples: ", blend_text(*state.examples))
           : state.task     ? concat("those of task ", state.task->task)
                            : concat("data sets: ", blend_text(state.datasets[0]));
  };
  if (now.recorded.has_value() != then.recorded.has_value() ||
      now.own.has_value() != then.own.has_value() ||
      now.examples.has_value() != then.examples.has_value() ||
      now.task.has_value() != then.task.has_value()) {
    return {concat("the data are ", kind(now), "; they were ", kind(then))};
  }
  compare("model_config.seq_length", now.seq_length, then.seq_length);
  if (now.recorded) {
    compare_recorded(now, then, found);
    return found;
  }
  if (now.own) {
    if (!now.own->fingerprint.empty() && !then.own->fingerprint.empty()) {
      compare("the fingerprint of the program's data", now.own->fingerprint, then.own->fingerprint);
    }
    return found;
  }
  if (now.examples) {
    compare_examples(*now.examples, *then.examples, found);
  } else if (now.task) {
    internal::compare_tasks(*now.task, *then.task, found);
  } else {
    compare_datasets(now.datasets[0], then.datasets[0], found);
  }
  if (plain_split(now.split) != plain_split(then.split)) {
    const auto shown = [](const std::string& split) {
      return split.empty() ? std::string("none: each part has its own data sets") : split;
    };
    found.push_back(
        concat("dataset_config.split is ", shown(now.split), "; it was ", shown(then.split)));
  }
  compare("training_config.seed", now.seed, then.seed);
  const auto truth = [](bool value) { return std::string(value ? "True" : "False"); };
  compare("dataset_config.shuffle", truth(now.shuffle), truth(then.shuffle));
  const data::TokenizerIdentity& a = now.tokenizer;
  const data::TokenizerIdentity& b = then.tokenizer;
  const bool known = a.vocab_size > 0 && b.vocab_size > 0;
  if (known ? a != b : a.type != b.type) {
    const auto shown = [](const data::TokenizerIdentity& t) {
      return t.vocab_size > 0 ? describe(t) : concat(t.type, " tokenizer");
    };
    found.push_back(concat("the tokenizer is the ", shown(a), "; it was the ", shown(b)));
  }
  return found;
}

}  // namespace tapestry
