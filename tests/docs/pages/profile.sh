# shellcheck shell=bash disable=SC2154
page docs/profile.md
small pretrain_gpt "$tiny"

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.profile=True --set training_config.profile_level=level1 --set training_config.profile_memory=True'
says 'profile of steps 1 to 2 on 1 rank: '
says 'memory at the peak of rank 0'
leaves output/profile/{trace.json,ops.csv,modules.csv,memory.csv,rank_0/trace.json,rank_0/tables.json}
prepare rm output/profile/trace.json
runs 'pretrain_gpt --analyse_profile output/profile'
says 'profile of steps 1 to 2 on 1 rank: '
leaves output/profile/trace.json
