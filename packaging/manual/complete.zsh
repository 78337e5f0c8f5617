# What is the same for all programs: reads the tables keys and flags of the function that calls it.

# YAML files, and presets by their paths; by their names for the launcher, which finds them.
_tapestry_preset() {
  local program=${commands[${words[1]}]:-${words[1]}}
  local -a presets=(${program:A:h:h}/share/tapestry/*.yaml(N))
  [[ ${words[1]} != *.sh ]] || presets=(${presets:t})
  _alternative 'presets:preset:compadd -a presets' 'files:file:_files -g "*.(yaml|yml)"'
}

# section.key=value
_tapestry_key() {
  if compset -P '*='; then
    compadd -- ${=keys[${IPREFIX%=}]}
  else
    compadd -S = -- ${(k)keys}
  fi
}

# Sections; keys too once a part of one is there.
_tapestry_topic() {
  local -a found=(${=topics})
  [[ -z $PREFIX ]] || found+=(${(k)flags} ${(k)keys})
  compadd -a found
}

# Keys as options, once a part of a name is there: all of them would hide the others.
_tapestry_flags() {
  local flag
  reply=()
  [[ ${words[CURRENT]} == --?* || ${words[CURRENT - 1]} == --?* ]] || return 0
  for flag in ${(k)flags}; do
    reply+=("--${flag}=[${flags[$flag]}]:value:(${keys[${flags[$flag]}]})")
  done
}

