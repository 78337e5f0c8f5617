# shellcheck shell=bash disable=SC2154
page docs/adapters.md
small pretrain_gpt "${tiny/--set training_config.training_iters=2/}"

# A base to stand for somebody's model.
prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.training_iters=2 --set training_config.output_dir=first
prepare cp -r first/checkpoint/step_00000002 base
prepare with_block 1 examples/gpt/pretrain_gpt_tiny.yaml lora.yaml
runs 'pretrain_gpt --config_path lora.yaml'
leaves tuned/checkpoint/step_000000{20,40}/{adapter_config.json,adapter_model.safetensors,base_model.json,config.yaml,generation_config.json,training_state.json,training_state.safetensors,manifest.json}
prepare rm -r tuned/checkpoint/step_00000040
runs 'pretrain_gpt --config_path lora.yaml --set training_config.resume_training=True'
says 'going on after step 20'
says "the adapter's base is"
leaves tuned/checkpoint/step_00000040/adapter_model.safetensors
runs 'build/release/examples/gpt/export --adapter tuned --merge --to hf --output merged'
leaves merged/{model.safetensors,config.json}
runs 'build/release/examples/gpt/export --adapter tuned --to hf --output peft'
leaves peft/{adapter_config.json,adapter_model.safetensors}
