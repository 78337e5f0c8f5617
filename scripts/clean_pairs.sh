#!/usr/bin/env bash
# Dumps one step of small models in one process and again in layouts, with other micro-batches, kernels
# and recomputation, all ops of both passes with gradients and updates, and compares each of these with
# the first: 200 pairs and more in which nothing is wrong. Prints those that `accuracy compare` says
# differ, and how many. Arguments are words that a pair's name must hold: "llama zero"; --every N takes
# each n-th pair. Takes the programs of build/release, or of the folder $TAPESTRY_PROGRAMS. Exit code 1
# for an alarm or a pair that could not be made.
set -euo pipefail
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then  # what stands above
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"
  exit 0
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source-path=SCRIPTDIR source=mpirun_of.sh
source scripts/mpirun_of.sh
every=1
if [[ "${1:-}" == --every ]]; then
  every="$2"
  shift 2
fi
words=("$@")
programs="$(cd "${TAPESTRY_PROGRAMS:-build/release/examples/gpt}" && pwd)"
text="$PWD/README.md"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1  # as in a container

cat > "$work/base.yaml" <<YAML
training_config:
  seed: 11
  training_iters: 1
  log_interval: null
  save_last: False
dataset_config:
  text: $text
  tokenizer_type: character
  split: 90,10
  batch_size: 2
  micro_batch_num: 4
model_config:
  num_layers: 4
  hidden_size: 16
  ffn_hidden_size: 32
  num_attention_heads: 4
  vocab_size: 256
  seq_length: 16
  init_method_std: 0.2
optimizer_config:
  learning_rate: 1.0e-2
  weight_decay: 0.1
  clip_grad: 1.0
YAML

m=model_config
llama="$m.position_embedding_type=rope $m.normalization=RMSNorm $m.hidden_act=swiglu $m.group_query_attention=True
  $m.num_query_groups=2 $m.qkv_has_bias=False $m.out_proj_has_bias=False $m.mlp_has_bias=False
  $m.untie_embeddings_and_output_weights=True"
moe="moe_config.num_experts=4 moe_config.moe_router_topk=2 moe_config.moe_ffn_hidden_size=16"
declare -A models=(
  [gpt]=""
  [gpt_dropout]="$m.hidden_dropout=0.1 $m.attention_dropout=0.1"
  [gpt_alibi]="$m.position_embedding_type=alibi"
  [llama]="$llama"
  [llama_qk_norm]="$llama $m.qk_layernorm=True"
  [mixtral]="$llama $moe"
  [qwen2_moe]="$llama $moe $m.qkv_has_bias=True moe_config.moe_shared_expert_intermediate_size=24
    moe_config.use_shared_expert_gating=True moe_config.moe_router_pre_softmax=True"
  [sigmoid_moe]="$llama $moe moe_config.moe_router_score_function=sigmoid"
  [aux_moe]="$llama $moe moe_config.moe_router_load_balancing_type=seq_aux_loss moe_config.moe_aux_loss_coeff=0.01
    moe_config.moe_z_loss_coeff=0.001"
)
declare -A dtypes=(
  [float32]=""
  [bfloat16]="$m.compute_dtype=bfloat16"
  [bfloat16_params]="$m.compute_dtype=bfloat16 $m.params_dtype=bfloat16"
)
p=parallel_config
t=training_config
# Ranks, and what is set.
declare -A others=(
  [micro_1]="1 dataset_config.batch_size=8 dataset_config.micro_batch_num=1"
  [micro_8]="1 dataset_config.batch_size=1 dataset_config.micro_batch_num=8"
  [unfused]="1 $m.use_fused_kernels=False"
  [recompute]="1 recompute_config.recompute=True"
  [dp_2]="2 dataset_config.micro_batch_num=2"
  [dp_4]="4 dataset_config.micro_batch_num=1"
  [zero_1]="2 dataset_config.micro_batch_num=2 $p.zero_level=z1"
  [zero_2]="2 dataset_config.micro_batch_num=2 $p.zero_level=z2"
  [zero_3]="2 dataset_config.micro_batch_num=2 $p.zero_level=z3"
  [dist_opt]="2 dataset_config.micro_batch_num=2 $t.use_distributed_optimizer=True"
  [tp_2]="2 $p.tensor_model_parallel_size=2"
  [sp_2]="2 $p.tensor_model_parallel_size=2 $p.sequence_parallel=True"
  [pp_2]="2 $p.pipeline_model_parallel_size=2"
  [vpp_2]="2 $p.pipeline_model_parallel_size=2 $p.virtual_pipeline_model_parallel_size=2"
  [cp_2]="2 $p.context_parallel_size=2"
  [tp_2_dp_2]="4 $p.tensor_model_parallel_size=2 dataset_config.micro_batch_num=2"
)
declare -A of_experts=(
  [ep_2]="2 dataset_config.micro_batch_num=2 $p.expert_model_parallel_size=2"
  [ep_2_zero]="2 dataset_config.micro_batch_num=2 $p.expert_model_parallel_size=2 $p.zero_level=z1"
  [ep_2_tp_2]="4 dataset_config.micro_batch_num=2 $p.expert_model_parallel_size=2
    $p.tensor_model_parallel_size=2"
)

