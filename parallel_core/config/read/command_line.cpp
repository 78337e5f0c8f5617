// What the words of a command line ask for.
#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/config/read/foreign_names.h"
#include "parallel_core/config/read/load.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry {

namespace {

using config::Key;
using config::Override;
using config::Section;

using config::FlatName;

constexpr std::array kFlatNames = {
    FlatName{"micro_batch_size", "dataset_config.batch_size"},
    FlatName{"train_iters", "training_config.training_iters"},
    FlatName{"initial_loss_scale", "training_config.loss_scale_value"},
    FlatName{"hysteresis", "training_config.loss_scale_factor"},
    FlatName{"save", "training_config.output_dir"},
    FlatName{"load", "training_config.load_checkpoint"},
    FlatName{"ckpt_prefix", "training_config.prefix"},
    FlatName{"resume_crc_check", "training_config.crc_check"},
    FlatName{"overlap_grad_reduce", "training_config.overlap_grad_reduce"},
    FlatName{"optimizer", "optimizer_config.optimizer_type"},
    FlatName{"adam_beta1", "optimizer_config.beta1"},
    FlatName{"adam_beta2", "optimizer_config.beta2"},
    FlatName{"adam_eps", "optimizer_config.eps"},
    FlatName{"lr", "optimizer_config.learning_rate"},
    FlatName{"padded_vocab_size", "model_config.vocab_size"},
    FlatName{"seq_length", "model_config.seq_length"},
    FlatName{"num_experts", "moe_config.num_experts"},
    FlatName{"use_flash_attn", "model_config.use_flash_attention"},
    FlatName{"add_qkv_bias", "model_config.qkv_has_bias"},
    FlatName{"add_dense_bias", "model_config.out_proj_has_bias"},
    FlatName{"embedding_dtype", "model_config.embedding_init_dtype"},
    FlatName{"use_fused_swiglu", "model_config.apply_swiglu_fusion"},
    FlatName{"pre_tockens", "model_config.fa_config.pre_tokens"},
    FlatName{"next_tockens", "model_config.fa_config.next_tokens"},
    FlatName{"shape_order", "model_config.fa_config.input_layout"},
    FlatName{"recompute", "parallel_config.recompute_config.recompute"},
    FlatName{"select_recompute", "parallel_config.recompute_config.select_recompute"},
    FlatName{"select_comm_recompute", "parallel_config.recompute_config.select_comm_recompute"},
    FlatName{"swiglu", "model_config.hidden_act=swiglu"},
    FlatName{"use_fused_rmsnorm", "model_config.normalization=FusedRMSNorm"},
    FlatName{"use_rotary_position_embeddings", "model_config.position_embedding_type=rope"},
};

// A flag as it was written: --name, --name=value or --name value.
struct Flag {
  std::string name;  // with underscores
  std::optional<std::string> value;
  std::string place;
};

std::vector<Flag> split_flags(const std::vector<std::string>& words,
                              std::vector<std::string>& errors) {
  std::vector<Flag> flags;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!word.starts_with("--") || word.size() == 2) {
      errors.push_back(concat("'", word, "': expected --section.key=value or --key value"));
      continue;
    }
    const size_t equals = word.find('=');
    Flag flag{.name = word.substr(2, equals == std::string::npos ? equals : equals - 2),
              .value = {},
              .place = word};
    if (equals != std::string::npos) {
      flag.value = word.substr(equals + 1);
    } else if (i + 1 < words.size() && !words[i + 1].starts_with("--")) {
      flag.value = words[++i];
      flag.place += " " + words[i];
    }
    std::replace(flag.name.begin(), flag.name.end(), '-', '_');
    flags.push_back(std::move(flag));
  }
  return flags;
}

std::string nearest_flag(const std::string& name) {
  std::vector<std::string_view> names;
  for (const FlatName& flat : kFlatNames) {
    names.push_back(flat.flag);
  }
  for (const Section& section : config::schema()) {
    for (const Key& key : section.keys) {
      names.push_back(key.name);
    }
  }
  return std::string(config::nearest(name, names));
}

// "section.key" of a flat name, or "section.key=value".
std::string target_of(const Flag& flag, std::vector<std::string>& errors) {
  const auto* const flat = std::find_if(kFlatNames.begin(), kFlatNames.end(),
                                        [&](const FlatName& f) { return f.flag == flag.name; });
  if (flat != kFlatNames.end()) {
    return std::string(flat->key);
  }
  for (const Section& section : config::schema()) {
    for (const Key& key : section.keys) {
      const std::vector<std::string_view> aliases = config::split_text(key.aliases, '|');
      if (key.name == flag.name ||
          std::find(aliases.begin(), aliases.end(), flag.name) != aliases.end()) {
        return concat(section.name, ".", key.name);  // the only one: see kFlatNames
      }
    }
  }
  errors.push_back(concat(flag.place, ": unknown name '", flag.name, "'; did you mean '",
                          nearest_flag(flag.name), "'?"));
  return {};
}

// "section.key" of the key that a path means, or the path itself.
std::string canonical(const std::string& path) {
  if (const config::ForeignName* row = config::find_readable_name(path);
      row != nullptr && !row->here.empty()) {
    return std::string(row->here);
  }
  for (const Section& section : config::schema()) {
    for (const Key& key : section.keys) {
      const std::string own = concat(section.name, ".", key.name);
      if (own == path) {
        return own;
      }
      for (const std::string_view alias : config::split_text(key.aliases, '|')) {
        if (alias.starts_with('/') ? alias.substr(1) == path
                                   : concat(section.name, ".", alias) == path) {
          return own;
        }
      }
    }
  }
  return path;
}

