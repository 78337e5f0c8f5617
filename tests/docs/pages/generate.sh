# shellcheck shell=bash disable=SC2154
page docs/generate.md
small pretrain_gpt "$tiny"

prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml
runs 'generate --checkpoint output --prompt "In the beginning" --max_new_tokens 100 --temperature 0.8 --top_k 40 --seed 1'
says 'In the beginning'
runs 'generate --checkpoint output --prompt "In the beginning" --prompt "And the king" --max_new_tokens 20'
says 'And the king'
prepare bash -c 'printf "{\"prompt\": \"And the king\"}\n{\"prompt\": \"In the\", \"id\": 7}\n" >prompts.jsonl'
runs 'generate --checkpoint output --prompts prompts.jsonl --max_new_tokens 20 --temperature 0 --logprobs 2'
says '{"index":1,"id":7,"prompt":"In the","text":'

# Folders as another program would leave them: no config.yaml.
prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.output_dir=hf \
  --set model_config.position_embedding_type=rope --set model_config.normalization=RMSNorm \
  --set model_config.hidden_act=swiglu --set model_config.add_bias_linear=False \
  --set model_config.max_position_embeddings=512
prepare mkdir models
prepare cp -r hf/checkpoint/step_00000002 models/llama
prepare rm models/llama/config.yaml
prepare cp -r models/llama models/chat
prepare bash -c 'echo "{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}assistant:" >models/chat/chat_template.jinja'
runs 'generate --checkpoint models/chat --chat --prompt "Who went up to the mountain?" --max_new_tokens 30'
prepare bash -c 'printf "Who went up?\nAnd then?\n" >questions.txt'
runs 'generate --checkpoint models/chat --chat --system "Answer in one word." --max_new_tokens 30 < questions.txt'

small pretrain_gpt "--set training_config.training_iters=2 --set dataset_config.batch_size=2"
prepare pretrain_gpt --config_path examples/gpt/pretrain_gpt_tiny.yaml --set training_config.output_dir=tuned \
  --set model_config.position_embedding_type=rope --set model_config.normalization=RMSNorm \
  --set model_config.hidden_act=swiglu --set model_config.add_bias_linear=False \
  --set model_config.max_position_embeddings=512 --set model_config.num_layers=2 \
  --set model_config.hidden_size=32 --set model_config.ffn_hidden_size=64 \
  --set model_config.num_attention_heads=2 --set model_config.seq_length=32 \
  --set model_config.from_hf=models/llama --set lora_config.use_lora=True
prepare cp -r tuned/checkpoint/step_00000002 adapter
runs 'generate --checkpoint models/llama --adapter adapter --prompt "In the beginning" --max_new_tokens 20'
says 'In the beginning'
runs 'generate --checkpoint models/llama --dtype bfloat16 --prompt "In the beginning" --max_new_tokens 20'
says 'In the beginning'
runs 'generate --checkpoint models/llama --dtype q8_0 --prompt "In the beginning" --max_new_tokens 20'
runs 'generate --checkpoint models/llama --dtype q4_0 --prompt "In the beginning" --max_new_tokens 20'
says 'In the beginning'
runs 'mpirun -n 2 generate --checkpoint models/llama --tensor_parallel 2 --prompt "In the beginning" --max_new_tokens 20'
says 'In the beginning'
