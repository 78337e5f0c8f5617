# shellcheck shell=bash disable=SC2154
page docs/replay.md
small pretrain_gpt  # the case is small

runs 'build/release/examples/gpt/pretrain_gpt --config_path tests/data/golden_models/llama_tiny/run.yaml'
leaves output/llama_tiny/metrics.jsonl output/llama_tiny/grads_step_1.safetensors
runs 'TAPESTRY_GOLDEN_MODELS=tests/data/golden_models build/release/tests/test.golden_models'
says '[  PASSED  ]'

# The keys of the page, beside the model and the optimizer of the case.
prepare with_block 1 tests/data/golden_models/llama_tiny/run.yaml by_hand.yaml
prepare pretrain_gpt --config_path by_hand.yaml --set training_config.output_dir=by_hand
says 'loaded tests/data/golden_models/llama_tiny/init.safetensors'
leaves by_hand/{grads_step_1,weights_step_6}.safetensors
