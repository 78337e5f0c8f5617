# shellcheck shell=bash disable=SC2154
page docs/checkpoints.md
small pretrain_gpt "${tiny/--set training_config.training_iters=2/}"

# The page's configuration, in steps that are soon done; checkpoints have the names of the page.
prepare with_block 1 examples/gpt/pretrain_gpt_tiny.yaml run.yaml
prepare grep -q 'training_iters: 500' run.yaml
prepare sed -i 's/save_interval: 100 /save_interval: 200 /' run.yaml
runs 'pretrain_gpt --config_path run.yaml'
says 'holds no checkpoint yet, so the run starts from its beginning'
leaves output/checkpoint/step_00000{400,500}/{model.safetensors,config.json,generation_config.json,config.yaml} \
  output/checkpoint/step_00000400/{training_state.safetensors,training_state.json,manifest.json} \
  output/checkpoint/step_00000400/tokenizer{.model,_config.json}
runs 'pretrain_gpt --config_path run.yaml --set training_config.resume_training=True'
says 'going on after step 500'
runs 'pretrain_gpt --resume DIR' DIR=output
says 'going on after step 500'
runs 'while pretrain_gpt --config_path run.yaml; code=$?; ((code > 128)); do sleep 60; done'
says 'going on after step 500'

no_command 'pretrain_gpt.sh --restarts N'
no_command 'pretrain_gpt --plan'
runs 'RANKS=2 examples/gpt/pretrain_gpt.sh --restarts 5 run.yaml'
says 'going on after step 500'

# The last steps again, by two ranks.
prepare rm -r output/checkpoint/step_00000500
runs 'RANKS=2 examples/gpt/pretrain_gpt.sh run.yaml --set parallel_config.tensor_model_parallel_size=2'
says 'going on after step 400'
says 'tp 2'
leaves output/checkpoint/step_00000500

runs 'ls -l output/checkpoint/step_00000400'
says 'training_state.safetensors'
runs 'cat output/checkpoint/step_00000400/manifest.json'
says '"crc32c"'
runs 'pretrain_gpt --evaluate output/checkpoint/step_00000400'
says 'eval: Loss: '
runs 'generate --checkpoint output/checkpoint/step_00000400 --prompt "In the beginning" --max_new_tokens 20'
says 'In the beginning'
runs 'mkdir -p exported'
runs 'cp output/checkpoint/step_00000400/{model*,*config.json,tokenizer*} exported'
runs 'generate --checkpoint exported --prompt "In the beginning" --max_new_tokens 20'
says 'In the beginning'

runs 'pretrain_gpt --config_path run.yaml --set training_config.resume_training=step_00000400'
says 'going on after step 400'
leaves output/old/run_1
runs 'pretrain_gpt --config_path run.yaml --set training_config.load_checkpoint=output --set training_config.output_dir=other'
says 'going on after step 500'
runs 'pretrain_gpt --config_path run.yaml --set training_config.output_dir=mindspore --set training_config.ckpt_format=ckpt --set training_config.prefix=tiny'
runs 'ls mindspore/checkpoint/step_00000500/tiny.ckpt'
runs 'pretrain_gpt --config_path run.yaml --set training_config.training_iters=1000'
says 'the schedule is that of'
leaves output/checkpoint/step_00001000
runs 'pretrain_gpt --config_path run.yaml --set training_config.training_iters=1200 --set optimizer_config.use_checkpoint_opt_param_scheduler=False --set optimizer_config.override_opt_param_scheduler=True'
says 'the schedule is the configured one'
prepare cp -r output/checkpoint/step_00001200/tokenizer.model book.model
prepare sample_texts book.txt
small pretrain_gpt "${tiny/--set training_config.training_iters=2/}" --set dataset_config.tokenizer_model=book.model
runs "pretrain_gpt --config_path run.yaml --set training_config.training_iters=1400 --set training_config.new_dataset=True --set 'dataset_config.text=[book.txt]'"
says 'new_dataset: begins at the first sample of these data, after 1200 steps'
unrunnable disk_faults 'scripts/disk_faults.sh --sample 20' \
  'wants the library of the tests; the tests disk_faults run it' bash scripts/disk_faults.sh --help
