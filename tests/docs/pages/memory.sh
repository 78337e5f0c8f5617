# shellcheck shell=bash disable=SC2154
page docs/memory.md
no_command 'pretrain_gpt --dry_run --verbose'
