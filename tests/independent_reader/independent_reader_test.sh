#!/usr/bin/env bash
# A checkpoint of a run on 2 x 2 ranks is all that another program needs: reader.py rebuilds the
# model from config.json and the weights, and gets the logits that the library gets.
#
#   independent_reader_test.sh SCRATCH MPIEXEC PRETRAIN_GPT PREPROCESS_DATA PRINT_LOGITS
#
# Exit code 77, which ctest shows as skipped, where there is no NumPy.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
scratch="$1" mpiexec="$2" pretrain_gpt="$3" preprocess_data="$4" print_logits="$5"

python=""
for candidate in "${TAPESTRY_NUMPY_PYTHON:-python3}" /usr/bin/python3; do
  if "$candidate" -c 'import numpy' 2> /dev/null; then
    python="$candidate"
    break
  fi
done
if [[ -z "$python" ]]; then
  echo "skipped: no Python with NumPy (apt-get install python3-numpy)"
  exit 77
fi
reader=("$python" "$here/reader.py")
rm -rf "$scratch"
mkdir -p "$scratch"
cd "$scratch"

for i in $(seq 40); do
  echo "And the king went up to city $((i * 7 % 11)), and departed from house $((i * 5 % 13))."
done > text.txt
"$preprocess_data" --input text.txt --output_prefix text --tokenizer_type byte > preprocess.log

# Large updates, so that gains, biases and tables lie far from where they start.
cat > run.yaml << 'END'
training_config:
  training_iters: 4
  num_threads: 1
dataset_config:
  data_path: text_text_document
  tokenizer_type: byte
  batch_size: 2
  micro_batch_num: 2
  split: 90,10,0
parallel_config:
  tensor_model_parallel_size: 2
  sequence_parallel: True
  pipeline_model_parallel_size: 2
model_config:
  vocab_size: 260
  num_layers: 4
  num_attention_heads: 4
  hidden_size: 32
  ffn_hidden_size: 48
  seq_length: 16
  init_method_std: 0.1
optimizer_config:
  learning_rate: 1e-2
END
llama="model_config.position_embedding_type=rope model_config.normalization=RMSNorm
  model_config.hidden_act=swiglu model_config.add_bias_linear=False
  model_config.group_query_attention=True model_config.num_query_groups=2
  model_config.norm_epsilon=1e-4 model_config.rotary_base=5e3"
ids=()
for i in $(seq 0 31); do
  ids+=($((i * i * 37 % 256)))
done

# check NAME KEY=VALUE...: trains, and compares.
check() {
  local name="$1" arguments=()
  shift
  for setting in "$@"; do
    arguments+=(--set "$setting")
  done
  echo "$name"
  "$mpiexec" --oversubscribe -n 4 "$pretrain_gpt" --config_path run.yaml "${arguments[@]}" \
    --set "training_config.output_dir=$name" > "$name.log" 2>&1 || { cat "$name.log"; exit 1; }
  mkdir "alone_$name"
  cp "$name"/checkpoint/step_00000004/{config.json,model*} "alone_$name"
  "$print_logits" "$name/checkpoint/step_00000004" "$name.logits" 16 "${ids[@]}"
  "${reader[@]}" "alone_$name" "$name.logits" 16 "${ids[@]}"
}

# Updates that are less than the last place of any weight.
sed '/^model_config:/,$d' run.yaml > nothing.yaml
cat >> nothing.yaml << 'END'
model_config:
  seq_length: 16
optimizer_config:
  learning_rate: 1e-30
END

# written_back NAME: a run that starts from the folder alone, and changes nothing, leaves its like.
written_back() {
  "$mpiexec" --oversubscribe -n 4 "$pretrain_gpt" --config_path nothing.yaml \
    --from_hf "alone_$1" --set "training_config.output_dir=back_$1" > "back_$1.log" 2>&1 ||
    { cat "back_$1.log"; exit 1; }
  "${reader[@]}" --same "alone_$1" "back_$1/checkpoint/step_00000004"
}

# other NAME FROM TO: the comparison sees one value that is not so.
other() {
  sed -i "s/$2/$3/" "alone_$1/config.json"
  grep -q "$3" "alone_$1/config.json"
  "${reader[@]}" --expect-other "alone_$1" "$1.logits" 16 "${ids[@]}"
}

# shellcheck disable=SC2086
check llama $llama model_config.untie_embeddings_and_output_weights=True model_config.kv_channels=12
written_back llama
other llama '"rope_theta": 5000.0' '"rope_theta": 500.0'
# shellcheck disable=SC2086
check llama_biased $llama model_config.add_bias_linear=True \
  model_config.rotary_config.seq_len_interpolation_factor=2
# shellcheck disable=SC2086
check qwen2 $llama model_config.qkv_has_bias=True
# shellcheck disable=SC2086
check qwen2_window $llama model_config.qkv_has_bias=True 'model_config.window_size=[4,0]'
written_back qwen2_window
other qwen2_window '"sliding_window": 5' '"sliding_window": 6'
check gpt2 model_config.norm_epsilon=1e-4
written_back gpt2
other gpt2 '"layer_norm_epsilon": 0.0001' '"layer_norm_epsilon": 0.1'
check gpt2_tanh model_config.hidden_act=fast_gelu model_config.max_position_embeddings=20 \
  training_config.max_shard_size=30000
ls alone_gpt2_tanh/model-00002-of-*.safetensors > /dev/null
# MindSpore's files, the tensors in parts of 1000 bytes.
ckpt="training_config.ckpt_format=ckpt training_config.prefix=model_of training_config.max_shard_size=1000"
# shellcheck disable=SC2086
check ckpt_llama $llama $ckpt model_config.qkv_has_bias=True
# shellcheck disable=SC2086
check ckpt_gpt2 $ckpt
written_back ckpt_gpt2
written_back gpt2_tanh
