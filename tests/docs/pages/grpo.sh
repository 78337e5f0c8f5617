# shellcheck shell=bash disable=SC2154
page docs/grpo.md

# A model to stand for one's own, with words to continue and what they should become.
write_model() {
  local i word letters=abcdefghijklmnopqrstuvwxyz
  for ((i = 0; i < 64; ++i)); do
    word="${letters:i * 7 % 26:1}${letters:i * 11 / 3 % 26:1}"
    echo "{\"prompt\": \"$word>\", \"completion\": \"$word\"}" >>repeat.jsonl
    echo "{\"prompt\": \"$word>\", \"answer\": \"$word\"}" >>prompts.jsonl
  done
  cat >base.yaml <<'TEXT'
training_config: {training_iters: 20, output_dir: base}
dataset_config: {sft_data_path: repeat.jsonl, tokenizer_type: byte, batch_size: 4, split: "1,0,0"}
model_config:
  {vocab_size: 264, num_layers: 2, hidden_size: 64, ffn_hidden_size: 192, num_attention_heads: 4, seq_length: 64,
   position_embedding_type: rope, normalization: RMSNorm, hidden_act: swiglu, qkv_has_bias: False, out_proj_has_bias: False,
   mlp_has_bias: False, untie_embeddings_and_output_weights: True, hidden_dropout: 0.0, attention_dropout: 0.0}
optimizer_config: {learning_rate: 3.0e-3}
TEXT
  pretrain_gpt --config_path base.yaml
  build/release/examples/gpt/export --checkpoint base --to hf --output model
}
prepare write_model

# A model that has hardly learned anything is never right: something else gives it rewards.
small finetune_gpt --set dataset_config.tokenizer_type=byte --set post_training_config.max_completion_length=4 \
  --reward "regex:a|e|i|o|u|s|t"
small pretrain_gpt --set training_config.training_iters=2 --set model_config.num_layers=1 --set optimizer_config.lr_warmup_iters=0 \
  --set training_config.log_interval=1
runs 'python3 examples/gpt/grpo_arithmetic.py make sums'
leaves sums/sft.jsonl sums/prompts.jsonl sums/held_out.jsonl
runs 'pretrain_gpt --config_path examples/gpt/grpo_arithmetic_sft.yaml'
runs 'pretrain_gpt --config_path examples/gpt/grpo_arithmetic.yaml'
says 'rewards/exact/mean: '
leaves output/sums_grpo/samples.jsonl
runs 'generate --checkpoint output/sums_grpo --prompts sums/held_out.jsonl --temperature 0 --max_new_tokens 6 > sums/answers.jsonl'
runs 'python3 examples/gpt/grpo_arithmetic.py score sums/held_out.jsonl sums/answers.jsonl'
says ' right: '
runs 'finetune_gpt --task grpo --from_hf model --data prompts.jsonl --reward "exact: answer" --output_dir rewarded'
says 'rewards/regex/mean: '
leaves rewarded/samples.jsonl rewarded/hf/model.safetensors
