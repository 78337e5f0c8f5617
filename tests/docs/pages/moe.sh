# shellcheck shell=bash disable=SC2154
page docs/moe.md
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte --set moe_config.moe_ffn_hidden_size=32

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_moe.yaml'
says '2 of 8 experts'
leaves output/checkpoint/step_00000002/model.safetensors
prepare grep -q '"tokens_per_expert"' output/metrics.jsonl
prepare rm -r output
runs 'RANKS=2 examples/gpt/pretrain_gpt.sh pretrain_gpt_moe.yaml --set parallel_config.expert_model_parallel_size=2'
says 'ep 2'
