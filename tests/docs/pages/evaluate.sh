# shellcheck shell=bash disable=SC2154
page docs/evaluate.md
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte --set model_config.vocab_size=512

prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml
prepare python3 -c 'open("held_out.txt", "w").write("And the king went up to the city. " * 9)'
prepare python3 -c 'open("questions.jsonl", "w").write("{\"prompt\": \"The king\", \"choices\": [\" went\", \" x\"], \"answer\": 0}\n")'
runs 'evaluate --checkpoint output --text held_out.txt'
says '"perplexity_per_token"'
runs 'evaluate --checkpoint output --text held_out.txt --context 64 --stride 16' 64=8 16=2
says '"stride": 2'
runs 'evaluate --checkpoint output --choices questions.jsonl --details'
says '"log_likelihoods"'
runs 'mpirun -n 2 evaluate --checkpoint output --text held_out.txt --choices questions.jsonl --tensor_parallel 2' \
  'mpirun -n 2'='mpirun --oversubscribe -n 2'
says '"accuracy_per_byte"'
