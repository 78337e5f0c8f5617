#!/usr/bin/env bash
# op_misuse_test.sh COMPILER ROOT: ops that would lose a gradient do not compile, and the compiler
# says what to write.
set -euo pipefail
compiler=$1 root=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

# check NAME EXPECTED: the op on standard input is refused with that text; accepted where EXPECTED
# is empty.
check() {
  local name=$1 expected=$2 status=0
  {
    echo '#include "autograd/tape/op.h"'
    echo 'using namespace tapestry;'
    cat
  } > "$folder/op.cpp"
  "$compiler" -std=c++20 -fsyntax-only "-I$root" "$folder/op.cpp" > "$folder/log" 2>&1 || status=$?
  if [[ -z $expected && $status == 0 ]]; then
    return
  fi
  if [[ -n $expected && $status != 0 ]] && grep -qF -- "$expected" "$folder/log"; then
    return
  fi
  echo "$name: expected '${expected:-no error}', the compiler ended with $status:"
  head -20 "$folder/log"
  failed=1
}

check 'a complete op' '' << 'END'
struct A { static constexpr std::string_view name = "a"; Tensor forward(const Tensor& x) { return x; }
  Tensor backward(const Tensor& dy) const { return dy; } };
Tensor a(const Tensor& x) { return apply_op(A{}, x); }
END
check 'a misspelt backward' 'static constexpr bool differentiable = false' << 'END'
struct A { static constexpr OpName name = "a"; Tensor forward(const Tensor& x) { return x; }
  Tensor backwards(const Tensor& dy) const { return dy; } };
Tensor a(const Tensor& x) { return apply_op(A{}, x); }
END
check 'a backward that is not const' 'needs a public, const `backward' << 'END'
struct A { static constexpr OpName name = "a"; Tensor forward(const Tensor& x) { return x; }
  Tensor backward(const Tensor& dy) { return dy; } };
Tensor a(const Tensor& x) { return apply_op(A{}, x); }
END
check 'a backward of one of two outputs' 'takes the gradients of all' << 'END'
struct A { static constexpr OpName name = "a";
  std::array<Tensor, 2> forward(const Tensor& x) { return {x, x}; }
  Tensor backward(const Tensor& dy) const { return dy; } };
auto a(const Tensor& x) { return apply_op(A{}, x); }
END
check 'an op without name' 'an op needs a name' << 'END'
struct A { Tensor forward(const Tensor& x) { return x; }
  Tensor backward(const Tensor& dy) const { return dy; } };
Tensor a(const Tensor& x) { return apply_op(A{}, x); }
END
check 'both' 'which is it?' << 'END'
struct A { static constexpr OpName name = "a"; static constexpr bool differentiable = false;
  Tensor forward(const Tensor& x) { return x; }
  Tensor backward(const Tensor& dy) const { return dy; } };
Tensor a(const Tensor& x) { return apply_op(A{}, x); }
END
exit "$failed"
