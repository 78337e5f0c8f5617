#!/usr/bin/env python3
"""Writes random programs with what PyTorch makes of them.

    generate.py FILE --seed S --count N

takes seeds S, S + 1, ... until N programs say something.
"""

import argparse
import collections
import sys

import expectations
from generator import Generator


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    arguments = parser.parse_args()
    unfit, worst, written, seed = collections.Counter(), 0.0, 0, arguments.seed
    with open(arguments.file, "w", encoding="ascii") as out:
        while written < arguments.count:
            program = Generator(seed).make()
            try:
                lines, distance = expectations.expect(program)
            except expectations.Unfit as reason:
                unfit[str(reason)] += 1
            else:
                if any(lines):
                    out.write(program.text(lines) + "\n")
                    written, worst = written + 1, max(worst, distance)
            seed += 1
    print("%d programs of seeds %d to %d; PyTorch's own results reach %.2f of their bounds"
          % (written, arguments.seed, seed - 1, worst))
    for reason, count in unfit.most_common():
        print("%6d left out: %s" % (count, reason))


if __name__ == "__main__":
    sys.exit(main())
