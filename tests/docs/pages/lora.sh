# shellcheck shell=bash disable=SC2154
page docs/lora.md
small pretrain_gpt "--set training_config.training_iters=2"

# A base to stand for somebody's model.
prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.output_dir=first --set model_config.num_layers=2
prepare cp -r first/checkpoint/step_00000002 base
prepare with_block 1 examples/gpt/pretrain_gpt_tiny.yaml lora.yaml
runs 'pretrain_gpt --config_path lora.yaml --dry_run'
says 'parameters are trained ('
runs 'pretrain_gpt --config_path lora.yaml'
says 'adapters beside'
leaves tuned/checkpoint/step_00000002/adapter_model.safetensors
runs "pretrain_gpt --config_path lora.yaml --set lora_config.target_cells=\"[{target_cells: ['.*(q|v)_proj']}, {cell: '.*v_proj', rank: 4}]\" --set training_config.output_dir=other"
leaves other/checkpoint/step_00000002/adapter_config.json
