# shellcheck shell=bash disable=SC2154
page docs/accuracy.md

runs 'accuracy COMMAND --help' COMMAND=checklist
says '--other_data_parallel_size'

prepare bash -c 'echo "pretrain_gpt.py --num-layers 2 --hidden-size 64 --lr 1e-3 --train-iters 10" >theirs.sh'
runs_or 1 'accuracy checklist examples/gpt/pretrain_gpt_tiny.yaml theirs.sh --json checklist.json --html checklist.html'
says 'checklist: differ, at stage config'
leaves checklist.json checklist.html

for run in ours reference reference_again; do
  prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set "training_config.output_dir=runs/$run"
done
runs 'accuracy curves runs/ours runs/reference --html curves.html --csv differences.csv'
says 'curves: accepted'
leaves curves.html differences.csv
runs 'accuracy curves runs/ours runs/reference runs/reference_again --json curves.json'
says 'curves: accepted'
leaves curves.json

small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte
exact='--set training_config.exact=True --set training_config.save_interval=1'
# shellcheck disable=SC2086  # several options
{
  prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml $exact --set training_config.output_dir=runs/laptop
  prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml $exact --set training_config.output_dir=runs/cluster
}
runs 'accuracy compare --bits runs/laptop runs/cluster --json bits.json'
says 'common steps'
leaves bits.json
runs 'pretrain_gpt --config_path runs/cluster/config.yaml --prove runs/cluster/checkpoint/CHECKPOINT STEP --set parallel_config.tensor_model_parallel_size=1' CHECKPOINT=step_00000001 STEP=2
says 'The recorded hash returns'

small pretrain_gpt  # the case is small
find_fault='build/release/examples/gpt/pretrain_gpt --config_path tests/data/golden_models/llama_tiny/run.yaml --find_fault tests/data/golden_models/llama_tiny'
runs "$find_fault --expand \"tp=2;pp=2\" --json fault.json"
says 'find_fault: agree, at stage none'
leaves fault.json
runs_or 1 "$find_fault --set optimizer_config.eps=1e-6"
says 'find_fault: differ, at stage config'
runs_or 1 "$find_fault --set training_config.load_checkpoint="
says 'find_fault: differ, at stage weights'
