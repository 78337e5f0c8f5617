# shellcheck shell=bash disable=SC2154
page docs/own_model.md
small own_model --train-iters 2 --eval-iters 1 --num-layers 2 --hidden-size 32 --ffn-hidden-size 64 \
  --num-attention-heads 2 --seq-length 16 --batch-size 2 --tokenizer-type byte

runs 'build/release/examples/gpt/own_model --config_path examples/gpt/pretrain_gpt_tiny.yaml --train-iters 20'
leaves output/checkpoint/step_00000002
prepare rm -r output
runs 'mpirun -n 4 build/release/examples/gpt/own_model --config_path examples/gpt/pretrain_gpt_tiny.yaml --train-iters 20 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2'
says 'pp 2 | tp 2'
leaves output/checkpoint/step_00000002
runs 'build/release/examples/gpt/own_model --verify_layout tp=2,pp=2,dp=2,zero=z2 --config_path examples/gpt/pretrain_gpt_tiny.yaml --seq-length 32'
says 'no difference above its bound'
