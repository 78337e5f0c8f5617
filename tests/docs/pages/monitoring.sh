# shellcheck shell=bash disable=SC2154
page docs/monitoring.md
small pretrain_gpt "${tiny/--set training_config.training_iters=2/}"

# The page's configuration on the smallest preset, in steps that are soon done.
prepare with_block 1 examples/gpt/pretrain_gpt_tiny.yaml run.yaml
prepare sed -i 's/training_iters: 500/training_iters: 20/; s/save_interval: 100/save_interval: 10/; s/threshold: 3.0/threshold: 300.0/; s/threshold: 50.0/threshold: 5000.0/' run.yaml
runs 'pretrain_gpt --config_path run.yaml'
says 'embedding_local_norm: '
says 'device_local_norm: '
leaves output/health_ckpts.json
prepare rm -rf output
runs 'pretrain_gpt --config_path run.yaml --set monitor_config.max_logits_interval=10'
says 'max_attention_logit/layers.0.attention/max: '
prepare rm -rf output
prepare with_block 2 examples/gpt/pretrain_gpt_tiny.yaml outside.yaml
prepare sed -i 's/training_iters: 500/training_iters: 20/' outside.yaml
runs 'pretrain_gpt --config_path outside.yaml'
says 'metrics at http://127.0.0.1:'
leaves output/metrics.prom
leaves mlruns/0/meta.yaml
