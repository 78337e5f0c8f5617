# shellcheck shell=bash disable=SC2154
page docs/preferences.md

# A model that has learned to repeat words, as a folder; pairs of which the one answer repeats the
# word in capitals, and the same words with their answers.
write_data() {
  local i word letters=abcdefghijklmnopqrstuvwxyz
  for ((i = 0; i < 96; ++i)); do
    word="${letters:i * 7 % 26:1}${letters:i * 11 / 3 % 26:1}${letters:i * 5 % 26:1}"
    echo "{\"prompt\": \"$word>\", \"completion\": \"$word\"}" >>repeat.jsonl
    echo "{\"prompt\": \"$word>\", \"chosen\": \"${word^^}\", \"rejected\": \"$word\"}" >>pairs.jsonl
    echo "{\"prompt\": \"$word>\", \"completion\": \"${word^^}\"}" >>answers.jsonl
  done
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
  pretrain_gpt --config_path base.yaml --set dataset_config.sft_data_path=answers.jsonl \
    --set training_config.output_dir=teachers --set training_config.seed=7
  build/release/examples/gpt/export --checkpoint teachers --to hf --output teacher
  cat >student.yaml <<'TEXT'
training_config: {training_iters: 4, output_dir: from_file}
dataset_config: {tokenizer_type: byte, batch_size: 4}
model_config: {from_hf: model, seq_length: 64}
optimizer_config: {learning_rate: 1.0e-3}
TEXT
}
prepare write_data

small finetune_gpt --set dataset_config.tokenizer_type=byte # the ids of that model
runs 'finetune_gpt --task dpo --from_hf model --data pairs.jsonl --output_dir preferred'
says 'rewards/accuracies: '
leaves preferred/finetune.yaml preferred/hf/{config.json,model.safetensors} preferred/reference_log_probs.safetensors
runs 'finetune_gpt --task reward --from_hf model --data pairs.jsonl --full --output_dir rewarder'
says 'accuracy: '
leaves rewarder/hf/{config.json,model.safetensors}
runs 'evaluate --checkpoint rewarder/hf --reward pairs.jsonl'
says 'accuracy'
runs 'generate --checkpoint teacher --prompts answers.jsonl --logprobs 8 --to teacher.safetensors'
leaves teacher.safetensors
runs 'finetune_gpt --task distil --from_hf model --data answers.jsonl --teacher teacher --output_dir distilled'
says 'divergence: '
leaves distilled/hf/model.safetensors
prepare with_block 2 student.yaml from_file.yaml
runs 'pretrain_gpt --config_path from_file.yaml'
says 'divergence: '
