#!/usr/bin/env python3
"""Makes a program in which the library differs from PyTorch as small as it can be.

    shrink.py FILE SEED [--program build/release/tests/test.autograd.random_programs]

tries to leave out statements, to put leaves in the place of results, and to make leaves plainer, as long
as the difference stays the same; prints what is left.
"""

import argparse
import copy
import os
import re
import subprocess
import tempfile

import expectations
from program import Leaf, parse
from runner import FLOATING, Native


def difference(program, command):
    """The kind of the difference, without names and numbers; None if there is none."""
    program = copy.deepcopy(program)
    try:
        lines, _ = expectations.expect(program)
    except Exception:  # statements that no longer fit together
        return None, None
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(program.text(lines))
        file.flush()
        done = subprocess.run([command, "--gtest_filter=RandomPrograms.*"], capture_output=True, text=True,
                              env={**os.environ, "TAPESTRY_RANDOM_PROGRAMS": file.name})
    if done.returncode not in (0, 1):
        return "crash", program.text(lines)
    found = re.search(r"^seed \d+, statement \d+, (.*?): (.*)$", done.stdout, re.M)
    if found is None:
        return None, None
    op = next((w for w in found.group(1).split("=")[-2 if " = " in found.group(1) else 0].split()), "")
    reason = re.sub(r"\b[xtgh]\d+\b|-?\d[\d.e+-]*|\[[^]]*\]", "#", found.group(2))
    return (op if "refuse" in reason else "") + reason, program.text(lines) + "# " + found.group(2) + "\n"


def smaller(program):
    """Programs with something left out, the largest parts first."""
    for i in reversed(range(len(program.statements))):
        shorter = copy.deepcopy(program)
        removed = shorter.statements.pop(i)
        used = {name for s in shorter.statements for name in s.inputs}
        if not used.intersection(removed.results):
            yield shorter
        else:
            yield with_leaves(program, i)
    for i in range(len(program.leaves)):
        for change in ({"strides": None, "offset": 0}, {"grad": False}):
            plainer = copy.deepcopy(program)
            vars(plainer.leaves[i]).update(change)
            if plainer != program:
                yield plainer


def with_leaves(program, i):
    """The results of statement i as leaves of the same values, which lie before all statements."""
    shorter = copy.deepcopy(program)
    statement = shorter.statements.pop(i)
    state = expectations.Trace(program, Native(), count=i + 1).states[-1]
    for name in statement.results:
        snapshot = state.get(name)
        if snapshot is not None:
            grad = snapshot.requires_grad and snapshot.dtype in FLOATING
            shorter.leaves.append(Leaf(name, snapshot.dtype, snapshot.shape, snapshot.values, grad))
    return shorter


def tidy(program):
    used = {name for s in program.statements for name in s.inputs}
    program.leaves = [leaf for leaf in program.leaves if leaf.name in used]
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file")
    parser.add_argument("seed", type=int)
    parser.add_argument("--program", default="build/release/tests/test.autograd.random_programs")
    arguments = parser.parse_args()
    with open(arguments.file, encoding="ascii") as file:
        program = next(p for p in parse(file) if p.seed == arguments.seed)
    wanted, text = difference(program, arguments.program)
    if wanted is None:
        raise SystemExit("seed %d: no difference" % arguments.seed)
    progress = True
    while progress:
        progress = False
        for candidate in smaller(program):
            kind, candidate_text = difference(tidy(candidate), arguments.program)
            if kind == wanted:
                program, text, progress = candidate, candidate_text, True
                break
    print(text)


if __name__ == "__main__":
    main()
