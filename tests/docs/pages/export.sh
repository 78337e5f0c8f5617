# shellcheck shell=bash disable=SC2154
page docs/export.md
small pretrain_gpt "$tiny"
runs 'pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.output_dir=llama --set model_config.hidden_act=swiglu'
runs 'build/release/examples/gpt/export --checkpoint llama --to gguf --type BF16 --output llama.gguf'
says 'wrote llama.gguf'
leaves llama.gguf
unrunnable llama_cpp 'bash scripts/llama_cpp.sh llama.gguf --prompt "In the beginning" --tokens 40' \
  'wants Node.js 20 and the registry of npm; the test llama_cpp runs it' bash scripts/llama_cpp.sh --help
runs 'build/release/examples/gpt/export --checkpoint llama --to hf --output llama_hf'
leaves llama_hf/{model.safetensors,config.json,generation_config.json,tokenizer.model,tokenizer_config.json}
runs 'build/release/examples/gpt/export --checkpoint llama_hf --to gguf --type Q8_0 --name "Small Llama" --output small.gguf'
leaves small.gguf

prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.output_dir=tuned \
  --set model_config.hidden_act=swiglu --set training_config.load_checkpoint=llama_hf --set lora_config.use_lora=True
runs 'build/release/examples/gpt/export --adapter tuned --to gguf --output adapter.gguf'
leaves adapter.gguf
runs 'build/release/examples/gpt/export --adapter tuned --merge --to gguf --type F16 --output merged.gguf'
says 'merged and'
leaves merged.gguf
runs 'build/release/examples/gpt/export --adapter tuned --merge --to hf --output merged_hf'
leaves merged_hf/{model.safetensors,config.json}
runs 'build/release/examples/gpt/export --adapter tuned --to hf --output peft'
leaves peft/{adapter_config.json,adapter_model.safetensors}
