#include "interop/architectures/rules.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/tensor/error.h"
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

// "`rms_norm_eps`" where the key has the same name, else with that.
std::string read_as(const std::string& member, const std::string& key) {
  const std::string name = section_and_key(key).second;
  return name == member ? concat("`", member, "`") : concat("`", member, "` (`", name, "`)");
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
  std::vector<std::string> keys() const override { return keys_; }
  RuleText text() const override { return {.read = read_as(member_, keys_.front())}; }

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
  std::vector<std::string> keys() const override { return {key_}; }

  RuleText text() const override {
    const auto [section, name] = section_and_key(key_);
    const bool is_usual = to_yaml(value_) == to_yaml(value_of(AllConfig(), key_));
    return {.always = is_usual ? "" : concat("`", name, ": ", to_yaml(value_), "`")};
  }

 private:
  std::string key_;
  Value value_;
};

class OptionalNumber final : public Rule {
 public:
  OptionalNumber(std::string member,
                 std::string key,
                 std::optional<double> by_default,
                 bool keeps_null)
      : member_(std::move(member)),
        key_(std::move(key)),
        default_(by_default),
        keeps_null_(keeps_null) {}

  void read(Fields& file) const override {
    const bool has_value = file.find(member_) != nullptr || (!file.has(member_) && default_);
    if (!has_value) {
      set_key(file, key_, keeps_null_ ? Value() : Value(0.0), member_, "null", file.has(member_));
      return;
    }
    const Found<double> found = file.number(member_, default_.value_or(1));
    if (!(found.value > 0)) {
      file.finding(member_, concat("expected a number above 0 or null, got ", found.text));
      return;
    }
    set_key(file, key_, Value(found.value), member_, found.text, found.written);
  }
  void write(const AllConfig& config, Json& json) const override {
    const Value value = value_of(config, key_);
    const bool none = value.is_null() || (!keeps_null_ && value.as<double>() == 0);
    json[member_] = none ? Json() : json_of(value);
  }
  std::vector<std::string> keys() const override { return {key_}; }

  RuleText text() const override { return {.read = read_as(member_, key_)}; }

 private:
  std::string member_;
  std::string key_;
  std::optional<double> default_;
  bool keeps_null_;
};

// A key that is a function of a member, and back. null, as attention_scale may be, stands for the
// scale of a head's size.
class Mapped final : public Rule {
 public:
  using Function = double (*)(double);
  struct Form {
    Function ours;
    Function theirs;
    bool writes_integers = false;  ///< numbers without a fraction
  };
  Mapped(std::string member, std::string key, double by_default, const Form& form)
      : member_(std::move(member)), key_(std::move(key)), default_(by_default), form_(form) {}

  void read(Fields& file) const override {
    const Found<double> found = file.number(member_, default_);
    if (!(found.value > 0)) {
      file.finding(member_, concat("expected a number above 0, got ", found.text));
      return;
    }
    set_key(file, key_, Value(form_.ours(found.value)), member_, found.text, found.written);
  }
  void write(const AllConfig& config, Json& json) const override {
    const Value value = value_of(config, key_);
    const double ours = value.is_null() ? attention_scale(config.model_config) : value.as<double>();
    // As it stood in a file, if that was a round number.
    const double exact = form_.theirs(ours);
    const double round = std::round(exact * 1e6) / 1e6;
    const double best = form_.ours(round) == ours ? round : exact;
    json[member_] = form_.writes_integers && best == std::floor(best)
                        ? Json(static_cast<int64_t>(best))
                        : Json(best);
  }
  std::vector<std::string> keys() const override { return {key_}; }
  RuleText text() const override { return {.read = read_as(member_, key_)}; }

 private:
  std::string member_;
  std::string key_;
  double default_;
  Form form_;
};

class RootOfWidth final : public Rule {
 public:
  void read(Fields& file) const override {
    const int64_t width = file.size_of("hidden_size");
    file.set_value("embedding_multiplier", Value(std::sqrt(static_cast<double>(width))),
                   "hidden_size", concat(width), true);
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const TransformerConfig& c = config.model_config;
    object_unless(config, "embedding_multiplier",
                  Value(std::sqrt(static_cast<double>(c.hidden_size))), out);
  }
  std::vector<std::string> keys() const override { return {"embedding_multiplier"}; }
  RuleText text() const override {
    return {.always = "`embedding_multiplier`: the root of `hidden_size`"};
  }
};

class Either final : public Rule {
 public:
  Either(std::string member,
         bool by_default,
         std::string key,
         std::string if_true,
         std::string if_false)
      : member_(std::move(member)),
        default_(by_default),
        key_(std::move(key)),
        if_true_(std::move(if_true)),
        if_false_(std::move(if_false)) {}

