// What a family of models is to other programs: its config.json, the names of its tensors, its GGUF
// form. Each family is one file here, and one line of registry.cpp; everything else is generic.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "interop/architectures/hf_fields.h"
#include "parallel_core/config/config.h"
#include "parallel_core/config/read/model_folder.h"

namespace tapestry::architectures {

/// A beginning of a logical name, with its dot, and what stands there in a file.
struct NamePair {
  std::string_view logical;
  std::string_view file;
};

/// A number that every layer has in a file as a tensor without axes, although no model learns it.
struct FixedNumber {
  std::string_view name;  ///< behind "layers.I."
  double value = 0;
};

/// What the rows of a matrix that several logical ones share are grouped by.
enum class RowGroups : uint8_t {
  kHeads,       ///< num_attention_heads
  kLinearKeys,  ///< linear_num_key_heads
};
struct GroupedFile {
  std::string_view file;  ///< as in TensorNames::layer
  RowGroups groups = RowGroups::kHeads;
};

/// Names of tensors in safetensors, and how matrices lie there. Logical tensors of a layer that
/// have the same name in the file are parts of one matrix: the rows of each, in the order of the
/// table; or with `grouped` those of each group of heads (queries, key, value), one group behind
/// the other, and with `grouped_files` those of each head.
struct TensorNames {
  /// "model.": the attribute that holds all but the output layer. A model that was saved without
  /// its output layer has the names without it.
  std::string_view part;
  std::string_view layers;             ///< "layers.", behind `part`
  std::string_view head = "lm_head.";  ///< of the output layer; not behind `part`
  std::vector<NamePair> top;           ///< behind `part`
  std::vector<NamePair> layer;         ///< behind "layers.I."
  std::string_view experts = {};       ///< "mlp.experts.", behind "layers.I."; "E." follows
  std::vector<NamePair> expert = {};   ///< behind that
  /// The same matrix of all experts of a layer lies in one tensor [E, in, out], its bias in one
  /// [E, out]; `expert` has whole names, of which those of two logical ones are alike: then the
  /// columns of both alternate.
  bool stacked = false;
  /// The same matrix of all experts of a layer lies in one tensor [E, out, in], gates above the
  /// others: gate_up_proj and down_proj, behind `experts`.
  bool packed = false;
  bool transposed = false;  ///< matrices of layers are [in, out]
  bool grouped = false;     ///< of the matrix that queries, keys and values share
  std::vector<GroupedFile> grouped_files = {};
  // The names of such tensors, behind `experts`, and what they end with.
  std::string_view packed_gate_up = "gate_up_proj";
  std::string_view packed_down = "down_proj";
  std::string_view packed_ending = {};
  /// Layers behind the model's own may be in a file: they are for training on several tokens ahead,
  /// and are passed over unless the model has them (mtp_num_layers).
  bool more_layers = false;
  std::vector<std::string_view> constants = {};  ///< ends of names that are no weights
  /// These stand in what is written, in the dtype of the weights; a file may lack them.
  std::vector<FixedNumber> fixed_numbers = {};
};

/// Why a family cannot be what a configuration says.
struct Objection {
  std::string key;     ///< "model_config.hidden_act"
  std::string value;   ///< as YAML
  std::string advice;  ///< "use swiglu"
  bool operator==(const Objection&) const = default;
};

/// What a rule says, for docs/families.md; Markdown, empty where there is nothing to say.
struct RuleText {
  std::string always;   ///< "`normalization: RMSNorm`"
  std::string read;     ///< "`rms_norm_eps`"
  std::string refused;  ///< "`use_bidirectional_attention`: attention to later tokens"
};

/// One statement on the models of a family.
class Rule {
 public:
  Rule() = default;
  Rule(const Rule&) = delete;
  Rule& operator=(const Rule&) = delete;
  virtual ~Rule() = default;
  /// Reads its members of a config.json into settings, or notes what is wrong with them.
  virtual void read(hf::Fields& /*file*/) const {}
  /// Writes them, in the older of two spellings, which all versions of transformers read.
  virtual void write(const AllConfig& /*config*/, hf::Json& /*json*/) const {}
  /// What of the configuration a model of the family cannot have.
  virtual void object(const AllConfig& /*config*/, std::vector<Objection>& /*out*/) const {}
  /// Gives a configuration what it says of a key, where it is a limit that leaves one value.
  virtual void settle(AllConfig& /*config*/) const {}
  /// Keys that it decides. Those of a model's form that no rule of a family decides have their
  /// defaults in all its models (completed()).
  virtual std::vector<std::string> keys() const { return {}; }
  virtual RuleText text() const { return {}; }
};
using Rules = std::vector<std::shared_ptr<const Rule>>;

/// A key of a GGUF file, behind "ARCHITECTURE.", and the key of model_config or moe_config that it
/// is, or what is made of the configuration, and, where the value says something that no other key
/// does, how that goes back. It is left out where the value is null, and `back` is given null where
/// a file leaves it out. Keys are taken back in their order.
struct GgufKey {
  std::string_view key;
  std::string_view ours = {};
  config::Value (*made)(const AllConfig& config) = nullptr;
  void (*back)(const config::Value& value, AllConfig& config) = nullptr;
  bool whole = false;  ///< the key stands as it is, without the architecture
};

/// Some rows of each head of a matrix [heads * rows of a head, in], as a tensor
/// [heads, rows, in], or [heads, in, rows].
struct GgufHeadRows {
  NamePair name;
  std::string_view before = {};  ///< key of model_config: rows of a head before them; empty: none
  std::string_view rows = {};    ///< key of model_config: how many
  bool transposed = false;
};

/// What llama.cpp calls a family's models. Tensors that are not in a model are passed over; logical
/// ones that have the same name are joined. Gains that are stored less 1 get it back.
struct GgufTables {
  std::string_view architecture;
  std::vector<NamePair> top;
  std::vector<NamePair> layer;        ///< behind "layers.I." and "blk.I."
  std::vector<NamePair> expert = {};  ///< the same of "moe.experts.E.": all experts in one tensor
  std::vector<GgufHeadRows> head_rows = {};  ///< of layers
  /// Tensors of layers that have one number each: these stand as a list by layer in the metadata.
  std::vector<NamePair> lists = {};
  /// Integers as 32 bits, numbers as float32.
  std::vector<GgufKey> keys;
  /// The scalings of the rotation that it can say: values of rope_type beside default.
  std::vector<std::string_view> scalings = {};
  /// Rows of q and k are permuted, as llama.cpp turns channels (2j, 2j + 1) of this architecture.
  bool paired = false;
  /// What it can say although config.json cannot: keys whose objections do not count.
  std::vector<std::string_view> also = {};
  /// What it cannot say although config.json can.
  Rules limits = {};
  /// False: llama.cpp passes over adapters of its matrices.
  bool takes_adapters = true;
};

struct Architecture {
  std::string_view model_type;
  std::string_view title;  ///< for readers: "Llama 1 to 3"
  /// A configuration that names no family (hf_model_type) is of this one if this one can say it.
  bool implied = false;
  /// Values of `architectures`; the first is written, the others are read as well.
  std::vector<std::string_view> classes;
  /// The same of a model with a score head (score_head), whose files have score.weight beside what
  /// is behind `part`; empty: transformers has none.
  std::string_view score_class = {};
  TokenIds token_ids = {};  ///< where config.json leaves them out
  bool tied = false;        ///< tie_word_embeddings where it is left out
  Rules rules;
  const TensorNames* names = nullptr;
  std::optional<GgufTables> gguf = {};
  std::string_view no_gguf = {};  ///< why there is none
};

}  // namespace tapestry::architectures
