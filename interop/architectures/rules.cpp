#include "interop/architectures/rules.h"

#include <algorithm>
#include <utility>

#include "parallel_core/config/schema/schema.h"

namespace tapestry::architectures {

namespace {

using hf::Fields;
using hf::Found;
using hf::Json;

constexpr std::string_view kMoePrefix = "moe_config.";

std::pair<std::string, std::string> section_and_key(const std::string& key) {
  return key.starts_with(kMoePrefix)
             ? std::pair{std::string("moe_config"), key.substr(kMoePrefix.size())}
             : std::pair{std::string("model_config"), key};
}

void set_key(Fields& file,
             const std::string& key,
             Value value,
             const std::string& member,
             const std::string& shown,
             bool is_written) {
  const auto [section, name] = section_and_key(key);
  file.set_value(name, std::move(value), member, shown, is_written);
  file.out.settings.back().section = section;
}

template <class T>
class Member final : public Rule {
 public:
  using Take = Found<T> (Fields::*)(const std::string&, T);
  Member(std::string member, std::vector<std::string> keys, T by_default, Take take)
      : member_(std::move(member)), keys_(std::move(keys)), default_(by_default), take_(take) {}

  void read(Fields& file) const override {
    const Found<T> found = (file.*take_)(member_, default_);
    for (const std::string& key : keys_) {
      set_key(file, key, Value(found.value), member_, found.text, found.written);
    }
  }
  void write(const AllConfig& config, Json& json) const override {
    json[member_] = json_of(value_of(config, keys_.front()));
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const Value first = value_of(config, keys_.front());
    for (size_t i = 1; i < keys_.size(); ++i) {
      object_unless(config, keys_[i], first, out,
                    concat("use ", to_yaml(first), ", as ", keys_.front(), " is"));
    }
  }

 private:
  std::string member_;
  std::vector<std::string> keys_;
  T default_;
  Take take_;
};

class Fixed final : public Rule {
 public:
  Fixed(std::string key, Value value) : key_(std::move(key)), value_(std::move(value)) {}
  void read(Fields& file) const override {
    set_key(file, key_, value_, "model_type", Json(file.out.model_type).dump(), true);
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    object_unless(config, key_, value_, out);
  }

 private:
  std::string key_;
  Value value_;
};

class Only final : public Rule {
 public:
  Only(std::string key, Value value, std::string advice)
      : key_(std::move(key)), value_(std::move(value)), advice_(std::move(advice)) {}
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    object_unless(config, key_, value_, out, advice_);
  }

 private:
  std::string key_;
  Value value_;
  std::string advice_;
};

class Written final : public Rule {
 public:
  Written(std::string member, Json json) : member_(std::move(member)), json_(std::move(json)) {}
  void write(const AllConfig& /*config*/, Json& json) const override { json[member_] = json_; }

 private:
  std::string member_;
  Json json_;
};

class Required final : public Rule {
 public:
  Required(std::string member, bool value, std::string otherwise)
      : member_(std::move(member)), value_(value), otherwise_(std::move(otherwise)) {}
  void read(Fields& file) const override { file.require(member_, value_, otherwise_); }

 private:
  std::string member_;
  bool value_;
  std::string otherwise_;
};

class ActivationRule final : public Rule {
 public:
  ActivationRule(std::string member, std::string by_default, std::vector<Activation> table)
      : member_(std::move(member)), default_(std::move(by_default)), table_(std::move(table)) {}