# dump FOLDER RANKS ROUNDING_RUNS SETTING...
dump() {
  local folder="$1" ranks="$2" rounding="$3" setting
  shift 3
  mkdir -p "$folder"
  printf '{"common_dump_settings": {"path": "%s", "saved_data": "full"}}\n' "$folder/dump" > "$folder/dump.json"
  local command=("$programs/pretrain_gpt" --config_path "$work/base.yaml" --dump "$folder/dump.json"
    --set "training_config.output_dir=$folder/run")
  [ "$rounding" = 0 ] || command+=(--measure_rounding "$rounding")
  for setting in "$@"; do
    command+=(--set "$setting")
  done
  if [ "$ranks" != 1 ]; then
    mpirun_of "$programs/pretrain_gpt"
    command=("${mpirun[@]}" -n "$ranks" "${command[@]}")
  fi
  "${command[@]}" > "$folder/log" 2>&1
}

is_wanted() {
  local word
  for word in "${words[@]}"; do
    [[ "$1" == *"$word"* ]] || return 1
  done
}

number=0 compared=0 alarms=0 failed=0
for model in $(printf '%s\n' "${!models[@]}" | sort); do
  for dtype in $(printf '%s\n' "${!dtypes[@]}" | sort); do
    read -r -d '' -a common <<< "${models[$model]} ${dtypes[$dtype]}" || true
    kinds="$(printf '%s\n' "${!others[@]}" | sort)"
    if [[ "${models[$model]}" == *moe_config* ]]; then
      kinds+=" $(printf '%s\n' "${!of_experts[@]}" | sort)"
    fi
    single=""
    for kind in $kinds; do
      name="$model $dtype $kind"
      is_wanted "$name" || continue
      # What a balance loss multiplies by is a share of the micro-batch; composed kernels keep parameters
      # in float32.
      [[ "$model $kind" != "aux_moe micro_"* ]] || continue
      [[ "$dtype $kind" != "bfloat16_params unfused" ]] || continue
      number=$((number + 1))
      [ $((number % every)) = 0 ] || continue
      if [ -z "$single" ]; then
        single="$work/single"
        rm -rf "$single"
        dump "$single" 1 3 "${common[@]}" || { cat "$single/log" && exit 1; }
      fi
      read -r -d '' -a settings <<< "${others[$kind]:-}${of_experts[$kind]:-}" || true
      ranks="${settings[0]}"
      rm -rf "$work/other"
      if ! dump "$work/other" "$ranks" 0 "${common[@]}" "${settings[@]:1}"; then
        printf '%-40s could not be made: %s\n' "$name" "$(grep -m 1 -E ' error |pretrain_gpt: ' "$work/other/log" || head -n 5 "$work/other/log")"
        failed=$((failed + 1))
        continue
      fi
      compared=$((compared + 1))
      code=0
      "$programs/accuracy" compare "$work/other/dump" "$single/dump" > "$work/said" 2>&1 || code=$?
      if [ "$code" != 0 ]; then
        printf '%-40s ALARM\n' "$name"
        head -n 12 "$work/said" | sed 's/^/    /'
        alarms=$((alarms + 1))
      else
        printf '%-40s agrees\n' "$name"
      fi
    done
  done
done
echo "$compared pairs, $alarms alarms, $failed could not be made"
[ "$compared" -gt 0 ] && [ "$alarms" = 0 ] && [ "$failed" = 0 ]
