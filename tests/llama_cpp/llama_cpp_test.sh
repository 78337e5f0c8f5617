#!/usr/bin/env bash
# Small models that are trained here say in llama.cpp, from exported files, what they say here.
#
#   llama_cpp_test.sh SOURCE_DIR SCRATCH PROGRAMS LLAMA_CPP_EXPECT
#
# Exits with 77 where llama.cpp cannot be had (scripts/llama_cpp.sh).
set -euo pipefail
source_dir="$1" scratch="$2" programs="$3" expect="$4"
llama_cpp=(bash "$source_dir/scripts/llama_cpp.sh")
code=0
"${llama_cpp[@]}" --fetch || code=$?
((code == 0)) || exit "$code"

rm -rf "$scratch"
mkdir -p "$scratch"
cd "$scratch"
# The quick start's text where it is at hand, else the documentation's.
if command -v bible >/dev/null; then
  bible -l 100000 gen1-mat5 | sed 's/^ *[0-9]* *//' | grep -v '^$' | sed -n 1,4000p >text.txt
else
  cat "$source_dir"/docs/*.md >text.txt
fi

train() {  # train NAME OPTION...
  "$programs/pretrain_gpt" --config_path "$source_dir/examples/gpt/pretrain_gpt_tiny.yaml" \
    --set "dataset_config.text=[text.txt]" --set "training_config.output_dir=$1" \
    --set training_config.training_iters=80 --set training_config.save_interval=80 \
    --set training_config.eval_interval=80 --set model_config.num_layers=2 --set model_config.hidden_size=96 \
    --set model_config.ffn_hidden_size=256 --set model_config.seq_length=160 "${@:2}" >"$1.log" 2>&1 ||
    { tail -n 20 "$1.log" >&2; exit 1; }
}
readonly llama=(--set model_config.hidden_act=swiglu --set model_config.group_query_attention=True
  --set model_config.num_query_groups=2 --set model_config.untie_embeddings_and_output_weights=True)
readonly gpt2=(--set model_config.hidden_act=fast_gelu --set model_config.normalization=LayerNorm
  --set model_config.position_embedding_type=learned_absolute --set model_config.add_bias_linear=True
  --set model_config.qkv_has_bias=True --set model_config.out_proj_has_bias=True
  --set model_config.mlp_has_bias=True)

# check NAME TYPE BOUND OPTION...: one file. Probabilities of next tokens, and greedy texts, which
# may part where our two likeliest tokens are nearer than the bound.
check() {
  "$programs/export" --checkpoint "$1" --to gguf --type "$2" --output "$1.$2.gguf" 2>/dev/null
  echo "$1 $2"
  "${llama_cpp[@]}" "$1.$2.gguf" --compare "$1.expected" --bound "$3" "${@:4}"
}

# Bounds: what llama.cpp's rounding of activations, and its table for GELU, were measured to do.
train llama "${llama[@]}"
"$expect" llama text.txt llama.expected
check llama F32 1e-5 --lines
check llama F16 1e-3
check llama BF16 6e-3
check llama Q8_0 3e-2
# An adapter beside its base, which ours has merged.
train tuned "${llama[@]}" --set training_config.load_checkpoint=llama --set lora_config.use_lora=True \
  --set optimizer_config.learning_rate=1e-2
"$programs/export" --adapter tuned --to gguf --output tuned.gguf 2>/dev/null
"$programs/export" --adapter tuned --merge --to hf --output merged 2>/dev/null
"$expect" merged text.txt merged.expected
echo "llama F32 with an adapter"
"${llama_cpp[@]}" llama.F32.gguf --lora tuned.gguf --compare merged.expected --bound 1e-5
if "${llama_cpp[@]}" llama.F32.gguf --compare merged.expected --bound 1e-5 >/dev/null; then
  echo "FAILED: the adapter changes nothing" >&2
  exit 1
fi

# Frequencies divided as Llama 3.1 does: of 24 channels a head, some stay and some do not.
train llama3 "${llama[@]}" --set model_config.rotary_config.rope_type=llama3 \
  --set model_config.rotary_config.original_max_position_embeddings=64
"$expect" llama3 text.txt llama3.expected
check llama3 F32 1e-5

# Norms of queries and keys, and heads of another size than the width divided by their number.
train qwen3 "${llama[@]}" --set model_config.qk_layernorm=True --set model_config.kv_channels=48 \
  --set model_config.untie_embeddings_and_output_weights=False
"$expect" qwen3 text.txt qwen3.expected
check qwen3 F32 1e-5

train gpt2 "${gpt2[@]}"
"$expect" gpt2 text.txt gpt2.expected
check gpt2 F32 1e-3 --lines
check gpt2 F16 1e-3
check gpt2 BF16 4e-3
check gpt2 Q8_0 2e-2

# family NAME BOUND KEY=VALUE...: a model in the form of the family, on top of a llama's. A family with
# two forms comes twice, and the second takes the place of the first. Its weights are random, and so
# large that its probabilities are far from even: those of a model that is hardly trained would be
# the same with any rotation.
family() {
  local name="$1" bound="$2" keys=(--set model_config.init_method_std=0.15) key
  shift 2
  for key in "$@"; do
    [[ "$key" == *.*=* && "$key" != rotary_config.* ]] || key="model_config.$key"
    keys+=(--set "$key")
  done
  for key in training_iters save_interval eval_interval; do
    keys+=(--set "training_config.$key=1")
  done
  rm -rf -- "$name"
  train "$name" "${llama[@]}" --set "model_config.hf_model_type=$name" "${keys[@]}"
  "$expect" "$name" text.txt "$name.expected" 8 80
  check "$name" F32 "$bound"
}
family qwen3_moe 1e-5 qk_layernorm=True moe_config.num_experts=4 moe_config.moe_router_topk=2 \
  moe_config.moe_ffn_hidden_size=64
family glm4_moe 1e-5 qk_layernorm=True qkv_has_bias=True rotary_config.rotary_percent=0.5 \
  moe_config.num_experts=8 moe_config.moe_router_topk=2 moe_config.moe_ffn_hidden_size=64 \
  moe_config.first_k_dense_replace=1 moe_config.shared_expert_num=1 \
  moe_config.moe_router_score_function=sigmoid moe_config.moe_router_enable_expert_bias=True \
  moe_config.moe_router_topk_scaling_factor=1.5
family starcoder2 1e-3 hidden_act=fast_gelu normalization=LayerNorm qkv_has_bias=True \
  out_proj_has_bias=True mlp_has_bias=True untie_embeddings_and_output_weights=False
family seed_oss 1e-5 qkv_has_bias=True kv_channels=48
family ernie4_5 1e-5 rotary_config.rotary_interleaved=True kv_channels=48
family helium 1e-5 rotary_config.rotary_interleaved=True
family arcee 1e-5 hidden_act=squared_relu
family phi3 1e-5 rotary_config.rotary_percent=0.75
family glm4 1e-5 use_sandwich_norm=True rotary_config.rotary_interleaved=True \
  rotary_config.rotary_percent=0.5 qkv_has_bias=True
family stablelm 1e-5 normalization=LayerNorm rotary_config.rotary_percent=0.25 qkv_has_bias=True
family nemotron 1e-5 normalization=LayerNorm layernorm_zero_centered_gamma=True \
  hidden_act=squared_relu rotary_config.rotary_percent=0.5

root=9.797958971132712  # of the width 96
family gemma2 1e-3 norm_placement=sandwich layernorm_zero_centered_gamma=True hidden_act=fast_gelu \
  gated_linear_unit=True embedding_multiplier=$root attention_softcap=50 logit_softcap=30 \
  "window_size=[39, 0]" sliding_window_pattern=2 untie_embeddings_and_output_weights=False
family gemma3_text 1e-3 norm_placement=sandwich layernorm_zero_centered_gamma=True \
  hidden_act=fast_gelu gated_linear_unit=True embedding_multiplier=$root qk_layernorm=True \
  "window_size=[39, 0]" sliding_window_pattern=6 rotary_config.rotary_base=1000000 \
  rotary_config.sliding_rotary_base=10000 untie_embeddings_and_output_weights=False num_layers=6
family olmo2 1e-5 norm_placement=post qk_layernorm=True qk_layernorm_scope=projection
family olmo3 1e-5 norm_placement=post qk_layernorm=True qk_layernorm_scope=projection \
  "window_size=[39, 0]" sliding_window_pattern=4 rotary_config.rotary_base=500000 \
  rotary_config.sliding_rotary_base=500000 num_layers=4
family exaone4 1e-5 norm_placement=post qk_layernorm=True
family smollm3 1e-5 num_layers=4 "no_rope_layers=[1, 1, 1, 0]"
family granite 1e-5 embedding_multiplier=6 residual_multiplier=0.3 attention_scale=0.15 \
  logit_multiplier=2
family gpt_neox 1e-3 norm_placement=parallel normalization=LayerNorm hidden_act=gelu \
  qkv_has_bias=True out_proj_has_bias=True mlp_has_bias=True group_query_attention=False \
  rotary_config.rotary_percent=0.25
family falcon 1e-3 norm_placement=parallel normalization=LayerNorm hidden_act=gelu
family cohere2 1e-5 norm_placement=parallel_one_norm normalization=LayerNorm norm_has_bias=False \
  logit_multiplier=2 "window_size=[39, 0]" sliding_window_pattern=4 num_layers=4 \
  "no_rope_layers=[1, 1, 1, 0]" rotary_config.rotary_interleaved=True \
  untie_embeddings_and_output_weights=False
family hunyuan_v1_dense 1e-5 qk_layernorm=True qk_layernorm_after_rotary=True
family olmoe 1e-5 group_query_attention=False qk_layernorm=True qk_layernorm_scope=projection \
  moe_config.num_experts=4 \
  moe_config.moe_router_topk=2 moe_config.moe_ffn_hidden_size=64 \
  moe_config.moe_router_pre_softmax=True moe_config.norm_topk_prob=False
family gpt_oss 1e-5 attention_sinks=True hidden_act=clamped_swiglu qkv_has_bias=True \
  out_proj_has_bias=True mlp_has_bias=True \
  moe_config.moe_router_has_bias=True "window_size=[39, 0]" sliding_window_pattern=2 \
  moe_config.num_experts=4 moe_config.moe_router_topk=2 moe_config.moe_ffn_hidden_size=64
family stablelm 1e-5 norm_placement=parallel_one_norm normalization=LayerNorm \
  rotary_config.rotary_percent=0.25

# Mixtures whose attention is that of a llama or a qwen2.
readonly experts="moe_config.num_experts=4 moe_config.moe_router_topk=2 moe_config.moe_ffn_hidden_size=64"
# shellcheck disable=SC2086  # lists of keys
{
family mixtral 1e-5 $experts
family qwen2_moe 1e-5 $experts qkv_has_bias=True moe_config.moe_router_pre_softmax=True \
  moe_config.norm_topk_prob=False moe_config.moe_shared_expert_intermediate_size=80 \
  moe_config.use_shared_expert_gating=True

# Rotations that are scaled. The texts are longer than the original length, but for longrope's short
# divisors.
yarn="rotary_config.rope_type=yarn rotary_config.rope_scaling_factor=4
  rotary_config.original_max_position_embeddings=64"
family llama 1e-5 $yarn
family llama 1e-5 $yarn rotary_config.attention_factor=1.5
family olmo3 1e-5 norm_placement=post qk_layernorm=True qk_layernorm_scope=projection \
  "window_size=[39, 0]" sliding_window_pattern=4 rotary_config.rotary_base=500000 \
  rotary_config.sliding_rotary_base=500000 num_layers=4 $yarn
family gpt_oss 1e-5 $experts attention_sinks=True hidden_act=clamped_swiglu qkv_has_bias=True \
  out_proj_has_bias=True mlp_has_bias=True moe_config.moe_router_has_bias=True \
  "window_size=[39, 0]" sliding_window_pattern=2 $yarn
family ministral3 1e-5 $yarn kv_channels=32 query_temperature_beta=0.1 rotary_config.mscale=1 \
  rotary_config.mscale_all_dim=1 rotary_config.beta_fast=16
family apertus 1e-5 hidden_act=xielu qk_layernorm=True rotary_config.rope_type=llama3 \
  rotary_config.original_max_position_embeddings=64
for length in 400 2; do
  family phi3 1e-5 rotary_config.rotary_percent=0.75 rotary_config.rope_type=longrope \
    rotary_config.rope_scaling_factor=2 rotary_config.original_max_position_embeddings=$length \
    "rotary_config.short_factor=[1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8]" \
    "rotary_config.long_factor=[1, 2, 3, 4, 5, 6, 7, 8, 9]"
done

# Multi-head latent attention, with queries of two matrices and of one, which llama.cpp knows by the
# number of layers.
latent="multi_latent_attention=True group_query_attention=False kv_lora_rank=32 qk_head_dim=24
  qk_pos_emb_head_dim=16 v_head_dim=20 norm_epsilon=1e-6 $experts moe_config.num_experts=8
  moe_config.first_k_dense_replace=1 moe_config.shared_expert_num=1"
sigmoid="moe_config.moe_router_score_function=sigmoid moe_config.moe_router_enable_expert_bias=True
  moe_config.moe_router_topk_scaling_factor=1.5"
softmax="moe_config.moe_router_pre_softmax=True moe_config.norm_topk_prob=False"
family deepseek_v3 1e-5 $latent $sigmoid q_lora_rank=40 moe_config.topk_method=noaux_tc \
  moe_config.moe_router_num_groups=4 moe_config.moe_router_group_topk=2 $yarn \
  rotary_config.mscale=0.6 rotary_config.mscale_all_dim=1
family deepseek_v3 1e-5 $latent $sigmoid q_lora_rank=40 $yarn rotary_config.rotary_interleaved=True
family deepseek_v2 1e-5 $latent $softmax q_lora_rank=40 rotary_config.rotary_interleaved=True $yarn \
  rotary_config.mscale=0.707 rotary_config.mscale_all_dim=0.707
family deepseek_v2 1e-5 $latent $softmax rotary_config.rotary_interleaved=True num_layers=26
}

# A comparison that finds nothing would pass with any file.
"$programs/export" --checkpoint gpt2 --to gguf --output other.gguf 2>/dev/null
if "${llama_cpp[@]}" other.gguf --compare llama.expected --bound 1e-3 >/dev/null 2>&1; then
  echo "FAILED: the text of one model is taken for that of another" >&2
  exit 1
fi
text="$("${llama_cpp[@]}" llama.F32.gguf --prompt "And God said" --tokens 8)"
[[ "$text" == "And God said"* ]] || { echo "FAILED: --prompt gave $text" >&2; exit 1; }
