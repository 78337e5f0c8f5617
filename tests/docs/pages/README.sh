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

prepare sample_texts my_book.txt another.txt
runs 'bash scripts/quickstart.sh --text my_book.txt another.txt'
leaves dataset/user_text/user_text_document.tokenizer.json output/old/run_1
says 'step_00000002 continues "And the king went":'

runs 'bash scripts/test.sh'
says '100% tests passed'

# From the build that there is; the clone's has no libraries.
runs 'cmake --install build/release --prefix DIR' build/release="$binary_dir" DIR="$scratch/prefix"
leaves ../prefix/bin/pretrain_gpt ../prefix/include/tapestry/tapestry.h

runs 'cmake --build build/release --target programs'
runs 'cmake --install build/release --component programs --prefix DIR' build/release="$binary_dir" DIR="$scratch/alone"
leaves ../alone/bin/finetune_gpt ../alone/share/tapestry/pretrain_gpt_tiny.yaml
runs 'pretrain_gpt --help lr'
says 'here it is optimizer_config.learning_rate'
