# shellcheck shell=bash disable=SC2154
page README.md
small ctest -R '^autograd.io$'
small pretrain_gpt --set training_config.training_iters=2 --set training_config.eval_iters=1 \
  --set model_config.num_layers=1 --set dataset_config.batch_size=1

runs 'bash scripts/quickstart.sh'
leaves dataset/bible.txt output/metrics.jsonl output/checkpoint/step_00000002/model.safetensors
says 'step_00000002 continues "In the beginning":'
says 'all output is in '
says 'export PATH='
says '  generate --checkpoint ./output/checkpoint/step_00000002 --prompt'

runs 'bash scripts/test.sh'
says '100% tests passed'