  void read(Fields& file) const override {
    const Found<bool> found = file.boolean(member_, default_);
    set_key(file, key_, Value(found.value ? if_true_ : if_false_), member_, found.text,
            found.written);
  }
  void write(const AllConfig& config, Json& json) const override {
    json[member_] = value_of(config, key_) == Value(if_true_);
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    if (value_of(config, key_) != Value(if_true_)) {
      object_unless(config, key_, Value(if_false_), out,
                    concat("use ", if_false_, " or ", if_true_));
    }
  }
  std::vector<std::string> keys() const override { return {key_}; }

  RuleText text() const override { return {.read = read_as(member_, key_)}; }

 private:
  std::string member_;
  bool default_;
  std::string key_;
  std::string if_true_;
  std::string if_false_;
};

// What norms of queries and keys go over, of models that have them.
class NormScope final : public Rule {
 public:
  explicit NormScope(std::string scope) : scope_(std::move(scope)) {}

  void read(Fields& file) const override {
    const bool has_norms = std::any_of(
        file.out.settings.begin(), file.out.settings.end(), [](const HfSetting& setting) {
          return setting.key == "qk_layernorm" && setting.value == Value(true);
        });
    file.set_by_type(kKey, has_norms ? Value(scope_) : value_of(AllConfig(), kKey));
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    if (config.model_config.qk_layernorm) {
      object_unless(config, kKey, Value(scope_), out);
    }
  }
  std::vector<std::string> keys() const override { return {kKey}; }
  RuleText text() const override {
    return {.always = scope_ == "head" ? "" : concat("`", kKey, ": ", scope_, "`")};
  }

 private:
  static constexpr const char* kKey = "qk_layernorm_scope";
  std::string scope_;
};

class Only final : public Rule {
 public:
  Only(std::string key, Value value, std::string advice)
      : key_(std::move(key)), value_(std::move(value)), advice_(std::move(advice)) {}
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    object_unless(config, key_, value_, out, advice_);
  }
  void settle(AllConfig& config) const override { set_value(config, key_, value_); }

 private:
  std::string key_;
  Value value_;
  std::string advice_;
};

class OnlyAmong final : public Rule {
 public:
  OnlyAmong(std::string key, std::vector<std::string> values)
      : key_(std::move(key)), values_(std::move(values)) {}
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const Value value = value_of(config, key_);
    for (const std::string& one : values_) {
      if (value == Value(one)) {
        return;
      }
    }
    object_unless(config, key_, Value(values_.front()), out);
  }

 private:
  std::string key_;
  std::vector<std::string> values_;
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

  RuleText text() const override { return {.refused = concat("`", member_, "`: ", otherwise_)}; }

 private:
  std::string member_;
  bool value_;
  std::string otherwise_;
};

class ActivationRule final : public Rule {
 public:
  ActivationRule(std::string member,
                 std::string by_default,
                 std::vector<Activation> table,
                 bool gates)
      : member_(std::move(member)),
        default_(std::move(by_default)),
        table_(std::move(table)),
        gates_(gates) {}

