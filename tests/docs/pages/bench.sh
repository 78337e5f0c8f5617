# shellcheck shell=bash disable=SC2154
page bench/README.md
needs 'the benchmarks are not built (TAPESTRY_BUILD_BENCH)' built bench/step_bench
needs 'there is no python3' command -v python3
small compare --smoke
small neighbours --rounds 1 --steps 2 --seq 16
small step_bench --seq 16 --steps 1 --warmup 1 --set model_config.num_layers=1
small gemm_bench --model tiny --form NT --seconds 0.001
small grouped_bench --load half --dtype bfloat16 --only products --seconds 0.001
small moe_bench --tokens 32 --hidden 16 --ffn 16 --repeats 1
small ops_bench --benchmark_repetitions=1 --benchmark_min_time=0.001
small machine_bench --quick
small elementwise_bench --seconds 0
small generate_bench --preset tiny --context 16 --tokens 2 --batch 2 --rounds 1

unrunnable apt_get 'apt-get install libbenchmark-dev python3-torch' 'installs packages, as root' \
  known_packages libbenchmark-dev python3-torch
runs 'cmake --preset release -DTAPESTRY_BUILD_BENCH=ON'
runs 'cmake --build build/release'
runs 'bench/compare.py --rounds 3 --json build/bench.json > build/bench.md'
leaves build/bench.json build/bench.md
runs 'TAPESTRY_CPU_LEVEL=avx2 OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2 DNNL_MAX_CPU_ISA=AVX2 bench/compare.py'
says '| tiny | float32 |'
unrunnable debian13_tools 'apt-get install debootstrap' 'installs packages, as root' \
  known_packages debootstrap
unrunnable debian13 'bench/peer/debian13.sh ROOT' 'fetches PyTorch 2.6 with a system around it, as root' \
  bash -n bench/peer/debian13.sh

runs 'build/release/bench/ops_bench --benchmark_filter=gelu --benchmark_format=json'
says '"name": "gelu/1024x3072/float32'
runs 'build/release/bench/step_bench --preset llama_110m --seq 1024 --batch 1 --threads 2'
says '"step_ms":'
runs 'build/release/bench/machine_bench'
says 'peak_gflops'
runs 'build/release/bench/machine_bench > machine.json'
leaves machine.json
runs 'build/release/bench/generate_bench --machine machine.json'
says '"of_limits":'
runs_or 77 'bash scripts/llama_cpp.sh --fetch' # skipped without Node.js or network
unrunnable peers_llama_cpp 'node bench/peer/llama_cpp.mjs llama_1b.gguf' 'needs llama.cpp and a file of 2.2 GB' \
  bash -c 'command -v node >/dev/null || exit 0; node --check bench/peer/llama_cpp.mjs'
runs 'build/release/bench/gemm_bench --model gpt2_124m --dtype float32'
says '| tiny | NT |'
runs 'build/release/bench/grouped_bench --load 64'
says '| half | bfloat16 |'
runs 'build/release/bench/moe_bench'
says '"op":"dense_layer"'
unrunnable peers_moe 'OMP_NUM_THREADS=2 /usr/bin/python3 bench/peer/torch_moe.py' 'needs PyTorch' \
  python3 -m py_compile bench/peer/torch_moe.py
runs 'build/release/bench/grouped_bench --threads 2'
says '| half | bfloat16 |'
runs 'build/release/bench/elementwise_bench'
says '| swiglu backward | float32 |'

unrunnable peers_steps 'bench/compare.py --steps --presets tiny --dtypes float32 --rounds 3 --newer ROOT' \
  'needs PyTorch 2.6' bench/compare.py --steps --presets tiny --dtypes float32 --rounds 3 --newer ROOT
unrunnable peers_ops 'bench/compare.py --ops --filter float32 --rounds 2 --newer ROOT' \
  'needs PyTorch 2.6' bench/compare.py --ops --filter float32 --rounds 2 --newer ROOT
unrunnable peers_char 'bench/compare.py --steps --presets char --dtypes float32 --batch 12 --seq 64 --timed-steps 40 --warmup 5 --newer ROOT' \
  'needs PyTorch 2.6' bench/compare.py --steps --presets char --dtypes float32 --batch 12 --seq 64 --timed-steps 40 --warmup 5 --newer ROOT
unrunnable peers_neighbours 'bench/neighbours.py --rounds 3 --peer' 'needs PyTorch' \
  bench/neighbours.py --rounds 3
runs 'bench/compare.py --steps --presets gpt2_124m --dtypes float32 --timed-steps 3 --rounds 1'
says '| tiny | float32 |'
unrunnable best_small 'bench/compare.py --steps --presets char,tiny --timed-steps 60 --warmup 5 --newer ROOT' \
  'needs PyTorch 2.6' bench/compare.py --steps --presets char,tiny --timed-steps 60 --warmup 5 --newer ROOT
unrunnable best 'bench/compare.py --steps --presets gpt2_124m,llama_110m --rounds 1 --newer ROOT' \
  'needs PyTorch 2.6' bench/compare.py --steps --presets gpt2_124m,llama_110m --rounds 1 --newer ROOT
unrunnable best_2048 'bench/compare.py --steps --presets llama_110m --batch 1 --seq 2048 --timed-steps 3 --rounds 1 --newer ROOT' \
  'needs PyTorch 2.6' bench/compare.py --steps --presets llama_110m --batch 1 --seq 2048 --timed-steps 3 --rounds 1 --newer ROOT
unrunnable best_4096 'bench/compare.py --steps --presets llama_110m --dtypes bfloat16 --batch 1 --seq 4096 --timed-steps 2 --rounds 1 --newer ROOT' \
  'needs PyTorch 2.6' bench/compare.py --steps --presets llama_110m --dtypes bfloat16 --batch 1 --seq 4096 --timed-steps 2 --rounds 1 --newer ROOT
runs 'build/release/bench/step_bench --preset qwen2_390m --lora 16 --dtype bfloat16'
says '"lora":16'
unrunnable peers_lora 'OMP_NUM_THREADS=2 /usr/bin/python3 bench/peer/torch_lora.py --preset qwen2_390m --lora 16 --dtype bfloat16 --keep-memory' \
  'needs PyTorch' python3 -m py_compile bench/peer/torch_lora.py
runs 'bench/compare.py --ops --rounds 1 --repetitions 5 --min-time 0.1'
says '| tape_1000_adds |'

small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte --set model_config.vocab_size=512
runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_7B.yaml'
leaves output/checkpoint/step_00000002
