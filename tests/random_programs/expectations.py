"""What PyTorch makes of a program, and how far another library may be from it.

The program is run with its own dtypes (flags, dtypes, refusals), in float64 (values), and `RUNS` times
in float64 with each rounded result moved by up to two epsilons of its dtype. A tensor may be from its
float64 values by

    8 * the largest distance of its elements in the disturbed runs
    + 4 * epsilon * the largest magnitude of the program so far

where the first term is what rounding of this size does to this program, measured, and the second
stands for what an op does inside (sums in another order, gradients that cancel). epsilon is that of
the coarsest dtype of the program. PyTorch's own result must keep the bound.
"""

from runner import EPSILON, FLOATING, Disturbed, Native, Refusal, Runner, Widened, largest

RUNS = 3
DIGITS = {"f64": 12, "f32": 9, "bf16": 6}


class Unfit(Exception):
    """A program that says nothing: its parts that are not continuous hang on rounding."""


class Trace:
    """One run: the states after each statement and, at its end, what was refused."""

    def __init__(self, program, arithmetic, dtypes=None, count=None):
        runner = Runner(arithmetic, dtypes)
        for leaf in program.leaves:
            runner.add_leaf(leaf)
        self.states, self.refusal = [runner.state()], None
        for statement in program.statements[:count]:
            self.refusal = runner.execute(statement)
            if self.refusal is not None:
                break
            self.states.append(runner.state())
        self.dtypes = runner.recorded


def expect(program):
    """(lines for each statement, largest distance of PyTorch's own results in bounds). Unfit where
    the runs differ in more than rounding. Statements behind one that is refused are dropped."""
    native = Trace(program, Native())
    if native.refusal and native.refusal.kind == "unsupported":
        raise Unfit(native.refusal.message)
    count = len(native.states) - 1
    program.statements = program.statements[:count + (native.refusal is not None)]
    exact = Trace(program, Widened(), native.dtypes, count)
    disturbed = [Trace(program, Disturbed(k), native.dtypes, count) for k in range(RUNS)]
    if any(t.refusal is not None for t in [exact] + disturbed):
        raise Unfit("refused in float64 only")
    bounds = Bounds(program)
    unknown = of_gradients(program)
    lines = []
    for i in range(1, count + 1):
        added = []
        for key, now in native.states[i].items():
            values = exact.states[i][key]
            others = [d.states[i][key] for d in disturbed]
            if now == native.states[i - 1].get(key, "absent") or (now is None and key.endswith(".grad")
                                                                 and key not in native.states[i - 1]):
                bounds.check(now, values, others)
                continue
            added.append(bounds.line(key, now, values, others, key in unknown or key.endswith(".grad")))
        lines.append(added)
    if native.refusal:
        lines.append(["refused " + native.refusal.kind])
    return lines, bounds.worst


def of_gradients(program):
    """Tensors that were computed from gradients. Whether they require a gradient themselves hangs on the
    formulas of backward where the derivative is a constant, so these flags are not compared; that a
    graph is there is seen where a program goes through it."""
    found = set()
    for s in program.statements:
        if s.op in ("grad", "get_grad") or found.intersection(s.inputs):
            found.update(s.results)
            if s.op.endswith("_"):
                found.add(s.inputs[0])
    return found


class Bounds:
    def __init__(self, program):
        names = {leaf.dtype for leaf in program.leaves}
        names |= {s.attributes.get("dtype") for s in program.statements}
        self.epsilon = max(EPSILON[n] for n in names if n in FLOATING)
        self.scale = 1.0
        self.worst = 0.0

    def check(self, native, exact, disturbed):
        """The bound, after a look at whether the runs agree."""
        for other in [exact] + disturbed:
            if (native is None) != (other is None):
                raise Unfit("a gradient is there in one run only")
            if native is not None and native.shape != other.shape:
                raise Unfit("shapes differ")
            if native is not None and native.dtype not in FLOATING and native.values != other.values:
                raise Unfit("rounding decides about integers")
        if native is None or native.dtype not in FLOATING or not native.values:
            return 0.0
        if any(abs(v) > 1e4 or v != v for v in native.values + exact.values):
            raise Unfit("large values")
        self.scale = max(self.scale, largest(exact.values))
        spread = max(abs(a - b) for d in disturbed for a, b in zip(d.values, exact.values))
        bound = 8 * spread + 4 * self.epsilon * self.scale
        if bound > .3 * max(1.0, largest(exact.values)):
            raise Unfit("rounding decides")
        distance = max(abs(a - b) for a, b in zip(native.values, exact.values))
        self.worst = max(self.worst, distance / bound)
        if distance > bound:
            raise Unfit("PyTorch itself is outside the bound")
        return bound

    def line(self, key, native, exact, disturbed, unknown):
        bound = self.check(native, exact, disturbed)
        if native is None:
            return key + " none"
        flags = ("r" if native.requires_grad else "") + ("l" if native.is_leaf else "")
        shape = "[" + ",".join(map(str, native.shape)) + "]"
        words = [key, native.dtype, shape, "?" if unknown else flags or "-"]
        if native.dtype in FLOATING:
            digits = DIGITS[native.dtype]
            words.append("%.2g" % (1.1 * bound + 10.0 ** (1 - digits) * largest(exact.values)))
            words += ["%.*g" % (digits, v) for v in exact.values]
        else:
            words += ["0"] + ["%d" % v for v in exact.values]
        return " ".join(words)
