# shellcheck shell=bash disable=SC2154
page docs/finetune.md

# A model that has learned to repeat words, as a folder, and examples of another task.
write_examples() { # write_examples FILE FIRST LAST CHANGE: words and what CHANGE (of tr) makes of them
  local i word letters=abcdefghijklmnopqrstuvwxyz
  for ((i = $2; i < $3; ++i)); do
    word="${letters:i * 7 % 26:1}${letters:i * 11 / 3 % 26:1}${letters:i / 26 % 26:1}${letters:i * 5 % 26:1}"
    echo "{\"prompt\": \"$word>\", \"completion\": \"$(tr 'a-z' "$4" <<<"$word")\"}"
  done >"$1"
}
write_model() {
  write_examples repeat.jsonl 0 400 'a-z'
  write_examples examples.jsonl 400 700 'b-za'
  cut -d'"' -f4 repeat.jsonl >held_out.txt
  cat >base.yaml <<'TEXT'
training_config: {training_iters: 20, output_dir: base}
dataset_config: {sft_data_path: repeat.jsonl, tokenizer_type: byte, batch_size: 4, split: "1,0,0"}
model_config:
  {vocab_size: 264, num_layers: 2, hidden_size: 64, ffn_hidden_size: 192, num_attention_heads: 4, seq_length: 128,
   position_embedding_type: rope, normalization: RMSNorm, hidden_act: swiglu, qkv_has_bias: False, out_proj_has_bias: False,
   mlp_has_bias: False, untie_embeddings_and_output_weights: True, hidden_dropout: 0.0, attention_dropout: 0.0}
optimizer_config: {learning_rate: 3.0e-3}
TEXT
  pretrain_gpt --config_path base.yaml
  build/release/examples/gpt/export --checkpoint base --to hf --output model
}
prepare write_model

small finetune_gpt --set dataset_config.tokenizer_type=byte # the ids of that model
runs 'finetune_gpt --from_hf model --data examples.jsonl --dry_run'
says 'use_lora: True'
says 'memory: about '
runs 'finetune_gpt --from_hf model --data examples.jsonl --output_dir tuned --export hf adapter gguf --type Q8_0'
says 'validation loss '
says 'answer: '
leaves tuned/finetune.yaml tuned/hf/{config.json,model.safetensors} tuned/model.gguf \
  tuned/adapter/{adapter_config.json,adapter_model.safetensors}

runs 'pretrain_gpt --config_path tuned/finetune.yaml --set training_config.output_dir=by_hand'
leaves by_hand/checkpoint
runs 'build/release/examples/gpt/export --checkpoint model --adapter tuned/adapter --merge --to hf --output merged'
prepare cmp merged/model.safetensors tuned/hf/model.safetensors
runs 'evaluate --checkpoint merged --text held_out.txt'
says 'perplexity'
runs 'generate --checkpoint merged --prompt "abcd>" --temperature 0 --max_new_tokens 8'
says 'abcd>'
runs 'build/release/examples/gpt/export --checkpoint merged --to gguf --type Q8_0 --output merged.gguf'
leaves merged.gguf
runs_or 77 'bash scripts/llama_cpp.sh tuned/model.gguf --prompt "abcd>" --tokens 5' # skipped without Node.js or network
runs 'generate --checkpoint model --adapter tuned/adapter --prompt "abcd>"'
says 'abcd>'
