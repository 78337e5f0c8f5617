# shellcheck shell=bash disable=SC2154
page docs/optimizers.md
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set optimizer_config.optimizer_type=Muon'
says 'loss'
leaves output/checkpoint/step_00000002

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set optimizer_config.lr_decay_style=warm_restarts --set optimizer_config.lr_restart_iters=20 --set optimizer_config.min_lr=0.0001'
says 'loss'

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set optimizer_config.optimizer_type=Muon --set optimizer_config.qk_clip_enabled=True --set optimizer_config.qk_clip_threshold=50'
says 'loss'
