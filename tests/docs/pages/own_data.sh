# shellcheck shell=bash disable=SC2154
page docs/own_data.md
small own_data --train-iters 2 --eval-interval 2 --eval-iters 1 --num-layers 2 --hidden-size 32 \
  --ffn-hidden-size 64 --num-attention-heads 2 --seq-length 16 --batch-size 2

runs 'build/release/examples/gpt/own_data --config_path examples/gpt/pretrain_gpt_tiny.yaml --train-iters 200 --eval-interval 100'
says ', right_answers: '
leaves output/checkpoint/step_00000002
prepare rm -r output
runs 'mpirun -n 4 build/release/examples/gpt/own_data --config_path examples/gpt/pretrain_gpt_tiny.yaml --train-iters 200 --eval-interval 100 --tensor-model-parallel-size 2'
says 'pp 1 | tp 2'
leaves output/checkpoint/step_00000002
runs 'build/release/examples/gpt/own_data --verify_layout tp=2,dp=2 --config_path examples/gpt/pretrain_gpt_tiny.yaml'
says 'no difference above its bound'
