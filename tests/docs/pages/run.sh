# shellcheck shell=bash disable=SC2154
page docs/run.md
small pretrain_gpt "$tiny"

runs 'cmake --build build/release --target programs' build/release="$binary_dir"
runs 'cmake --install build/release --component programs --prefix DIR' build/release="$binary_dir" DIR="$scratch/alone"
leaves ../alone/bin/finetune_gpt ../alone/share/tapestry/pretrain_gpt_tiny.yaml

runs 'pretrain_gpt --help lr'
says 'here it is optimizer_config.learning_rate'
runs 'pretrain_gpt --help SECTION' SECTION=dataset_config
says 'data_path'
runs 'pretrain_gpt --help KEY' KEY=training_iters
says 'training_config'

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.training_iters=100'
leaves output/metrics.jsonl output/config.yaml output/log/rank_0/info.log \
  output/checkpoint/step_00000002/{model.safetensors,config.json,generation_config.json,config.yaml,tokenizer.model,tokenizer_config.json}

runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --overwrite --gradient_accumulation_steps 4 --lr 2e-3'
leaves output/old/run_1/metrics.jsonl

no_command 'pretrain_gpt.sh --restarts N'
runs 'pretrain_gpt --plot output'
says 'loss per token'
prepare mkdir runs
prepare cp -r output runs/small
prepare cp -r output runs/large
runs 'pretrain_gpt --plot runs/small runs/large --out losses.svg --x tokens --smooth 0.95'
leaves losses.svg

runs 'pretrain_gpt --evaluate output'
says 'eval: Loss: '
runs 'generate --checkpoint output --prompt "In the beginning" --max_new_tokens 100 --temperature 0.8 --top_k 40 --seed 1'
says 'In the beginning'

prepare rm -r output
prepare sample_texts book.txt more.txt web.txt
runs "pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set 'dataset_config.text=[book.txt, more.txt]'"
leaves output/checkpoint/step_00000002
prepare rm -r output
prepare mkdir data
runs 'preprocess_data --input book.txt more.txt --output_prefix data/books --tokenizer_type sentencepiece --train_tokenizer --vocab_size 512 --append_eod --split_documents blank_line'
leaves data/books.model data/books_text_document.{bin,idx,tokenizer.json,sources.json,sources.npy}
runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set dataset_config.data_path=data/books_text_document'
leaves output/checkpoint/step_00000002
prepare rm -r output
prepare preprocess_data --input web.txt --output_prefix data/web --tokenizer_type sentencepiece \
  --tokenizer_model data/books.model --append_eod
prepare cp examples/gpt/pretrain_gpt_tiny.yaml my.yaml
runs "pretrain_gpt --config_path my.yaml --set 'dataset_config.data_path=[0.7, data/books_text_document, 0.3, data/web_text_document]'"
leaves output/checkpoint/step_00000002

# A blend, asked about in place of trained.
prepare bash -c 'sed "s|^dataset_config:|&\n  data_path: [0.7, data/books_text_document, 0.3, data/web_text_document]|" \
  examples/gpt/pretrain_gpt_tiny.yaml >my.yaml'
small pretrain_gpt "--set training_config.training_iters=120 --set training_config.output_dir=asked"
runs 'pretrain_gpt --config_path my.yaml --which_data 120'
says '"step":120,"dp_rank":0'
says '"file":"book.txt"'
runs 'pretrain_gpt --config_path my.yaml --which_data 100-120 --ranks 8'
says '"step":100,"dp_rank":7'
runs 'pretrain_gpt --config_path my.yaml --which_steps data/books_text_document:12'
says '"documents":[{"id":12,'
small pretrain_gpt "$tiny"
prepare cp examples/gpt/pretrain_gpt_tiny.yaml my.yaml

prepare rm -r output
runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set dataset_config.data_path=data/books_text_document --set dataset_config.reset_attention_mask=True --set dataset_config.reset_position_ids=True --set dataset_config.eod_mask_loss=True'
leaves output/checkpoint/step_00000002

prepare rm -r output
runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.output_dir=base'
# Where the whole run would have it.
prepare mkdir base/checkpoint/step_00000500
prepare cp base/checkpoint/step_00000002/tokenizer.model base/checkpoint/step_00000500
runs "pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.output_dir=tuned\
 --set training_config.load_checkpoint=base --set 'dataset_config.text=[book.txt]'\
 --set dataset_config.tokenizer_model=base/checkpoint/step_00000500/tokenizer.model\
 --set optimizer_config.learning_rate=1e-4 --set optimizer_config.min_lr=1e-5 --set training_config.training_iters=100"
says 'loaded base/checkpoint/step_00000002'
leaves tuned/checkpoint/step_00000002

# A folder as another program would leave it: no config.yaml.
prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.output_dir=hf \
  --set model_config.position_embedding_type=rope --set model_config.normalization=RMSNorm \
  --set model_config.hidden_act=swiglu --set model_config.add_bias_linear=False \
  --set model_config.max_position_embeddings=512
prepare mkdir models
prepare cp -r hf/checkpoint/step_00000002 models/llama
prepare rm models/llama/config.yaml
prepare with_block 2 examples/gpt/pretrain_gpt_tiny.yaml hf.yaml
small pretrain_gpt "--set training_config.training_iters=2 --set dataset_config.batch_size=2"
runs 'pretrain_gpt --config_path hf.yaml --dry_run'
says 'weights: models/llama, '
runs 'pretrain_gpt --config_path hf.yaml'
says 'loaded models/llama'
runs 'generate --checkpoint models/llama --prompt "In the beginning" --max_new_tokens 100'
says 'In the beginning'

small pretrain_gpt ''
runs 'scripts/torture.sh --kills 20' 20=2
says 'torture: passed: '
runs 'scripts/torture.sh --kills 20 --layout dp=2,tp=2 --layouts "dp=1 pp=2,tp=2"' 20=2
says 'torture: passed: '
prepare bash -c 'sed -e "s/save_interval: 500/save_interval: 4/; s/batch_size: 8/batch_size: 2/; s/num_layers: 4/num_layers: 1/" \
  -e "s/hidden_size: 256/hidden_size: 32/; s/ffn_hidden_size: 1024/ffn_hidden_size: 64/; s/seq_length: 256/seq_length: 32/" \
  examples/gpt/pretrain_gpt_tiny.yaml >my.yaml'
runs 'scripts/torture.sh --kills 20 --ranks 2 --config my.yaml --set training_config.training_iters=40 --seconds 600' 20=2
says 'torture: passed: '
prepare mkdir -p runs
prepare cp -r hf runs/one
prepare cp -r hf runs/two
runs 'compare_checkpoints runs/one runs/two --bound 1e-4'
says 'the same'
