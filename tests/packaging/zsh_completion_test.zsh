# zsh_completion_test.zsh COMPLETIONS: what a line becomes when Tab is pressed in zsh. A second zsh,
# on a terminal of its own, reads the keys; a key of its own writes its line to a file.
zmodload zsh/zpty zsh/datetime
setopt no_unset
completions=${1:A}
scratch=$(mktemp -d)
trap 'zpty -d shell 2>/dev/null; rm -rf $scratch' EXIT
cp -r $completions $scratch/functions
mkdir -p $scratch/bin $scratch/share/tapestry $scratch/here
touch $scratch/share/tapestry/pretrain_gpt_tiny.yaml
for file in $scratch/functions/_*; do
  zsh -n $file || exit 1
  cp /bin/true $scratch/bin/${${file:t}#_}
done
failures=0

cat >$scratch/.zshrc <<TEXT
PS1= RPS1= PATH=$scratch/bin:\$PATH
cd $scratch/here
fpath=($scratch/functions \$fpath)
autoload -Uz compinit && compinit -u -d $scratch/dump
setopt no_beep
bindkey -e
report() { print -r -- "\$BUFFER" >$scratch/line.new; mv $scratch/line.new $scratch/line; BUFFER= }
zle -N report
bindkey '^X^R' report
print ready >$scratch/ready
TEXT
export ZDOTDIR=$scratch TERM=dumb
zpty -b shell zsh -i
# Its output has to be read, else it waits.
drain() { local text; while zpty -r -t shell text 2>/dev/null; do :; done }
await() { # await FILE: for half a minute at most
  local -F end=$((EPOCHREALTIME + 30))
  until [[ -f $1 ]]; do
    drain
    ((EPOCHREALTIME < end)) || { print -u2 "FAILED: zsh does not answer"; exit 1 }
    sleep 0.02
  done
}
await $scratch/ready

# becomes LINE RESULT: behind the line Tab is pressed.
becomes() {
  rm -f $scratch/line
  zpty -w -n shell "$1"$'\t\x18\x12'
  await $scratch/line
  local got=$(<$scratch/line)
  [[ ${got% } == $2 ]] || {
    print -u2 "FAILED: zsh completion of '$1' gives '$got', expected '$2'"
    ((++failures))
  }
}
becomes 'pretrain_gpt --dry' 'pretrain_gpt --dry_run'
becomes 'pretrain_gpt --x to' 'pretrain_gpt --x tokens'
becomes 'pretrain_gpt --x=to' 'pretrain_gpt --x=tokens'
becomes 'pretrain_gpt --set optimizer_config.optimizer_t' 'pretrain_gpt --set optimizer_config.optimizer_type='
becomes 'pretrain_gpt --set training_config.exact=T' 'pretrain_gpt --set training_config.exact=True'
becomes 'pretrain_gpt --help post_t' 'pretrain_gpt --help post_training_config'
becomes 'pretrain_gpt --convert_config 2' 'pretrain_gpt --convert_config 2.0'
becomes 'pretrain_gpt.sh pretrain_gpt_t' 'pretrain_gpt.sh pretrain_gpt_tiny.yaml'
becomes 'generate --dtype q8' 'generate --dtype q8_0'
becomes 'accuracy cu' 'accuracy curves'
becomes 'accuracy curves --win' 'accuracy curves --window='
becomes 'accuracy compare --bits --no_r' 'accuracy compare --bits --no_rerun'
becomes '../bin/export --to gg' '../bin/export --to gguf'
becomes 'preprocess_data --tokenizer_type sent' 'preprocess_data --tokenizer_type sentencepiece'
exit $((failures > 0))
