#!/usr/bin/env python3
"""Writes programs of one op each that ask what the op has saved.

    saved.py FILE [--count N]

For N uses of each op that has a derivative: for each input and result a program in which it is changed
in place before backward, and one that runs backward twice, if PyTorch refuses that.
"""

import argparse
import copy
import sys

import expectations
import operations
from generator import Generator
from program import Statement


def use_of(operation, seed):
    """A generator whose program ends with the op, or None."""
    g = Generator(seed)
    g.empties = False
    for _ in range(3):
        g.leaf(g.shape())
    made = operation.make(g)
    if made is None or any(name is None for name in made[0]):
        return None
    inputs, attributes, results = made
    if operation.in_place:  # of the result of an op that saves nothing
        x = inputs[0]
        inputs = [g.emit("add_number", [x], {"value": .25})[0] if name == x else name for name in inputs]
        results = 0
    return g if g.emit(operation.name, inputs, attributes, results) is not None else None


def programs_of(g):
    last = g.program.statements[-1]
    results = last.inputs[:1] if operations.TABLE[last.op].in_place else last.results
    roots = [name for name in results if g.tensor(name).requires_grad]
    if not roots:
        return
    gradients = [g.leaf(g.shape_of(name), g.dtype_of(name)) for name in roots]
    backward = Statement("backward", roots + gradients, {"roots": len(roots)})
    for name in dict.fromkeys(last.inputs + last.results):
        if name != "-" and g.tensor(name).numel():
            yield with_statements(g, [Statement("no_grad", []), Statement("fill_", [name], {"value": 0.0}),
                                      Statement("end_mode", []), backward])
    yield with_statements(g, [backward, backward])


def with_statements(g, statements):
    program = copy.deepcopy(g.program)
    program.statements += statements
    used = {name for s in program.statements for name in s.inputs}
    program.leaves = [leaf for leaf in program.leaves if leaf.name in used]
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file")
    parser.add_argument("--count", type=int, default=4)
    arguments = parser.parse_args()
    written, refused = 0, 0
    with open(arguments.file, "w", encoding="ascii") as out:
        for operation in operations.TABLE.values():
            uses = 0
            for seed in range(1, 20 * arguments.count):
                g = use_of(operation, seed) if uses < arguments.count else None
                if g is None:
                    continue
                uses += 1
                for program in programs_of(g):
                    try:
                        lines, _ = expectations.expect(program)
                    except (expectations.Unfit, RuntimeError):  # PyTorch may refuse to show the views of split
                        continue
                    is_refused = "".join(lines[-1]).startswith("refused")
                    if is_refused or program.statements[-1] != program.statements[-2]:
                        written, refused = written + 1, refused + is_refused
                        program.seed = written
                        out.write(program.text(lines) + "\n")
    print("%d programs, of which PyTorch refuses %d" % (written, refused))


if __name__ == "__main__":
    sys.exit(main())
