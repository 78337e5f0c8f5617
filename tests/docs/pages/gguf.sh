# shellcheck shell=bash disable=SC2154
page docs/gguf.md

# A small model of bytes as a file, and examples of a task.
write_model() {
  local i word letters=abcdefghijklmnopqrstuvwxyz
  for ((i = 0; i < 300; ++i)); do
    word="${letters:i * 7 % 26:1}${letters:i * 11 / 3 % 26:1}${letters:i / 26 % 26:1}${letters:i * 5 % 26:1}"
    echo "{\"prompt\": \"$word>\", \"completion\": \"$word\"}"
  done >examples.jsonl
  cut -d'"' -f4 examples.jsonl >held_out.txt
  cat >base.yaml <<'TEXT'
training_config: {training_iters: 20, output_dir: base}
dataset_config: {sft_data_path: examples.jsonl, tokenizer_type: byte, batch_size: 4, split: "1,0,0"}
model_config:
  {vocab_size: 264, num_layers: 2, hidden_size: 64, ffn_hidden_size: 192, num_attention_heads: 4, seq_length: 128,
   position_embedding_type: rope, normalization: RMSNorm, hidden_act: swiglu, qkv_has_bias: False, out_proj_has_bias: False,
   mlp_has_bias: False, untie_embeddings_and_output_weights: True, hidden_dropout: 0.0, attention_dropout: 0.0}
optimizer_config: {learning_rate: 3.0e-3}
TEXT
  pretrain_gpt --config_path base.yaml
  build/release/examples/gpt/export --checkpoint base --to gguf --type Q8_0 --output model.gguf
}
prepare write_model

small finetune_gpt --epochs 1
runs 'generate --checkpoint model.gguf --prompt "In the beginning" --max_new_tokens 20'
says 'stay in blocks'
runs 'evaluate --checkpoint model.gguf --text held_out.txt'
says 'perplexity_per_token'
runs 'finetune_gpt --from_hf model.gguf --data examples.jsonl --output_dir tuned'
says 'stay in blocks'
leaves tuned/hf/{model.safetensors,config.json}
runs 'generate --checkpoint model.gguf --adapter tuned --prompt "abcd>" --max_new_tokens 5'
says 'abcd>'
runs 'build/release/examples/gpt/export --checkpoint model.gguf --to hf --output model_hf'
leaves model_hf/{model.safetensors,config.json,tokenizer.json}
runs 'build/release/examples/gpt/export --checkpoint model.gguf --to gguf --type F16 --output half.gguf'
leaves half.gguf
runs 'build/release/examples/gpt/export --checkpoint model.gguf --adapter tuned --merge --to gguf --type Q8_0 --output merged.gguf'
says 'merged and'
leaves merged.gguf