  void read(Fields& file) const override {
    const Found<std::string> found = file.text(member_, default_);
    std::string known;
    for (const Activation& row : table_) {
      if (row.theirs == found.value) {
        file.set_value("hidden_act", Value(row.ours), member_, found.text, found.written);
        return;
      }
      known += (known.empty() ? "" : ", ") + row.theirs;
    }
    file.finding(member_, concat("the activation ", found.text, " is not built; what is: ", known));
  }
  void write(const AllConfig& config, Json& json) const override {
    const auto row = find(config);
    json[member_] = row == table_.end() ? default_ : row->theirs;
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    if (find(config) != table_.end()) {
      return;
    }
    std::vector<std::string> known;
    for (const Activation& row : table_) {
      if (row.writes && std::find(known.begin(), known.end(), row.ours) == known.end()) {
        known.push_back(row.ours);
      }
    }
    std::string names;
    for (const std::string& name : known) {
      names += (names.empty() ? "" : " or ") + name;
    }
    object_unless(config, "hidden_act", Value(), out, concat("use ", names));
  }

 private:
  std::vector<Activation>::const_iterator find(const AllConfig& config) const {
    const Value ours = config::canonical(Value(config.model_config.hidden_act));
    return std::find_if(table_.begin(), table_.end(), [&](const Activation& row) {
      return row.writes && Value(row.ours) == ours;
    });
  }

  std::string member_;
  std::string default_;
  std::vector<Activation> table_;
};

}  // namespace

Value value_of(const AllConfig& config, const std::string& key) {
  const auto [section, name] = section_and_key(key);
  return config::find_key(section, name)->field.get(config);
}

Json json_of(const Value& value) {
  if (value.is_null()) {
    return {};
  }
  if (value.is<Value::List>()) {
    Json list = Json::array();
    for (const Value& item : value.as<Value::List>()) {
      list.push_back(json_of(item));
    }
    return list;
  }
  return value.is<bool>()      ? Json(value.as<bool>())
         : value.is<int64_t>() ? Json(value.as<int64_t>())
         : value.is<double>()  ? Json(value.as<double>())
                               : Json(value.as<std::string>());
}

void object_unless(const AllConfig& config,
                   const std::string& key,
                   const Value& value,
                   std::vector<Objection>& out,
                   const std::string& advice) {
  const Value ours = value_of(config, key);
  if (to_yaml(config::canonical(ours)) == to_yaml(config::canonical(value))) {
    return;
  }
  const auto [section, name] = section_and_key(key);
  const std::string usual = value.is_null() ? "leave it out" : concat("use ", to_yaml(value));
  out.push_back({concat(section, ".", name), to_yaml(ours), advice.empty() ? usual : advice});
}

RulePtr size(const std::string& member, const std::string& key, int64_t by_default) {
  return std::make_shared<Member<int64_t>>(member, std::vector{key}, by_default, &Fields::size);
}
RulePtr number(const std::string& member, const std::string& key, double by_default) {
  return std::make_shared<Member<double>>(member, std::vector{key}, by_default, &Fields::number);
}
RulePtr flag(const std::string& member, const std::vector<std::string>& keys, bool by_default) {
  return std::make_shared<Member<bool>>(member, keys, by_default, &Fields::boolean);
}
RulePtr fixed(const std::string& key, const Value& value) {
  return std::make_shared<Fixed>(key, value);
}
RulePtr only(const std::string& key, const Value& value, const std::string& advice) {
  return std::make_shared<Only>(key, value, advice);
}
RulePtr written(const std::string& member, const Json& json) {
  return std::make_shared<Written>(member, json);
}
RulePtr required(const std::string& member, bool value, const std::string& otherwise) {
  return std::make_shared<Required>(member, value, otherwise);
}
RulePtr activation(const std::string& member,
                   const std::string& by_default,
                   const std::vector<Activation>& table) {
  return std::make_shared<ActivationRule>(member, by_default, table);
}
RulePtr gated_silu() {
  return activation("hidden_act", "silu", {{"silu", "swiglu"}, {"swish", "swiglu"}});
}

Rules norms_before_blocks(bool qk_norm) {
  return {fixed("qk_layernorm", qk_norm), fixed("use_final_norm", true),
          fixed("use_sandwich_norm", false), fixed("apply_residual_connection_post_norm", false)};
}

}  // namespace tapestry::architectures
