# shellcheck shell=bash disable=SC2154
page docs/start.md
small pretrain_gpt "$tiny"

runs 'bash scripts/quickstart.sh'
leaves dataset/bible.txt output/checkpoint/step_00000002/model.safetensors
runs 'export PATH="$PWD/build/release/examples/gpt:$PATH"'

prepare sample_texts my_book.txt another.txt
runs 'bash scripts/quickstart.sh --text my_book.txt another.txt'
leaves dataset/user_text/user_text_document.tokenizer.json output/old/run_1
says 'step_00000002 continues "And the king went":'

runs 'mkdir -p data'
runs 'preprocess_data --input my_book.txt --output_prefix data/book --tokenizer_type sentencepiece --train_tokenizer --vocab_size 512 --append_eod --split_documents blank_line'
leaves data/book.model data/book_text_document.{bin,idx}

# Long enough for a question of the examples in ChatML, whose tokens are many with this tokenizer.
small pretrain_gpt "${tiny/--set model_config.seq_length=32/--set model_config.seq_length=128}"
runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set dataset_config.data_path=data/book_text_document --set training_config.output_dir=book --set training_config.save_interval=100 --set model_config.hidden_act=swiglu --dry_run'
says 'memory '
runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set dataset_config.data_path=data/book_text_document --set training_config.output_dir=book --set training_config.save_interval=100 --set model_config.hidden_act=swiglu'
leaves book/metrics.jsonl book/checkpoint/step_00000002/model.safetensors
runs 'pretrain_gpt --help KEY' KEY=save_interval
says 'training_config'
runs 'pretrain_gpt --report book'
leaves book/report.html
runs 'pretrain_gpt --resume book'
says 'going on after step 2'
runs 'generate --checkpoint book --prompt "In the beginning" --max_new_tokens 100 --temperature 0.8 --top_k 40 --seed 1'
says 'In the beginning'

prepare bash -c 'for i in {1..60}; do
  printf "{\"messages\": [{\"role\": \"user\", \"content\": \"Who built ark %s?\"}, {\"role\": \"assistant\", \"content\": \"Noah did.\"}]}\n" "$i"
done >examples.jsonl'
runs 'build/release/examples/gpt/export --checkpoint book --to hf --output book_model'
leaves book_model/{config.json,model.safetensors,tokenizer.model}
runs 'finetune_gpt --help'
says '--lora_rank'
runs 'finetune_gpt --from_hf book_model --data examples.jsonl --output_dir tuned'
says 'validation loss '
says 'answer: '
leaves tuned/hf/{config.json,model.safetensors}
runs 'generate --checkpoint tuned/hf --chat --prompt "Who built the ark?" --max_new_tokens 40'
runs 'finetune_gpt --from_hf book_model --data examples.jsonl --output_dir larger --dry_run'
says 'memory: about '
