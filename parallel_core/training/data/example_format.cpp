#include "parallel_core/training/data/example_format.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <utility>

#include "autograd/io/packed_folder.h"
#include "autograd/tensor/error.h"
#include "parallel_core/training/data/built_in_chat.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/util/checksum.h"
#include "text/util/file.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

// The folder of the tokenizer's model; empty for bytes.
std::string tokenizer_folder(const std::string& model) {
  const fs::path path = model;
  if (model.empty() || folder_exists(model)) {
    return model;
  }
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

// The day as the time at its noon here, as strftime_now takes it.
std::time_t noon_of(const std::string& date) {
  std::tm day{};
  std::sscanf(date.c_str(), "%d-%d-%d", &day.tm_year, &day.tm_mon, &day.tm_mday);
  day.tm_year -= 1900;
  day.tm_mon -= 1;
  day.tm_hour = 12;
  day.tm_isdst = -1;
  return std::mktime(&day);
}

// Whether a template cannot do without the day. One that asks whether there is one has another.
bool needs_date(const std::shared_ptr<const chat::ChatTemplate>& used) {
  return used && used->source().find("strftime_now") != std::string::npos &&
         used->source().find("strftime_now is defined") == std::string::npos &&
         used->source().find("strftime_now is not defined") == std::string::npos;
}

void tell_date(const DatasetConfig& d, const std::string& day, FoundChatFormat& found) {
  if (!found.format) {
    return;
  }
  const bool needed =
      needs_date(found.format->chat_template) || needs_date(found.format->tool_template);
  if (d.chat_date) {
    found.chat_date = *d.chat_date;
  } else if (needed) {
    found.chat_date = day;
  } else {
    return;
  }
  found.format->now = noon_of(found.chat_date);
}

}  // namespace

std::unique_ptr<data::Tokenizer> tokenizer_of_examples(const AllConfig& config,
                                                       const std::string& key,
                                                       RunData& run) {
  const DatasetConfig& d = config.dataset_config;
  check_tokenizer_of_weights(config);
  run.tokenizer_model = d.tokenizer_model.value_or("");
  check<ValueError>(d.tokenizer_type == "byte" || !run.tokenizer_model.empty(), key,
                    " needs the tokenizer of the model that is tuned; name it with "
                    "dataset_config.tokenizer_model (and tokenizer_type, which is ",
                    d.tokenizer_type, ")");
  auto tokenizer = data::make_tokenizer(d.tokenizer_type, run.tokenizer_model);
  check<ValueError>(
      tokenizer->vocab_size() <= config.model_config.vocab_size, "model_config.vocab_size is ",
      config.model_config.vocab_size, ", but the examples' is the ", tokenizer->describe(),
      "; use the model's own tokenizer, raise vocab_size where a model begins, or give one "
      "that exists a row for each id with --resize_embeddings");
  const std::vector<std::string> remarks = tokenizer->remarks();
  run.remarks.insert(run.remarks.end(), remarks.begin(), remarks.end());
  return tokenizer;
}

FoundChatFormat find_chat_format(const AllConfig& config,
                                 const data::Tokenizer& tokenizer,
                                 const std::string& day) {
  const DatasetConfig& d = config.dataset_config;
  const std::string folder = tokenizer_folder(d.tokenizer_model.value_or(""));
  FoundChatFormat found;
  try {
    if (!folder.empty()) {
      found.format = chat::read_chat_format(folder);
    }
  } catch (const ValueError& error) {  // no matter unless there is a conversation
    found.why_none = error.what();
  }
  if (!found.format && (d.chat_template || found.why_none.empty())) {
    found.format = built_in_chat(tokenizer);
    found.is_built_in = !d.chat_template;
  }
  if (d.chat_template) {
    found.format->tool_template = nullptr;
    constexpr uint64_t kMost = uint64_t{64} << 20U;  // as of one beside a tokenizer
    found.format->chat_template = std::make_shared<chat::ChatTemplate>(
        data::read_file(*d.chat_template, kMost), *d.chat_template);
  }
  tell_date(d, day, found);
  return found;
}

std::string chat_format_checksum(const std::optional<chat::ChatFormat>& format) {
  if (!format) {
    return {};
  }
  data::Crc64 sum;
  const auto add = [&](const std::string& text) {
    sum.add(text);
    sum.add(std::string_view("\0", 1));
  };
  add(format->chat_template->source());
  add(format->tool_template ? format->tool_template->source() : "");
  for (const auto& [name, token] : format->special_tokens) {
    add(name);
    add(token);
  }
  return sum.text();
}

std::string local_day() {
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  localtime_r(&now, &day);
  char text[16];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d", &day)};
}

std::optional<chat::ChatFormat> chat_format_of_examples(const AllConfig& config,
                                                        const data::Tokenizer& tokenizer) {
  return find_chat_format(config, tokenizer, local_day()).format;
}

}  // namespace tapestry
