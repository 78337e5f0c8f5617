# shellcheck shell=bash disable=SC2154
page docs/report.md
small pretrain_gpt "$tiny"

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --plot_schedule schedule.svg'
says 'wrote schedule.svg: learning rate and weight decay of 2 steps'
leaves schedule.svg

prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.training_iters=2 \
  --set tensorboard.tensorboard_dir=output/tensorboard
leaves output/tensorboard/rank_0
runs 'pretrain_gpt --report output'
says 'wrote output/report.html: 1 run'
leaves output/report.html
prepare mkdir runs
prepare cp -r output runs/small
prepare cp -r output runs/large
runs 'pretrain_gpt --report runs/small runs/large --out compared.html --x tokens'
says 'wrote compared.html: 2 runs'
leaves compared.html
