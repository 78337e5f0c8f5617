# shellcheck shell=bash disable=SC2154
page docs/injection.md
small pretrain_gpt  # the case is small

runs 'pretrain_gpt --help accuracy'
says '--inject_inputs DIR'
runs 'pretrain_gpt --config_path tests/data/golden_models/llama_tiny/run.yaml --set training_config.output_dir=output/injection/same --inject_weights tests/data/golden_models/llama_tiny/init.safetensors --inject_data tests/data/golden_models/llama_tiny/data'
says 'loaded tests/data/golden_models/llama_tiny/init.safetensors'
says '6 recorded steps'
runs 'pretrain_gpt --config_path tests/data/golden_models/llama_tiny/run.yaml --set training_config.output_dir=output/injection/grads --inject_grads tests/data/golden_models/llama_tiny'
says 'inject_grads: step 1 is updated with given gradients'
runs 'mkdir -p output/injection/dumps'
runs 'echo '\''{"common_dump_settings": {"path": "'\''"$PWD"'\''/output/injection/dumps/reference", "iteration": "0", "dump_mode": 1, "kernels": ["Value", "Parameter"]}, "e2e_dump_settings": {}}'\'' > output/injection/reference.json'
runs 'echo '\''{"common_dump_settings": {"path": "'\''"$PWD"'\''/output/injection/dumps/ours", "iteration": "0", "dump_mode": 1, "kernels": ["Value", "Parameter"]}, "e2e_dump_settings": {}}'\'' > output/injection/ours.json'
runs 'pretrain_gpt --config_path tests/data/golden_models/llama_tiny/run.yaml --set training_config.output_dir=output/injection/dumping --dump output/injection/reference.json'
leaves output/injection/dumps/reference/rank_0
runs 'pretrain_gpt --config_path tests/data/golden_models/llama_tiny/run.yaml --set training_config.output_dir=output/injection/injected --set model_config.norm_epsilon=0.01 --inject_inputs output/injection/dumps/reference --dump output/injection/ours.json'
says 'inject_inputs: in step 1 '
leaves output/injection/dumps/ours/rank_0
runs "pretrain_gpt --config_path tests/data/golden_models/llama_tiny/run.yaml --set training_config.output_dir=output/injection/exact --op_error 'norm|linear' --json output/injection/op_error.json"
says 'op_error: agree'
leaves output/injection/op_error.json
runs 'pretrain_gpt --config_path tests/data/golden_models/llama_tiny/run.yaml --set training_config.output_dir=output/injection/again --twice 3'
says 'twice: agree'
runs 'pretrain_gpt --config_path tests/data/golden_models/llama_tiny/run.yaml --set training_config.output_dir=output/injection/frozen --lr_zero 6'
says 'lr_zero: agree'
leaves output/injection/frozen/metrics.jsonl
