# shellcheck shell=bash disable=SC2154
page docs/tokenizers.md
small pretrain_gpt "$tiny"

prepare cp -r tests/data/golden_tokenizers/own_chat model
prepare cp README.md book.txt

runs 'preprocess_data --input book.txt --output_prefix data/book --tokenizer_type huggingface --tokenizer_model model --append_eod'
says 'with the Hugging Face tokenizer model/tokenizer.json, 327 ids'
leaves data/book_text_document.{idx,bin,tokenizer.json}
runs "pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set 'dataset_config.text=[book.txt]' --set dataset_config.tokenizer_type=huggingface --set dataset_config.tokenizer_model=model"
says 'Hugging Face tokenizer model/tokenizer.json'
leaves output/checkpoint/step_00000002/tokenizer.json
runs "generate --checkpoint output --prompt 'the river' --max_new_tokens 20"
says 'the river'
