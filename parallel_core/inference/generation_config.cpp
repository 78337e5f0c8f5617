#include "parallel_core/inference/generation_config.h"

#include <filesystem>
#include <limits>
#include <sstream>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/packed_folder.h"
#include "autograd/io/strict_json.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

using nlohmann::json;

constexpr uint64_t kMostBytes = uint64_t{1} << 20U;

// The value of a key, which may be missing or null.
template <class T>
std::optional<T> value_of(const json& object, const char* key, const std::string& file) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    return std::nullopt;
  }
  constexpr bool kBoolean = std::is_same_v<T, bool>;
  constexpr bool kInteger = std::is_same_v<T, int64_t>;
  const bool fits = kBoolean   ? found->is_boolean()
                    : kInteger ? found->is_number_integer()
                               : found->is_number();
  check<ValueError>(fits, file, ": ", key, " is ", found->dump(), ", expected ",
                    kBoolean   ? "true or false"
                    : kInteger ? "an integer"
                               : "a number");
  return found->get<T>();
}

std::vector<int32_t> ids_of(const json& object, const char* key, const std::string& file) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    return {};
  }
  std::vector<int32_t> out;
  for (const json& id : found->is_array() ? *found : json::array({*found})) {
    check<ValueError>(id.is_number_integer() && id.get<double>() >= 0 &&
                          id.get<double>() <= std::numeric_limits<int32_t>::max(),
                      file, ": ", key, " is ", found->dump(), ", expected a token's id or a list ",
                      "of them");
    out.push_back(id.get<int32_t>());
  }
  return out;
}

}  // namespace

std::string SuggestedSampling::describe() const {
  std::ostringstream out;
  const auto add = [&](const char* name, const auto& value, auto usual) {
    if (value && *value != usual) {
      out << (out.tellp() > 0 ? ", " : "") << name << ' ' << *value;
    }
  };
  const GenerationOptions usual;
  if (do_sample && !*do_sample) {
    out << "do_sample false";
  } else {
    add("temperature", temperature, usual.temperature);
    add("top_k", top_k, usual.top_k);
    add("top_p", top_p, usual.top_p);
    add("min_p", min_p, usual.min_p);
  }
  add("repetition_penalty", repetition_penalty, usual.repetition_penalty);
  add("max_new_tokens", max_new_tokens, usual.max_new_tokens);
  return out.str();
}

void SuggestedSampling::apply_to(GenerationOptions& options) const {
  const auto take = [](const auto& value, auto& option) { option = value.value_or(option); };
  take(temperature, options.temperature);
  take(top_k, options.top_k);
  take(top_p, options.top_p);
  take(min_p, options.min_p);
  take(repetition_penalty, options.repetition_penalty);
  take(max_new_tokens, options.max_new_tokens);
  if (do_sample && !*do_sample) {
    options.temperature = 0;
  }
}

SuggestedSampling read_generation_config(const std::string& folder) {
  SuggestedSampling out;
  const std::string file = folder + "/generation_config.json";
  if (!path_exists(file)) {
    return out;
  }
  out.file = file;
  // What is made of a GGUF file is ours, and no file of its own.
  const json object = is_packed_folder(folder) ? json::parse(read_file(file))
                                               : read_strict_json(InputFile(file), "", kMostBytes);
  check<IoError>(object.is_object(), file, ": is no JSON object");
  out.do_sample = value_of<bool>(object, "do_sample", file);
  out.temperature = value_of<double>(object, "temperature", file);
  out.top_k = value_of<int64_t>(object, "top_k", file);
  out.top_p = value_of<double>(object, "top_p", file);
  out.min_p = value_of<double>(object, "min_p", file);
  out.repetition_penalty = value_of<double>(object, "repetition_penalty", file);
  out.max_new_tokens = value_of<int64_t>(object, "max_new_tokens", file);
  out.eos_token_ids = ids_of(object, "eos_token_id", file);
  try {
    GenerationOptions options;
    out.apply_to(options);
    check_generation_options(options);
  } catch (const ValueError& error) {
    throw ValueError(concat(file, ": ", error.what()));
  }
  return out;
}

}  // namespace tapestry
