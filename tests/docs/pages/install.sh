# shellcheck shell=bash disable=SC2154
page docs/install.md
small pretrain_gpt --set training_config.training_iters=2 --set training_config.eval_iters=1 \
  --set model_config.num_layers=1 --set dataset_config.batch_size=1

runs 'pretrain_gpt --version'
says 'CPU level'
runs 'cmake --preset release -DTAPESTRY_CPU_LEVELS=all'
runs 'cmake --build build/release --target packages'
runs 'cmake --preset release'
unrunnable apt_get 'apt-get install ./tapestry_0.1.0_amd64.deb bible-kjv' \
  'installs packages, as root; the test packages.root does so in a root of its own' known_packages bible-kjv
unrunnable apt_get_download 'apt-get install --download-only ./tapestry_0.1.0_amd64.deb bible-kjv' \
  'needs a package and root; the test packages.root does so' known_packages bible-kjv
unrunnable aarch64_package 'bash scripts/aarch64.sh --package' \
  'fetches a cross compiler, compiles everything and runs under qemu' bash scripts/aarch64.sh --help
runs 'cmake --build build/release --target programs'
# From the build that there is; the clone's has no programs.
runs 'cmake --install build/release --component programs --prefix DIR' build/release="$binary_dir" DIR="$scratch/prefix"
leaves ../prefix/share/tapestry/modulefiles/tapestry/0.1.0 ../prefix/share/man/man1/pretrain_gpt.1.gz

runs 'pretrain_gpt.sh pretrain_gpt_tiny.yaml'
leaves output/checkpoint/step_00000002/model.safetensors
runs 'generate --checkpoint output --prompt "In the beginning"'
says 'In the beginning'
