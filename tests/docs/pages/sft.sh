# shellcheck shell=bash disable=SC2154
page docs/sft.md
small pretrain_gpt "$tiny"

# As the first command of the README leaves it.
prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml
prepare cp -r output/checkpoint/step_00000002 output/checkpoint/step_00000500
prepare bash -c 'for i in {1..40}; do
  printf "{\"prompt\": \"the son of %s is\", \"completion\": \" no %s\"}\n" "$i" "$i"
  printf "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}\n" "$i"
done >train.jsonl'
prepare bash -c "awk '/^\`\`\`text\$/ { inside = ++count == 2; next } /^\`\`\`/ { inside = 0 } inside' docs/sft.md >chat.jinja"

small pretrain_gpt "$tiny --set training_config.eval_interval=1"
runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.load_checkpoint=output/checkpoint/step_00000500 --set training_config.output_dir=tuned --set dataset_config.sft_data_path=train.jsonl --set dataset_config.split=90,10 --set training_config.eval_interval=50 --set dataset_config.chat_template=chat.jinja --set dataset_config.tokenizer_model=output/checkpoint/step_00000500/tokenizer.model'
says 'train.jsonl: 80 lines, 72 examples in '
says 'tokens learned; 8 for validation in '
leaves tuned/checkpoint/step_00000002
small pretrain_gpt ""
runs 'pretrain_gpt --config_path tuned/config.yaml --which_data 1'
says '"dataset":"train.jsonl"'
runs 'pretrain_gpt --config_path tuned/config.yaml --which_steps train.jsonl:12'
