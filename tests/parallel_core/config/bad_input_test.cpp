// Every kind of wrong configuration, with the place and the words of its message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "parallel_core/config/config.h"
#include "tests/says.h"

namespace tapestry {
namespace {

// A valid file; cases add lines to its sections or replace it.
std::string base(const std::string& training = "",
                 const std::string& data = "",
                 const std::string& model = "",
                 const std::string& optimizer = "",
                 const std::string& more = "") {
  return "training_config:\n  training_iters: 20\n" + training +  // key lines start at 3
         "dataset_config:\n  batch_size: 2\n" + data +            // 5
         "model_config:\n"                                        // 5
         "  vocab_size: 100\n  num_layers: 2\n  num_attention_heads: 4\n"
         "  hidden_size: 64\n  ffn_hidden_size: 128\n  seq_length: 32\n" +
         model +                                                           // 12
         "optimizer_config:\n  learning_rate: 1e-3\n" + optimizer + more;  // 14
}
std::string training(const std::string& lines) { return base(lines); }
std::string data(const std::string& lines) { return base("", lines); }
std::string model(const std::string& lines) { return base("", "", lines); }
std::string optimizer(const std::string& lines) { return base("", "", "", lines); }
std::string section(const std::string& lines) { return base("", "", "", "", lines); }

struct Case {
  const char* name;
  std::string text;
  std::vector<std::string> fragments;  // all in one message
  std::vector<std::string> overrides = {};
  const char* model_type = "model_config";
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::string messages_of(const Case& c) {
  LoadOptions options;
  options.overrides = c.overrides;
  options.model_type = c.model_type;
  try {
    init_configs_from_text(c.text, "f.yaml", options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "(accepted)";
}

class BadInput : public ::testing::TestWithParam<Case> {};

TEST_P(BadInput, SaysWhereAndWhat) {
  const std::string messages = messages_of(GetParam());
  for (const std::string& fragment : GetParam().fragments) {
    EXPECT_THAT(messages, Says(fragment));
  }
}

const std::vector<Case> kCases = {
    // YAML itself
    {"Empty", "", {"f.yaml: is empty"}},
    {"NoMapping", "- 1\n- 2\n", {"f.yaml:1:1: ... mapping", "got a list"}},
    {"Malformed", "training_config:\n  a: [1, 2\nb: 1\n", {"f.yaml:", "not valid YAML"}},
    {"Tab", "training_config:\n\tseed: 1\n", {"f.yaml:2:", "not valid YAML"}},
    {"TwoDocuments", base() + "---\na: 1\n", {"2 YAML documents"}},
    {"DuplicateKey",
     training("  seed: 1\n  seed: 2\n"),
     {"f.yaml:4:3: the key 'seed' is given twice, first at f.yaml:3:3"}},
    {"DuplicateSection", section("training_config:\n  seed: 1\n"), {"f.yaml:14:1", "given twice"}},
    {"ListAsKey", training("  [1]: 2\n"), {"f.yaml:3:", "a key must be a name"}},
    {"TooDeep",
     training("  seed: " + std::string(40, '[') + std::string(40, ']') + "\n"),
     {"f.yaml:3:", "nested deeper than 16 levels"}},
    {"VeryDeep",
     training("  seed: " + std::string(100000, '[') + std::string(100000, ']') + "\n"),
     {"f.yaml:3:", "not valid YAML"}},
    {"AliasBomb",
     "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
     "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
     "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n",
     {"more than 100000 values"}},
    // sections and keys
    {"UnknownSection",
     section("trainning_config:\n  seed: 1\n"),
     {"f.yaml:14:1: unknown section 'trainning_config'; did you mean 'training_config'?"}},
    {"UnknownSectionFar", section("zzzzzzzzzzzzzzzz:\n"), {"f.yaml:14:1", "nearest known name"}},
    {"KeyAtTopLevel",
     section("hidden_size: 3\n"),
     {"f.yaml:14:1", "'hidden_size'; this key belongs in model_config"}},
    {"UnknownKey",
     model("  hiden_act: gelu\n"),
     {"f.yaml:12:3: unknown key 'hiden_act' in model_config; did you mean 'hidden_act'?"}},
    {"SwappedLetters", training("  sede: 1\n"), {"f.yaml:3:3", "did you mean 'seed'?"}},
    {"WrongSection",
     model("  training_iters: 3\n"),
     {"f.yaml:12:3", "it belongs in training_config"}},
    {"UnknownEntry",
     model("  rotary_config:\n    rotary_bass: 3\n"),
     {"f.yaml:13:5: unknown key 'rotary_bass' in model_config.rotary_config; did you mean "
      "'rotary_base'?"}},
    {"DottedKeyInFile", model("  rotary_config.rotary_base: 3\n"), {"f.yaml:12:3", "unknown key"}},
    {"SectionIsList", section("moe_config: [1]\n"), {"f.yaml:14:", "mapping of keys"}},
    {"TwoModels",
     section("gpt_config:\n  num_layers: 1\n"),
     {"f.yaml:14:1", "the model is in 'model_config' already"}},
    {"ModelTypeMissing",
     base(),
     {"the section llama_config is missing", "--model_type"},
     {},
     "llama_config"},
    {"ModelTypeIsOther", base(), {"does not hold the model"}, {}, "moe_config"},
    {"NoModel",
     "training_config:\n  training_iters: 1\n",
     {"f.yaml: the section model_config is missing"}},
    {"RequiredKey",
     "training_config:\n  training_iters: 1\nmodel_config:\n  num_layers: 2\n",
     {"f.yaml:3:1: model_config.vocab_size ... is required ... (integer)",
      "f.yaml:3:1: model_config.seq_length is required"}},
    {"AliasDisagrees",
     model("  qkv_has_bias: True\n  add_qkv_bias: False\n"),
     {"f.yaml:13:3: model_config.qkv_has_bias: ... 'qkv_has_bias' ... f.yaml:12:3 ... "
      "'add_qkv_bias' ... different values"}},
    {"TopLevelAliasDisagrees",
     section("parallel_config:\n  recompute_config: {recompute: [1]}\n"
             "recompute_config: {recompute: [2]}\n"),
     {"f.yaml:16:", "recompute", "different values"}},
    // types
    {"StringForInt",
     training("  log_interval: often\n"),
     {"f.yaml:3:17: training_config.log_interval: expected an integer, got the string 'often'"}},
    {"FloatForInt",
     data("  micro_batch_num: 2.0\n"),
     {"f.yaml:5:20", "expected an integer, got the number 2.0"}},
    {"QuotedInt", data("  micro_batch_num: \"2\"\n"), {"f.yaml:5:20", "got the string \"2\""}},
    {"HugeInt", training("  seed: 99999999999999999999\n"), {"f.yaml:3:9", "at most 64 bits"}},
    {"StringForFloat",
     model("  norm_epsilon: tiny\n"),
     {"f.yaml:12:17", "expected a number, got the string 'tiny'"}},
    {"NotFinite", model("  norm_epsilon: .inf\n"), {"f.yaml:12:17", "finite number"}},
    {"HugeFloat", model("  init_method_std: 1e999\n"), {"f.yaml:12:20", "a double can hold"}},
    {"IntForBool",
     model("  qkv_has_bias: 1\n"),
     {"f.yaml:12:17", "expected a boolean ... (True ... False), ... 1"}},
    {"StringForBool", model("  qkv_has_bias: maybe\n"), {"f.yaml:12:17", "expected a boolean"}},
    {"NumberForString", training("  output_dir: 5\n"), {"f.yaml:3:15", "write \"5\""}},
    {"BoolForString", training("  output_dir: on\n"), {"f.yaml:3:15", "expected a string"}},
    {"NullForInt", data("  micro_batch_num: ~\n"), {"f.yaml:5:", "expected integer, got null"}},
    {"ListForInt", training("  seed: [1]\n"), {"f.yaml:3:9", "expected an integer, got a list"}},
    {"MapForString", training("  output_dir: {a: 1}\n"), {"expected a string, got a mapping"}},
    {"ScalarForMapping",
     model("  rotary_config: 3\n"),
     {"f.yaml:12:18", "rotary_config: ... expected a mapping, got ... '3'"}},
    {"StringInList",
     training("  dump_grad_steps: [1, x]\n"),
     {"f.yaml:3:20", "expected an integer, got the string 'x'"}},
    {"BadDType",
     model("  compute_dtype: float8\n"),
     {"f.yaml:12:18", "expected one of ... float16, bfloat16, float32, ... 'float8'"}},
    {"LoraTargetsShape",
     section("lora_config:\n  target_cells: [{cell: a}]\n"),
     {"f.yaml:15:17", "exactly one entry ... {target_cells: [...]}"}},
    // ranges and choices
    {"NegativeSeed", training("  seed: -1\n"), {"f.yaml:3:9", "must be >= 0, got -1"}},
    {"ZeroBatch", data("  micro_batch_num: 0\n"), {"f.yaml:5:20", "in [1, 2147483647], got 0"}},
    {"HugeVocabulary",
     base(),
     {"--set model_config.vocab_size=9000000000", "2147483647"},
     {"model_config.vocab_size=9000000000"}},
    {"ZeroLearningRate",
     base(),
     {"learning_rate: must be > 0, got 0; `pretrain_gpt --lr_zero N`"},
     {"optimizer_config.learning_rate=0"}},
    // On the command line a default is a wish too, against what the file says.
    {"ClippingSwitchedOffBesideTheOtherKey",
     training("  grad_clip_kwargs: {grad_clip_type: ClipGlobalNorm, clip_value: 1.0}\n"),
     {"--set optimizer_config.clip_grad=0", "grad_clip_kwargs=null clips nothing"},
     {"optimizer_config.clip_grad=0"}},
    {"NoWarmupBesideTheOtherSchedule",
     optimizer("  learning_rate_scheduler_kwargs: {decay_steps: 10, warmup_steps: 5}\n"),
     {"--set optimizer_config.lr_warmup_iters=0", "belongs to another schedule"},
     {"optimizer_config.lr_warmup_iters=0"}},
    {"UsualNumberOfCheckpointsBesideAnInterval",
     training("  keep_checkpoint_per_n_minutes: 10\n"),
     {"keep_checkpoint_per_n_minutes", "given beside keep_checkpoint_max"},
     {"training_config.keep_checkpoint_max=5"}},
    {"UsualSplitBesideDataOfEachPart",
     data("  train_data_path: a\n"),
     {"dataset_config.split", "data of its own"},
     {"dataset_config.split='969,30,1'"}},
    {"DropoutRange", model("  hidden_dropout: 1.5\n"), {"f.yaml:12:19", "in [0, 1], got 1.5"}},
    {"Activation",
     model("  hidden_act: gellu\n"),
     {"f.yaml:12:15", "unknown value 'gellu'", "squared_relu", "the nearest is 'gelu'"}},
    {"Optimizer", optimizer("  optimizer_type: adamw\n"), {"f.yaml:14:19", "nearest is 'AdamW'"}},
    {"Betas", optimizer("  betas: [0.9]\n"), {"f.yaml:14:10", "must be two numbers"}},
    {"BetaRange", optimizer("  betas: [0.9, 1.0]\n"), {"must be in [0, 1), got 1.0"}},
    {"EmptyOutput", training("  output_dir: ''\n"), {"f.yaml:3:15", "must not be empty"}},
    {"Split", data("  split: 90,x\n"), {"f.yaml:5:10", "'x' is no share"}},
    {"SplitZero", data("  split: 0,0,0\n"), {"add up to 0"}},
    {"SplitFour", data("  split: 1,1,1,1\n"), {"one to three shares"}},
    {"BlendMixed", data("  data_path: [0.3, a, b, c]\n"), {"f.yaml:5:14", "mixes prefixes"}},
    {"BlendWithoutAWeight",
     data("  data_path: [a, 0.3, b]\n"),
     {"f.yaml:5:14", "before each prefix", "3 ... entries with the number ... 0.3"}},
    {"BlendWeightsAfter",
     data("  train_data_path: [a, 0.7, b, 0.3]\n"),
     {"0.7 ... stands after the prefix ... 'a'"}},
    {"SplitWord", data("  split: [90, ten]\n"), {"f.yaml:5:", "expected numbers"}},
    {"TextEmpty", data("  text: []\n"), {"not be an empty list"}},
    {"TextWithoutName", data("  text: ['']\n"), {"holds an empty name"}},
    {"BlendWeight", data("  data_path: [-1, a, 2, c]\n"), {"the weight -1 must be"}},
    {"BlendPair", data("  data_path: [[0.3, a, b]]\n"), {"weight and a prefix"}},
    {"DumpStepZero", training("  dump_grad_steps: [0]\n"), {"steps count from 1"}},
    {"Window", model("  window_size: [7, 1]\n"), {"f.yaml:12:16", "must be ... [L, 0] ... L >= 0"}},
    // combinations: model
    {"HeadsDivideHidden",
     base(),
     {"divide hidden_size 66", "kv_channels"},
     {"model_config.hidden_size=66"}},
    {"GroupsDivideHeads",
     model("  group_query_attention: True\n  num_query_groups: 3\n"),
     {"f.yaml:13:21: model_config.num_query_groups: 3 ... does not divide ... num_attention_heads "
      "4"}},
    {"GroupsDefault", model("  group_query_attention: True\n"), {"32 (the default) does not"}},
    {"GroupsWithoutFlag",
     model("  num_query_groups: 2\n"),
     {"f.yaml:12:21", "needs ... group_query_attention:"}},
    {"PositionsTooShort",
     model("  position_embedding_type: learned_absolute\n  max_position_embeddings: 31\n"),
     {"f.yaml:13:28", "less than seq_length 32"}},
    {"OddRotary",
     model("  position_embedding_type: rope\n  rotary_config: {rotary_percent: 0.2}\n"),
     {"f.yaml:13:", "gives 3 rotated channels"}},
    {"UnknownRopeType",
     model("  position_embedding_type: rope\n  rotary_config: {rope_type: ntk}\n"),
     {"f.yaml:13:", "rope_type", "default, llama3, yarn"}},
    {"RotationExtendedTwice",
     model("  position_embedding_type: rope\n"
           "  rotary_config: {rope_type: llama3, seq_len_interpolation_factor: 2}\n"),
     {"f.yaml:13:", "seq_len_interpolation_factor: is 2", "leave one of the two out"}},
    {"RotaryBandUpsideDown",
     model("  position_embedding_type: rope\n"
           "  rotary_config: {rope_type: llama3, low_freq_factor: 5}\n"),
     {"f.yaml:13:", "high_freq_factor is 4", "above low_freq_factor ... 5"}},
    {"GateContradicts",
     model("  gated_linear_unit: False\n  hidden_act: swiglu\n"),
     {"f.yaml:12:22", "hidden_act swiglu is gated"}},
    {"GateWithoutOne",
     model("  gated_linear_unit: True\n  hidden_act: xielu\n"),
     {"f.yaml:12:22", "xielu has no gate"}},
    {"LayerTypesOfOtherNumber",
     model("  window_size: [3, 0]\n  layer_types: [full_attention, sliding_attention, "
           "full_attention, full_attention, full_attention]\n"),
     {"layer_types", "has 5 entries for"}},
    {"UnknownLayerType",
     model("  layer_types: [mamba, rwkv]\n"),
     {"full_attention, sliding_attention, linear_attention, conv or mamba", "got rwkv"}},
    {"ValueHeadsThatKeyHeadsDoNotDivide",
     model("  layer_types: linear_attention\n  linear_num_key_heads: 3\n"
           "  linear_num_value_heads: 4\n"),
     {"linear_num_value_heads", "is 4, but must be a multiple of linear_num_key_heads = 3"}},
    {"HeadsThatGroupsDoNotDivide",
     model("  layer_types: mamba\n  mamba_num_heads: 6\n  mamba_num_groups: 4\n"),
     {"mamba_num_heads", "is 6, but must be a multiple of mamba_num_groups = 4"}},
    {"WidthThatNoHeadsFill",
     model("  layer_types: mamba\n  mamba_head_dim: 7\n"),
     {"must be a multiple of mamba_head_dim = 7"}},
    {"TimeStepsThatDescend",
     model("  layer_types: mamba\n  mamba_time_step_limit: [1.0, 0.5]\n"),
     {"mamba_time_step_limit", "must be [least, most] with 0 <= least < most, got [1.0, 0.5]"}},
    {"MaskThatStatesCannotKnow",
     model("  layer_types: conv\n  encoder_attn_mask_type: padding\n"),
     {"encoder_attn_mask_type", "a mask cannot hide any; use causal"}},
    {"SlidingWithoutWindow",
     model("  layer_types: sliding_attention\n"),
     {"layer_types", "need a window_size"}},
    {"NoLayerRotates",
     model("  position_embedding_type: rope\n  no_rope_layers: [0]\n"),
     {"rotates no layer"}},
    {"PlacementTwice",
     model("  norm_placement: post\n  use_sandwich_norm: True\n"),
     {"is True, but norm_placement is post"}},
    {"ResidualBehindNoNorm",
     model("  norm_placement: post\n  apply_residual_connection_post_norm: True\n"),
     {"norm_placement post"}},
    {"LayerNormWithoutGain", model("  norm_has_gain: False\n"), {"RMSNorm alone"}},
    {"ProjectionNormOfLayerNorm",
     model("  qk_layernorm: True\n  qk_layernorm_scope: projection\n"),
     {"needs normalization: RMSNorm"}},
    {"LatentWithoutRotation",
     model("  multi_latent_attention: True\n"),
     {"has to be rope with multi_latent_attention"}},
    {"LatentWithChannels",
     model("  multi_latent_attention: True\n  position_embedding_type: rope\n  kv_channels: 12\n"),
     {"qk_head_dim + qk_pos_emb_head_dim"}},
    {"AheadWithLearnedPositions",
     model("  mtp_num_layers: 1\n"),
     {"f.yaml:12:", "mtp_num_layers: is 1, but position_embedding_type is learned_absolute",
      "use rope"}},
    {"AheadWithANormOfEmbeddings",
     model("  mtp_num_layers: 2\n  position_embedding_type: rope\n  embedding_norm: True\n"),
     {"mtp_num_layers: is 2, but embedding_norm is True"}},
    {"AheadBesideAdapters",
     base("", "", "  mtp_num_layers: 1\n  position_embedding_type: rope\n") +
         "lora_config: {use_lora: True}\n",
     {"mtp_num_layers: is 1, but adapters are trained for the next token alone"}},
    {"AheadOfADenseModel",
     base("", "", "  num_nextn_predict_layers: 1\n  position_embedding_type: rope\n") +
         "moe_config: {num_experts: 4, upcycle_from: /nowhere}\n",
     {"mtp_num_layers: is 1", "upcycle_from"}},
    {"AheadNegative", model("  mtp_num_layers: -1\n"), {"f.yaml:12:", "-1", "[0, 64]"}},
    {"AheadFactorNegative",
     model("  mtp_loss_factor: -0.5\n"),
     {"f.yaml:12:", "mtp_loss_scaling_factor", "-0.5", ">= 0"}},
    {"TemperatureWithoutRotation",
     model("  query_temperature_beta: 0.1\n"),
     {"needs position_embedding_type: rope"}},
    {"FusionWithoutSwiglu", model("  apply_swiglu_fusion: True\n"), {"needs hidden_act: swiglu"}},
    {"WindowTwice",
     model("  window_size: [7, 0]\n  fa_config: {pre_tokens: 8}\n"),
     {"f.yaml:13:", "is 8, but window_size is [7, 0]"}},
    {"KeepProb",
     model("  attention_dropout: 0.1\n  fa_config: {keep_prob: 0.8}\n"),
     {"f.yaml:13:", "their sum must be 1"}},
    {"DataSeqLength", data("  seq_length: 64\n"), {"f.yaml:5:15", "the model's is 32"}},
    {"BothHalves", training("  bf16: True\n  fp16: True\n"), {"f.yaml:4:9", "choose one"}},
    {"DTypeAgainstFlag",
     base("  bf16: True\n", "", "  compute_dtype: float32\n"),
     {"f.yaml:13:18", "training_config.bf16: True sets bfloat16"}},
    {"Heads4Tp3",
     section("parallel_config:\n  tensor_model_parallel_size: 3\n"),
     {"num_attention_heads: 4 ... not divisible by ... tensor_model_parallel_size 3"}},
    {"FfnTp4",
     section("parallel_config:\n  tensor_model_parallel_size: 4\n"),
     {"ffn_hidden_size: 130 ... not divisible by ... tensor_model_parallel_size 4"},
     {"model_config.ffn_hidden_size=130"}},
    {"GroupsTp4",
     section("parallel_config:\n  tensor_model_parallel_size: 4\n"),
     {"num_query_groups: 6 ... tensor_model_parallel_size 4: ... divides the other"},
     {"model_config.num_attention_heads=12", "model_config.kv_channels=8",
      "model_config.group_query_attention=True", "model_config.num_query_groups=6"}},
    {"SequenceParallelLength",
     section("parallel_config:\n  tensor_model_parallel_size: 4\n  sequence_parallel: True\n"),
     {"seq_length: 30 ... not divisible by ... tensor_model_parallel_size 4"},
     {"model_config.seq_length=30"}},
    {"ContextParallelLength",
     section("parallel_config:\n  context_parallel_size: 4\n"),
     {"seq_length: 36 ... two chunks for each of ... context_parallel_size 4 ... 8"},
     {"model_config.seq_length=36"}},
    {"ContextAndSequenceParallelLength",
     section("parallel_config:\n  context_parallel_size: 2\n  tensor_model_parallel_size: 4\n"
             "  sequence_parallel: True\n"),
     {"seq_length: 36 ... context_parallel_size 2 ... 18, ... sequence_parallel ... cannot divide "
      "over ... tensor_model_parallel_size 4"},
     {"model_config.seq_length=36"}},
    {"ContextParallelUpdateInBackward",
     section("parallel_config:\n  context_parallel_size: 2\n"),
     {"optimizer_in_backward: updates weights before", "context_parallel_size 2"},
     {"optimizer_config.optimizer_in_backward=True"}},
    {"FusedLossTp2",
     section("parallel_config:\n  tensor_model_parallel_size: 2\n"),
     {"fused_linear_cross_entropy", "tensor_model_parallel_size 2 ... splits"},
     {"model_config.fused_linear_cross_entropy=True"}},
    {"Interleaving",
     section("parallel_config:\n  virtual_pipeline_model_parallel_size: 2\n"),
     {"f.yaml:15:41", "needs ... pipeline_model_parallel_size >= 2"}},
    {"LayerListAndOffset",
     section("parallel_config:\n  num_layer_list: [2]\n  offset: [0]\n"),
     {"f.yaml:16:11", "keep one"}},
    {"LayerListSum",
     section("parallel_config:\n  num_layer_list: [3]\n"),
     {"f.yaml:15:19", "adds up to 3; expected 2"}},
    {"LayerListShape",
     section("parallel_config:\n  num_layer_list: \"[1, 1]\"\n"),
     {"1 row(s) of 2; the pipeline needs 1 of 1"}},
    {"LayerListRows",
     section("parallel_config:\n  num_layer_list: [[1, 1], [2]]\n"),
     {"different lengths"}},
    // combinations: training and data
    {"NoLength", base(), {"else gives the length"}, {"training_config.training_iters=0"}},
    {"TwoLengths", data("  train_samples: 100\n"), {"f.yaml:5:18", "one of them gives"}},
    {"DumpBeyondEnd", training("  dump_grad_steps: [21]\n"), {"beyond training_iters 20"}},
    {"ClipTwice",
     base("  grad_clip_kwargs: {grad_clip_type: ClipGlobalNorm, clip_value: 1}\n",
          "",
          "",
          "  clip_grad: 1.0\n"),
     {"f.yaml:15:14: optimizer_config.clip_grad", "keep one"}},
    {"ClipIncomplete",
     training("  grad_clip_kwargs:\n    clip_value: 1.0\n"),
     {"f.yaml:3:3: training_config.grad_clip_kwargs.grad_clip_type is required"}},
    {"ClipType",
     training("  grad_clip_kwargs: {grad_clip_type: ClipNorm, clip_value: 1}\n"),
     {"f.yaml:3:", "unknown value 'ClipNorm'", "ClipGlobalNorm"}},
    {"ScaleFactorAlone", training("  loss_scale_factor: 2\n"), {"needs loss_scale_value"}},
    {"HalfParametersAlone",
     model("  params_dtype: bfloat16\n"),
     {"f.yaml:12:17", "16-bit ... need the same ... compute_dtype"}},
    {"HalfParametersUnfused",
     model("  params_dtype: bfloat16\n  compute_dtype: bfloat16\n  use_fused_kernels: False\n"),
     {"f.yaml:12:17", "needs ... use_fused_kernels:"}},
    {"HalfLossAlone",
     model("  fp16_lm_cross_entropy: True\n"),
     {"f.yaml:12:26", "needs ... compute_dtype float16, ... float32"}},
    {"ScaleValueAlone",
     training("  loss_scale_value: 65536\n"),
     {"f.yaml:3:21", "needs ... loss_scale_factor (usually 2) ... loss_scale_window"}},
    {"ScaleFactorOne",
     training("  loss_scale_value: 8\n  loss_scale_factor: 1\n  loss_scale_window: 5\n"),
     {"f.yaml:4:22", "training_config.loss_scale_factor"}},
    {"OverlapWithoutWrapper",
     training("  overlap_grad_reduce: True\n"),
     {"f.yaml:3:24", "needs wrap_with_ddp: True"}},
    {"BucketWithoutWrapper", training("  bucket_size: 10\n"), {"needs wrap_with_ddp: True"}},
    {"DistributedWithoutWrapper",
     training("  wrap_with_ddp: False\n  use_distributed_optimizer: True\n"),
     {"f.yaml:3:18", "use_distributed_optimizer: ... True needs it"}},
    {"GatherWithoutDistributed",
     optimizer("  overlap_param_gather: True\n"),
     {"needs training_config.use_distributed_optimizer"}},
    {"TwoDataSources", data("  data_path: a\n  step_data_dir: b\n"), {"f.yaml:6:18", "beside"}},
    {"DataPathAndParts",
     data("  data_path: a\n  train_data_path: b\n"),
     {"f.yaml:6:20", "given beside data_path"}},
    {"TextBesideData", data("  data_path: a\n  text: b.txt\n"), {"given beside data_path"}},
    {"SamplesWithoutSteps", data("  step_data_as_samples: True\n"), {"without step_data_dir"}},
    {"TextBesideSteps", data("  text: b.txt\n  step_data_dir: c\n"), {"given beside text"}},
    {"ValidWithoutTrain", data("  valid_data_path: a\n"), {"train_data_path ... beside it"}},
    {"TestWithoutTrain", data("  test_data_path: a\n"), {"train_data_path ... beside it"}},
    {"SplitBesideParts",
     data("  train_data_path: a\n  split: 90,10\n"),
     {"f.yaml:6:10", "has data of its own"}},
    {"CoverageOfBytes",
     data("  tokenizer_type: byte\n  character_coverage: 0.99\n"),
     {"has no effect with ... tokenizer_type"}},
    {"CoverageOfAReadyTokenizer",
     data("  data_path: a\n  character_coverage: 0.99\n"),
     {"is trained here"}},
    {"ByteModel", data("  tokenizer_type: byte\n  tokenizer_model: m\n"), {"no model file"}},
    {"ProfileSteps", training("  profile_step_start: 9\n"), {"after profile_step_end 5"}},
    {"ProfileAfterTheRun",
     training("  profile: True\n  profile_step_start: 30\n  profile_step_end: 30\n"),
     {"profile_step_start: is 30, but the run has 20 steps"}},
    {"ProfileLevel", training("  profile_level: level3\n"), {"level0, level1, level2"}},
    {"ProfileFramework", training("  profile_framework: memory\n"), {"all, time, None"}},
    {"ProfileStepZero", training("  profile_step_start: 0\n"), {"profile_step_start", "> 0"}},
    {"ProfileCounters", training("  profile_aicore_metrics: 7\n"), {"[-1, 6]"}},
    // combinations: optimizer and schedule
    {"MomentumOfAdam",
     optimizer("  momentum: 0.9\n"),
     {"f.yaml:14:13", "no effect ... optimizer_type AdamW"}},
    {"MomentsInFloat16",
     optimizer("  exp_avg_dtype: float16\n"),
     {"exp_avg_dtype", "must be ... float32 ... bfloat16, ... float16"}},
    {"MomentsOfSgd",
     optimizer("  optimizer_type: SGD\n  exp_avg_dtype: bfloat16\n"),
     {"exp_avg_dtype", "no effect ... optimizer_type SGD"}},
    {"RemaindersOfMuon",
     base("  bf16: True\n", "", "", "  optimizer_type: Muon\n  store_param_remainders: True\n"),
     {"store_param_remainders", "no effect ... optimizer_type Muon"}},
    {"StepsOfLion",
     optimizer("  optimizer_type: Lion\n  ns_steps: 3\n"),
     {"ns_steps", "no effect ... optimizer_type Lion"}},
    {"CoefficientsOfAdamW",
     optimizer("  ns_coefficients: [3.0, -4.0, 2.0]\n"),
     {"f.yaml:14:20", "ns_coefficients", "no effect ... optimizer_type AdamW"}},
    {"AdamwIncludeOfLion",
     optimizer("  optimizer_type: Lion\n  adamw_include: [\"*embed*\"]\n"),
     {"adamw_include", "no effect ... optimizer_type Lion"}},
    {"TwoCoefficients",
     optimizer("  optimizer_type: Muon\n  ns_coefficients: [3.0, -4.0]\n"),
     {"f.yaml:15:20", "three numbers a, b, c, or rows", "[3.0, -4.0]"}},
    {"CoefficientsWithoutCount",
     optimizer("  optimizer_type: Muon\n  ns_coefficients: [[3.0, -4.0, 2.0], [2.0, -1.5, 0.5]]\n"),
     {"ns_coefficients", "rows [[a, b, c], iterations]"}},
    {"HalfAnIteration",
     optimizer("  optimizer_type: Muon\n  ns_coefficients: [[[3.0, -4.0, 2.0], 0.5]]\n"),
     {"ns_coefficients", "whole numbers of iterations"}},
    {"MixedCoefficients",
     optimizer("  optimizer_type: Muon\n  ns_coefficients: [[3.0, -4.0, 2.0], 5]\n"),
     {"ns_coefficients", "expected lists of numbers", "5"}},
    {"CoefficientInWords",
     optimizer("  optimizer_type: Muon\n  ns_coefficients: [[[a, -4.0, 2.0], 5]]\n"),
     {"ns_coefficients", "expected a number", "'a'"}},
    {"EmptyRule",
     optimizer("  weight_decay: 0.1\n  weight_decay_exclude: [\"\"]\n"),
     {"f.yaml:15:25", "would match every parameter"}},
    {"CyclesOfALine",
     optimizer("  lr_decay_style: linear\n  lr_num_cycles: 2\n"),
     {"f.yaml:15:18", "lr_num_cycles", "no effect with lr_decay_style linear",
      "cosine, cosine_restarts, cooldown"}},
    {"PowerOfACosine",
     optimizer("  lr_decay_style: cosine\n  lr_decay_power: 2\n"),
     {"lr_decay_power", "belongs to polynomial"}},
    {"KeepWithoutCooldown", optimizer("  lr_keep_iters: 2\n"), {"lr_keep_iters", "constant"}},
    {"KeepTooLong",
     optimizer("  lr_decay_style: cooldown\n  lr_warmup_iters: 5\n  lr_keep_iters: 15\n"),
     {"lr_keep_iters", "is 15", "nothing is left of the decay of 20"}},
    {"RestartsWithoutLength",
     optimizer("  lr_decay_style: warm_restarts\n"),
     {"lr_restart_iters", "is required by lr_decay_style warm_restarts"}},
    {"RestartsShrink",
     optimizer("  lr_decay_style: warm_restarts\n  lr_restart_iters: 5\n  lr_restart_mult: 0\n"),
     {"lr_restart_mult", ">= 1"}},
    {"NoCycles",
     optimizer("  lr_decay_style: cosine\n  lr_num_cycles: 0\n"),
     {"lr_num_cycles", "> 0"}},
    {"PowerBesideTheOtherFamily",
     optimizer("  learning_rate_scheduler_kwargs: {decay_steps: 9}\n  lr_decay_power: 2\n"),
     {"lr_decay_power", "another schedule than learning_rate_scheduler_kwargs"}},
    {"AdafactorWithoutRate",
     optimizer("  optimizer_type: Adafactor\n  decay_rate: null\n"),
     {"decay_rate", "is needed with ... optimizer_type"}},
    {"CameWithoutAverage",
     optimizer("  optimizer_type: Came\n  betas: [0.0, 0.9]\n"),
     {"betas", "first must be above ... 0 ... optimizer_type"}},
    {"RemaindersOfFloat32",
     optimizer("  store_param_remainders: True\n"),
     {"store_param_remainders", "needs ... compute_dtype bfloat16", "it is float32"}},
    {"BackwardWithMicroBatches",
     base("", "  micro_batch_num: 3\n", "", "  optimizer_in_backward: True\n"),
     {"optimizer_in_backward", "needs ... micro_batch_num: 1, ... 3"}},
    {"BackwardWithNorm",
     optimizer("  optimizer_in_backward: True\n  clip_grad: 1.0\n"),
     {"optimizer_in_backward", "clipping by norm", "GradClipByValue"}},
    {"BackwardWithDumps",
     base("  dump_grad_steps: [1]\n", "", "", "  optimizer_in_backward: True\n"),
     {"optimizer_in_backward", "dump_grad_steps"}},
    {"BackwardWithFloat16",
     base("  fp16: True\n", "", "", "  optimizer_in_backward: True\n"),
     {"optimizer_in_backward", "float16"}},
    {"BackwardWithoutMainGrads",
     optimizer("  optimizer_in_backward: True\n  main_grads_dtype: bfloat16\n"),
     {"main_grads_dtype", "no effect with ... optimizer_in_backward"}},
    {"Nesterov", optimizer("  optimizer_type: SGD\n  nesterov: True\n"), {"needs momentum > 0"}},
    {"BetaTwice", optimizer("  betas: [0.9, 0.9]\n  beta2: 0.95\n"), {"betas has 0.9"}},
    {"TwoSchedules",
     optimizer("  learning_rate_scheduler_kwargs: {decay_steps: 10}\n"
               "  lr_decay_style: constant\n"),
     {"f.yaml:15:19: optimizer_config.lr_decay_style", "keep one"}},
    {"ScheduleIncomplete",
     optimizer("  learning_rate_scheduler_kwargs: {warmup_steps: 1}\n"),
     {"f.yaml:14:3", "decay_steps is required"}},
    {"MinLr", optimizer("  min_lr: 0.01\n"), {"f.yaml:14:11: optimizer_config.min_lr", "0.001"}},
    {"NegativeMinLr", optimizer("  min_lr: -0.01\n"), {"optimizer_config.min_lr: must be >= 0"}},
    {"WarmupInit", optimizer("  lr_warmup_init: 1\n"), {"f.yaml:14:19", "lr_warmup_init"}},
    {"Warmup",
     optimizer("  lr_warmup_iters: 20\n"),
     {"f.yaml:14:20: optimizer_config.lr_warmup_iters", "shorter ... decay of 20"}},
    {"WarmupOfDecay",
     optimizer("  lr_warmup_iters: 4\n  lr_decay_iters: 4\n"),
     {"lr_warmup_iters", "decay of 4"}},
    {"DecayZero", optimizer("  lr_decay_iters: 0\n"), {"lr_decay_iters: must be > 0"}},
    {"DecayStyle", optimizer("  lr_decay_style: quadratic\n"), {"lr_decay_style: unknown value"}},
    {"Wsd", optimizer("  lr_decay_style: WSD\n"), {"lr_wsd_decay_iters: is required"}},
    {"WsdStyle", optimizer("  lr_wsd_decay_style: sharp\n"), {"lr_wsd_decay_style: unknown"}},
    {"SamplesInSteps", optimizer("  lr_warmup_samples: 4\n"), {"use lr_warmup_iters"}},
    {"DecayShrinks",
     optimizer("  weight_decay_incr_style: linear\n  start_weight_decay: 0.2\n"
               "  end_weight_decay: 0.1\n"),
     {"f.yaml:16:21: optimizer_config.end_weight_decay"}},
    {"DecayConstant",
     optimizer("  start_weight_decay: 0.1\n  end_weight_decay: 0.2\n"),
     {"weight_decay_incr_style: is constant"}},
    {"NegativeDecay", optimizer("  start_weight_decay: -0.1\n"), {"start_weight_decay: must be"}},
    {"BothSchedulers",
     optimizer("  override_opt_param_scheduler: True\n"),
     {"f.yaml:14:33", "cannot both be True"}},
    {"EpochsNeedDecay",
     base("  epochs: 2\n", "", "", "  lr_decay_style: cosine\n"),
     {"lr_decay_iters: is needed"},
     {"training_config.training_iters=0"}},
    // overrides
    {"OverrideForm", base(), {"--set ... seed: expected ... section.key=value"}, {"seed"}},
    {"OverrideNoSection", base(), {"--set a=1: ... expected ... section.key=value"}, {"a=1"}},
    {"OverrideSection",
     base(),
     {"--set trainig_config.seed=1: unknown section", "training_config"},
     {"trainig_config.seed=1"}},
    {"OverrideKey",
     base(),
     {"--set training_config.sed=1: unknown key 'sed'", "'seed'"},
     {"training_config.sed=1"}},
    {"OverrideType",
     base(),
     {"--set training_config.seed=x: training_config.seed: expected an "
      "integer, got the string 'x'"},
     {"training_config.seed=x"}},
    {"OverrideEntry",
     base(),
     {"unknown key 'rotary_bas' in model_config.rotary_config"},
     {"model_config.rotary_config.rotary_bas=1"}},
    {"OverrideYaml",
     base(),
     {"--set training_config.seed=[1: not valid YAML"},
     {"training_config.seed=[1"}},
};

INSTANTIATE_TEST_SUITE_P(All, BadInput, ::testing::ValuesIn(kCases), [](const auto& info) {
  return std::string(info.param.name);
});

TEST(ConfigErrors, TheBaseIsValid) {
  EXPECT_EQ(messages_of({"", base(), {}}), "(accepted)");
  EXPECT_TRUE(init_configs_from_text(base(), "f.yaml").unsupported.empty());
}

TEST(ConfigErrors, AreCollected) {
  try {
    init_configs_from_text(base("  sed: 1\n  log_interval: x\n", "", "  hidden_act: no\n"),
                           "f.yaml");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.findings().size(), 3U) << error.what();
  }
}

TEST(ConfigErrors, WarmupOfTheCommandLineGoesBeforeAFractionOfTheFile) {
  const std::string text = optimizer("  lr_warmup_fraction: 0.1\n");
  const auto fraction = [&](const std::vector<std::string>& overrides) {
    return init_configs_from_text(text, "f.yaml", {.overrides = overrides})
        .optimizer_config.lr_warmup_fraction;
  };
  EXPECT_EQ(fraction({}), 0.1);
  EXPECT_EQ(fraction({"optimizer_config.lr_warmup_iters=0"}), std::nullopt);
  EXPECT_EQ(fraction({"optimizer_config.lr_warmup_iters=3"}), std::nullopt);
  EXPECT_EQ(
      fraction({"optimizer_config.lr_warmup_iters=3", "optimizer_config.lr_warmup_fraction=0.2"}),
      0.2);
}

// A resolved configuration has the keys at their defaults, and loads.
TEST(ConfigErrors, DefaultsOfAFileAreNoWishes) {
  const auto loads = [](const std::string& text) {
    EXPECT_NO_THROW(init_configs_from_text(text, "f.yaml")) << text;
  };
  loads(training("  grad_clip_kwargs: {grad_clip_type: ClipGlobalNorm, clip_value: 1.0}\n") +
        "\nx-none: {}\n");
  loads(
      optimizer("  learning_rate_scheduler_kwargs: {decay_steps: 10}\n  lr_warmup_iters: 0\n"
                "  min_lr: 0.0\n"));
  loads(training("  keep_checkpoint_per_n_minutes: 10\n  keep_checkpoint_max: 5\n"));
}

TEST(ConfigErrors, OneMistakeGivesOneMessage) {
  for (const char* value : {"0", "x", "-3", "null"}) {
    LoadOptions options;
    options.overrides = {std::string("model_config.num_attention_heads=") + value};
    try {
      init_configs_from_text(base(), "f.yaml", options);
      FAIL() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.findings().size(), 1U) << error.what();
    }
  }
}

TEST(ConfigErrors, FileNames) {
  EXPECT_THROW(init_configs_from_yaml("config.json"), ConfigError);
  EXPECT_THROW(init_configs_from_yaml("/nowhere/config.yaml"), IoError);
  EXPECT_THROW(init_configs_from_yaml(""), ConfigError);
}

}  // namespace
}  // namespace tapestry