std::optional<int64_t> whole_number(const Flag& flag, std::vector<std::string>& errors) {
  int64_t number = 0;
  const std::string text = flag.value.value_or("");
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1) {
    errors.push_back(concat(flag.place, ": expected an integer > 0"));
    return std::nullopt;
  }
  return number;
}

// Micro-batches of a step, from the sequences of all ranks together. The run is held to the number
// of ranks that they were counted for.
struct GlobalBatch {
  std::optional<Flag> global, ranks, micro;

  std::vector<Override> overrides(bool beside_file, std::vector<std::string>& errors) const {
    if (!global) {
      return {};
    }
    if (beside_file && !micro) {
      errors.push_back(global->place +
                       ": needs --micro-batch-size too, by which it is divided beside a file");
      return {};
    }
    const auto number = [&](const std::optional<Flag>& flag) {
      return flag ? whole_number(*flag, errors) : std::optional<int64_t>(1);
    };
    const std::optional<int64_t> all = whole_number(*global, errors);
    const std::optional<int64_t> size = number(ranks);
    const std::optional<int64_t> rows = number(micro);
    if (!all || !size || !rows) {
      return {};
    }
    if (*all % (*size * *rows) != 0) {
      errors.push_back(concat(global->place, ": is no multiple of micro-batch-size ", *rows,
                              " x data-parallel-size ", *size));
      return {};
    }
    return {{concat("dataset_config.micro_batch_num=", *all / (*size * *rows)), global->place},
            {concat("parallel_config.data_parallel_size=", *size),
             ranks ? ranks->place : global->place}};
  }
};

}  // namespace

std::span<const FlatName> config::flat_names() { return kFlatNames; }

bool config::is_flag(std::string_view name) {
  std::string plain(name);
  std::replace(plain.begin(), plain.end(), '-', '_');
  if (const size_t dot = plain.find('.'); dot != std::string::npos) {
    const std::string section = plain.substr(0, dot);  // a model's may be called otherwise
    return section.ends_with("_config") || find_section(section) != nullptr ||
           holds_readable_names(section);
  }
  std::vector<std::string> unknown;
  return plain == "global_batch_size" ||
         !target_of({.name = plain, .value = {}, .place = plain}, unknown).empty();
}

config::CommandLine config::read_flags(const std::vector<std::string>& flags) {
  std::vector<std::string> words;
  for (const std::string& flag : flags) {
    const size_t end = flag.find_first_of(" =");
    words.push_back(end == std::string::npos || flag[end] == '=' ? flag : flag.substr(0, end));
    if (words.back() != flag) {
      words.push_back(flag.substr(end + 1));
    }
  }
  return read_command_line(words, /*beside_file=*/true);
}

void config::check_flags_agree(const std::vector<std::string>& overrides) {
  std::vector<std::string> flags;
  std::map<std::string, std::string> set;  // values by key, the last that was given
  for (const std::string& text : overrides) {
    if (text.starts_with("--")) {
      flags.push_back(text);
    } else if (const size_t equals = text.find('='); equals != std::string::npos) {
      set[canonical(text.substr(0, equals))] = text.substr(equals + 1);
    }
  }
  std::vector<std::string> errors;
  for (const Override& flag : read_flags(flags).overrides) {
    const size_t equals = flag.text.find('=');
    const std::string key = canonical(flag.text.substr(0, equals));
    const auto other = set.find(key);
    if (other != set.end() && other->second != flag.text.substr(equals + 1)) {
      errors.push_back(concat(flag.place, ": ", key, ": is given by ", kSetPlace, key, "=",
                              other->second, " too, with another value; leave one of them out"));
    }
  }
  if (!errors.empty()) {
    throw ConfigError(errors);
  }
}

config::CommandLine config::read_command_line(const std::vector<std::string>& words,
                                              bool beside_file) {
  std::vector<std::string> errors;
  std::vector<Override> overrides;
  std::string path;
  GlobalBatch batch;
  for (const Flag& flag : split_flags(words, errors)) {
    if (flag.name == "config_path") {
      path = flag.value.value_or("");
      if (path.empty()) {
        errors.push_back("--config_path: expected a file");
      }
      continue;
    }
    if (flag.name == "global_batch_size") {
      batch.global = flag;
      continue;
    }
    if (flag.name == "data_parallel_size") {
      batch.ranks = flag;
    }
    if (flag.name == "micro_batch_size") {
      batch.micro = flag;
    }
    std::string target =
        flag.name.find('.') == std::string::npos ? target_of(flag, errors) : flag.name;
    if (target.empty()) {
      continue;
    }
    if (const size_t equals = target.find('='); equals != std::string::npos) {
      if (flag.value) {
        errors.push_back(concat(flag.place, ": takes no value; it stands for --", target));
      }
    } else {
      target += "=" + flag.value.value_or("True");
    }
    overrides.push_back({target, flag.place});
  }
  for (Override& counted : batch.overrides(beside_file || !path.empty(), errors)) {
    overrides.push_back(std::move(counted));
  }
  if (!errors.empty()) {
    throw ConfigError(errors);
  }
  return {.path = std::move(path), .overrides = std::move(overrides)};
}

}  // namespace tapestry