  void read(Fields& file) const override {
    const Found<std::string> found = file.text(member_, default_);
    std::string known;
    for (const Activation& row : table_) {
      if (row.theirs == found.value) {
        file.set_value("hidden_act", Value(row.ours), member_, found.text, found.written);
        if (!is_gated(row.ours)) {  // which says it by itself
          file.set_by_type("gated_linear_unit", Value(gates_));
        }
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
    if (const auto row = find(config); row != table_.end()) {
      const bool gated = gates_ || is_gated(row->ours);
      if (has_gated_mlp(config.model_config) != gated) {
        object_unless(config, "gated_linear_unit", Value(gated), out);
      }
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
  std::vector<std::string> keys() const override { return {"hidden_act", "gated_linear_unit"}; }

  RuleText text() const override {
    std::string values;
    for (const Activation& row : table_) {
      values += concat(values.empty() ? "" : ", ", row.theirs, " is ", row.ours);
    }
    return {.always = gates_ && !is_gated(table_.front().ours) ? "`gated_linear_unit: True`" : "",
            .read = concat("`", member_, "` (", values, ")")};
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
  bool gates_;
};

class HiddenDropout final : public Rule {
 public:
  HiddenDropout(std::string residual, std::string embedding, double by_default)
      : residual_(std::move(residual)), embedding_(std::move(embedding)), default_(by_default) {}

  void read(Fields& file) const override {
    const Found<double> residual = file.number(residual_, default_);
    const Found<double> embedding =
        embedding_.empty() ? Found<double>{0.0, "none", true} : file.number(embedding_, default_);
    if (residual.value == embedding.value) {
      file.set("hidden_dropout", residual, residual_);
    } else {
      file.out.undecided.push_back(
          concat("hidden_dropout: ", residual_, " of ", file.out.file, " is ", residual.text, ", ",
                 embedding_.empty() ? "that of embeddings" : embedding_, " ", embedding.text,
                 ", and there is one key here for both; give it"));
    }
  }
  void write(const AllConfig& config, Json& json) const override {
    json[residual_] = config.model_config.hidden_dropout;
    if (!embedding_.empty()) {
      json[embedding_] = config.model_config.hidden_dropout;
    }
  }

 private:
  std::string residual_;
  std::string embedding_;
  double default_;
};

}  // namespace

Value value_of(const AllConfig& config, const std::string& key) {
  const auto [section, name] = section_and_key(key);
  return config::find_key(section, name)->field.get(config);
}

void set_value(AllConfig& config, const std::string& key, const Value& value) {
  const auto [section, name] = section_and_key(key);
  const config::Key& row = *config::find_key(section, name);
  using config::Type;
  Value given = value;
  if (row.field.type == Type::kFloat && value.is<int64_t>()) {
    given = static_cast<double>(value.as<int64_t>());
  }
  const auto is_list_of = [&](auto type) {
    const auto* list = std::get_if<Value::List>(&given.data);
    return list != nullptr && std::all_of(list->begin(), list->end(), [&](const Value& one) {
             return one.is<decltype(type)>();
           });
  };
  const Type type = row.field.type;
  const bool fits = given.is_null()             ? row.field.nullable
                    : type == Type::kBool       ? given.is<bool>()
                    : type == Type::kInt        ? given.is<int64_t>()
                    : type == Type::kFloat      ? given.is<double>()
                    : type == Type::kString     ? given.is<std::string>()
                    : type == Type::kIntList    ? is_list_of(int64_t{})
                    : type == Type::kFloatList  ? is_list_of(double{})
                    : type == Type::kStringList ? is_list_of(std::string{})
                                                : false;
  check<ValueError>(fits, key, ": is ", to_yaml(given), ", expected ", config::type_text(row));
  if (!given.is_null()) {
    const std::string wrong = config::complaint(row, given);
    check<ValueError>(wrong.empty(), key, ": is ", to_yaml(given), ", expected ", wrong);
  }
  row.field.set(config, given);
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
RulePtr only_among(const std::string& key, const std::vector<std::string>& values) {
  return std::make_shared<OnlyAmong>(key, values);
}
RulePtr written(const std::string& member, const Json& json) {
  return std::make_shared<Written>(member, json);
}
RulePtr required(const std::string& member, bool value, const std::string& otherwise) {
  return std::make_shared<Required>(member, value, otherwise);
}
RulePtr activation(const std::string& member,
                   const std::string& by_default,
                   const std::vector<Activation>& table,
                   bool gates) {
  return std::make_shared<ActivationRule>(member, by_default, table, gates);
}
RulePtr optional_number(const std::string& member,
                        const std::string& key,
                        std::optional<double> by_default,
                        bool keeps_null) {
  return std::make_shared<OptionalNumber>(member, key, by_default, keeps_null);
}
RulePtr reciprocal(const std::string& member, const std::string& key, double by_default) {
  constexpr auto kInverse = [](double x) { return 1 / x; };
  return std::make_shared<Mapped>(member, key, by_default, Mapped::Form{kInverse, kInverse});
}
RulePtr inverse_root(const std::string& member, const std::string& key, double by_default) {
  return std::make_shared<Mapped>(member, key, by_default,
                                  Mapped::Form{.ours = [](double x) { return 1 / std::sqrt(x); },
                                               .theirs = [](double x) { return 1 / (x * x); },
                                               .writes_integers = true});
}
RulePtr embeddings_by_root_of_width() { return std::make_shared<RootOfWidth>(); }
RulePtr either(const std::string& member,
               bool by_default,
               const std::string& key,
               const std::string& if_true,
               const std::string& if_false) {
  return std::make_shared<Either>(member, by_default, key, if_true, if_false);
}
RulePtr hidden_dropout(const std::string& residual,
                       const std::string& embedding,
                       double by_default) {
  return std::make_shared<HiddenDropout>(residual, embedding, by_default);
}
RulePtr gated_silu() {
  return activation("hidden_act", "silu", {{"silu", "swiglu"}, {"swish", "swiglu"}});
}

Rules norms_of_blocks(const Norms& norms) {
  Rules out = {norms.qk_member.empty() ? fixed("qk_layernorm", norms.qk)
                                       : flag(norms.qk_member, {"qk_layernorm"}, false),
               fixed("use_final_norm", true), fixed("apply_residual_connection_post_norm", false),
               fixed("layernorm_zero_centered_gamma", norms.zero_centered)};
  if (!norms.placement.empty()) {
    out.push_back(fixed("norm_placement", norms.placement.c_str()));
  }
  if (norms.qk || !norms.qk_member.empty()) {
    out.push_back(std::make_shared<NormScope>(norms.qk_scope));
  }
  return out;
}

}  // namespace tapestry::architectures
