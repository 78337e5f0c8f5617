# shellcheck shell=bash disable=SC2154
page docs/scaling.md
needs 'the benchmarks are not built (TAPESTRY_BUILD_BENCH)' built bench/comm_bench
needs 'there is no python3' command -v python3
small layouts --only 'z1,overlapped' --seq 32 --batch 2
small pretrain_gpt --set model_config.hidden_size=32 --set model_config.ffn_hidden_size=64 \
  --set model_config.num_attention_heads=2 --set model_config.vocab_size=512 \
  --set dataset_config.tokenizer_type=byte

runs 'bench/layouts.py --steps 4 --warmup 1'
says '| dp 2, z1, overlapped | 1 |'
runs 'mpirun -n 2 --bind-to core build/release/bench/comm_bench'
says '| 67108864 | '
says 'latency us | overhead us'
runs 'start_bench --ranks 1024' 1024=16
says '| 16 | tp 8, pp 2, dp 1 |'
runs 'scaling_bench --check 64' 64=4
says 'largest difference: '
runs 'scaling_bench --float32 5e12 --bfloat16 50e12 --bandwidth 1.2e9 --latency 20e-6 --overhead 3.2e-6'
says '| 4096 | tp 1, pp 16, dp 256 |'
