# shellcheck shell=bash disable=SC2154  # the function that is completed for has the tables
# What is the same for all programs: reads the tables kinds, values, offered, keys, flags, commands,
# topics and operands of the function that calls it.

# The folder of the presets: beside that of the program, or the program's own in a build.
_tapestry_presets() {
  local program folder
  program="$(type -P -- "${COMP_WORDS[0]/#\~/$HOME}")" || return 0
  folder="$(dirname -- "$(readlink -f -- "$program")")"
  compgen -f -X '!*.yaml' -- "${folder%/*}/share/tapestry/"
}

# _tapestry_offer WORDS WORD: those that begin so.
_tapestry_offer() {
  mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2")
}

_tapestry_files() { # _tapestry_files KIND WORD
  local kind=-f
  [[ "$1" != folder ]] || kind=-d
  compopt -o filenames
  mapfile -t COMPREPLY < <(compgen "$kind" -- "$2")
}

# _tapestry_preset WORD: YAML files and folders, and presets by their names or paths.
_tapestry_preset() {
  local preset
  _tapestry_files file "$1"
  local -a found=("${COMPREPLY[@]}")
  COMPREPLY=()
  for preset in "${found[@]}"; do
    [[ ! -d "$preset" && "$preset" != *.yaml && "$preset" != *.yml ]] || COMPREPLY+=("$preset")
  done
  while read -r preset; do
    # The launcher finds a preset by its name, the program by its path.
    [[ "${COMP_WORDS[0]}" != *.sh ]] || preset="${preset##*/}"
    [[ "$preset" != "$1"* && "${preset##*/}" != "$1"* ]] || COMPREPLY+=("$preset")
  done < <(_tapestry_presets)
}

# _tapestry_value KIND VALUES WORD: what stands behind an option.
_tapestry_value() {
  case "$1" in
    words) _tapestry_offer "$2" "$3" ;;
    file | folder) _tapestry_files "$1" "$3" ;;
    preset) _tapestry_preset "$3" ;;
    topic)
      # Sections; keys too once a part of one is there.
      _tapestry_offer "$topics${3:+ ${!flags[*]} ${!keys[*]}}" "$3"
      ;;
    key)
      compopt -o nospace
      _tapestry_offer "${!keys[*]}" "$3"
      COMPREPLY=("${COMPREPLY[@]/%/=}")
      ;;
  esac
}

# The word before the value, where that is joined to it by '=': "--x=steps", "--set a.b=1", "--lr=1".
_tapestry_joined() { # _tapestry_joined NAME WORD
  local name="$1" key="${1#--}"
  if [[ -n "${kinds[$command$name]:-}" ]]; then
    _tapestry_value "${kinds[$command$name]#* }" "${values[$command$name]:-}" "$2"
    return
  fi
  key="${flags[$key]:-$key}"
  [[ -z "${keys[$key]:-}" ]] || _tapestry_offer "${keys[$key]}" "$2"
}

# The option that the word at the end is a value of: the one before it, or of several values one
# further up. Empty without.
_tapestry_option() {
  local i kind
  for ((i = COMP_CWORD - 1; i > 0; --i)); do
    if [[ "${COMP_WORDS[i]}" == -* ]]; then
      kind="${kinds[$command${COMP_WORDS[i]}]:-}"
      if [[ "$kind" == many* ]] || ((i == COMP_CWORD - 1)); then
        echo "${COMP_WORDS[i]}"
      fi
      return
    fi
  done
}

_tapestry_complete() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD - 1]}" command=_ option key
  COMPREPLY=()
  if [[ "$(type -t -- "${COMP_WORDS[0]}")" == builtin ]]; then # `export` without a path is the shell's
    compopt -o nospace
    mapfile -t COMPREPLY < <(compgen -v -- "$word")
    return
  fi
  if [[ -n "$commands" ]]; then
    if ((COMP_CWORD == 1)); then
      _tapestry_offer "$commands --help" "$word"
      return
    fi
    command="_${COMP_WORDS[1]} "
    if ((COMP_CWORD > 2)) && [[ "${COMP_WORDS[2]}" == --bits ]]; then
      command+="--bits "
    fi
  fi
  if [[ "$word" == "=" ]]; then
    _tapestry_joined "$before" ""
    return
  elif [[ "$before" == "=" ]]; then
    _tapestry_joined "${COMP_WORDS[COMP_CWORD - 2]}" "$word"
    return
  fi
  option="$(_tapestry_option)"
  if [[ "$word" == -* ]]; then
    local names="${offered[$command]:-}"
    # Keys are options too; all of them would hide the others.
    if [[ "$word" == --?* && ${#keys[@]} -gt 0 ]]; then
      for key in "${!flags[@]}"; do
        names+=" --$key"
      done
      [[ "$word" != *_config* ]] || names+=" $(printf -- '--%s ' "${!keys[@]}")"
    fi
    _tapestry_offer "$names" "$word"
  elif [[ -n "${kinds[$command$option]:-}" ]]; then
    _tapestry_value "${kinds[$command$option]#* }" "${values[$command$option]:-}" "$word"
  elif [[ -n "$option" && -n "${flags[${option#--}]:-}" ]]; then # --optimizer_type WORD
    _tapestry_offer "${keys[${flags[${option#--}]}]}" "$word"
  elif [[ "$operands" == preset && " ${COMP_WORDS[*]:1:COMP_CWORD-1} " != *".yaml "* ]]; then
    _tapestry_preset "$word"
  elif [[ -n "$commands" || "${COMP_WORDS[0]##*/}" == compare_checkpoints ]]; then
    _tapestry_files file "$word"
  fi
}

