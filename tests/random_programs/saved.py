#!/usr/bin/env python3
"""Writes programs of one op each that ask what the op has saved.

    saved.py FILE [--count N]

For N uses of each op that has a derivative, one program for each of its inputs and results, which is
changed in place before backward; and one that runs backward twice. Those that PyTorch takes for a
repetition are left out: nothing is saved.
"""

import argparse
import copy
import sys

import expectations
import operations
from generator import Generator
from program import Statement


def use_of(operation, seed):
    """A generator whose program ends with the op, on inputs of which some want a gradient; or None."""
    g = Generator(seed)
    g.empties = False
    for _ in range(3):
        g.leaf(g.shape())
    made = operation.make(g)
    if made is None or any(name is None for name in made[0]):
        return None
    if operation.in_place:
        # the op changes a result, whose own maker saves nothing
        x = made[0][0]
        y = g.emit("add_number", [x], {"value": .25})
        made = ([y[0] if name == x else name for name in made[0]], made[1], 0) if y else None
    done = made and g.emit(operation.name, *made)
    return g if done is not None else None


def programs_of(g):
    """(program, what it asks) for what the last statement of a generator's program may have saved."""
    last = g.program.statements[-1]
    changed = operations.TABLE[last.op].in_place
    results = last.inputs[:1] if changed else last.results
    roots = [n for n in results if g.tensor(n).requires_grad]
    if not roots:
        return
    gradients = [g.leaf(g.shape_of(n), g.dtype_of(n)) for n in roots]
    backward = Statement("backward", roots + gradients, {"roots": len(roots)})
    g.drop_unused()
    for name in dict.fromkeys(last.inputs + last.results):
        if name != "-" and g.tensor(name).numel():
            yield with_statements(g, [Statement("no_grad", []), Statement("fill_", [name], {"value": 0.0}),
                                      Statement("end_mode", []), backward]), name
    yield with_statements(g, [backward, backward]), "twice"


def with_statements(g, statements):
    program = copy.deepcopy(g.program)
    program.statements += statements
    used = {n for s in program.statements for n in s.inputs}
    known = {leaf.name for leaf in program.leaves}
    program.leaves += [leaf for leaf in g.all_leaves if leaf.name in used - known]
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file")
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    number, refused = 0, 0
    with open(arguments.file, "w", encoding="ascii") as out:
        for operation in operations.TABLE.values():
            uses, seed = 0, arguments.seed
            while uses < arguments.count and seed < arguments.seed + 20 * arguments.count:
                g = use_of(operation, seed)
                seed += 1
                if g is None:
                    continue
                g.all_leaves = g.program.leaves
                uses += 1
                for program, asked in programs_of(g):
                    try:
                        lines, _ = expectations.expect(program)
                    except (expectations.Unfit, RuntimeError):
                        continue
                    is_refused = bool(lines[-1]) and lines[-1][0].startswith("refused")
                    if asked == "twice" and not is_refused:
                        continue
                    number, refused = number + 1, refused + is_refused
                    program.seed = number
                    out.write(program.text(lines) + "\n")
    print("%d programs, of which PyTorch refuses %d" % (number, refused))


if __name__ == "__main__":
    sys.exit(main())
