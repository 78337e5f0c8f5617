#!/usr/bin/env bash
# function_length_test.sh ROOT: names every function of the product whose definition takes 100 lines
# or more, and fails if there is one. It goes by the layout that scripts/format.sh gives: a definition
# begins at the margin, or two columns inside for a member in its class, and ends with a line that
# holds nothing but its brace.
set -euo pipefail
cd "$1"

long_functions() {  # of the sources below the given folders
  find "$@" \( -name '*.cpp' -o -name '*.h' \) -print0 | sort -z | xargs -0 awk '
    function may_begin(line) {
      return line !~ /^(namespace|class|struct|union|enum|using|public|private|protected|extern|\/\/|}|\))/
    }
    FNR == 1 { start[0] = start[2] = ended[0] = ended[2] = 0 }
    /^ *#/ { next }
    {
      for (margin = 0; margin <= 2; margin += 2) {
        if (match($0, /[^ ]/) != margin + 1) continue
        text = substr($0, margin + 1)
        if (text == "}") {
          lines = FNR - start[margin] + 1
          if (start[margin] && lines >= 100) printf "%s:%d: %d lines\n", FILENAME, start[margin], lines
          start[margin] = 0
        } else if (!may_begin(text)) {
          start[margin] = 0
        } else if (!start[margin] || ended[margin]) {
          start[margin] = FNR
        }
        ended[margin] = text ~ /[;}]$/  # a declaration, or a function of one line
      }
    }'
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
body() { for ((i = 0; i < $1; ++i)); do echo "  $2++i;"; done; }
{
  printf 'namespace a {\n\nint declared();\ntemplate <class T>\nint f(T a,\n      int b) {\n'
  body 97 ''
  printf '}\n\nclass B {\n public:\n  int c() const { return 1; }\n  void g() {\n'
  body 98 '  '
  printf '  }\n};\n\nvoid h() {\n'
  body 97 ''
  printf '}\n\n}  // namespace a\n'
} > "$scratch/a.cpp"
found=$(long_functions "$scratch" | sed "s|$scratch/||")
expected=$'a.cpp:4: 101 lines\na.cpp:109: 100 lines'
if [ "$found" != "$expected" ]; then
  printf 'of a file with two long functions it finds:\n%s\nexpected:\n%s\n' "$found" "$expected"
  exit 1
fi

found=$(long_functions autograd nn optim parallel_core text interop diagnosis examples packaging)
if [ -n "$found" ]; then
  printf 'functions of 100 lines or more:\n%s\n' "$found"
  exit 1
fi
