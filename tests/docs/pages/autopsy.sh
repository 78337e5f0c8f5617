# shellcheck shell=bash disable=SC2154
page docs/autopsy.md
small pretrain_gpt "${tiny/--set training_config.training_iters=2/}"

accepted=1 runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.output_dir=bad --set optimizer_config.learning_rate=1e20 --set training_config.on_anomaly=stop'
says 'step 2: the loss is '
leaves bad/capsule/step_2/report.json
runs 'pretrain_gpt --replay bad/capsule/step_2'
says 'The recorded bits return.'
