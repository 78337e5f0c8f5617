# shellcheck shell=bash disable=SC2154
page docs/autopsy.md
small pretrain_gpt "${tiny/--set training_config.training_iters=2/}"
