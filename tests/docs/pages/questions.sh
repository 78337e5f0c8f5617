# shellcheck shell=bash disable=SC2154
page docs/questions.md
small pretrain_gpt "$tiny" --set dataset_config.tokenizer_type=byte

prepare bash -c 'for i in {1..300}; do echo "line $i of a book that goes on and on"; done >book.txt
mkdir corpus && cp book.txt corpus/a.txt && cp book.txt corpus/b.txt
for i in {1..50}; do echo "{\"body\": \"text $i\", \"score\": NaN}"; done >web.jsonl && echo "{" >>web.jsonl
for i in {1..200}; do echo "天地玄黃宇宙洪荒日月盈昃辰宿列張寒來暑往秋收冬藏閏餘成歲律呂調陽雲騰致雨露結為霜"; done >chinese.txt'
runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set dataset_config.text=book.txt'
says 'prepared the text as ./dataset/book_'
runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set dataset_config.text=corpus --overwrite'
says ': 2 documents'
runs 'preprocess_data --input web.jsonl --json_key body --output_prefix web --tokenizer_type byte --append_eod --skip_bad_lines'
says '1 bad line is left out: web.jsonl:51: '
leaves web_body_document.idx
runs 'preprocess_data --input chinese.txt --output_prefix zh --tokenizer_type sentencepiece --train_tokenizer --vocab_size 512 --grow_vocab --append_eod'
says 'wrote zh_text_document'

runs 'pretrain_gpt --dry_run --config_path FILE' FILE=examples/gpt/pretrain_gpt_tiny.yaml
says 'a step'
runs 'pretrain_gpt --version'
prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --overwrite
runs 'pretrain_gpt --plot RUN' RUN=output
says 'loss per token'
runs 'pretrain_gpt --resume DIR' DIR=output
says 'going on after step 2'
runs 'mpirun --version'
says 'Open MPI'

no_command 'mpirun --oversubscribe'
no_command 'mpirun has detected an attempt to run as root'
no_command 'srun has started 4 processes without telling them of each other'
no_command 'srun --mpi=none'
no_command 'srun --mpi=pmix'
