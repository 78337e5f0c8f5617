"""Random programs as objects and as text.

A program is a list of leaves and a list of statements, one line each:

    program 17
    leaf a f32 [2,3] grad values 0.5 -1 2 0.25 1 -2
    leaf b f32 [3] strides [2] offset 1 values 1 2 3
    t0 = mul a b
    t1 t2 = split t0 axis=0 sizes=[1,1]
    backward t1 - retain=1

A statement has results, a name, inputs (`-` for one that is left out) and attributes. Lines that
begin with two blanks say what PyTorch makes of the statement above; README.md has the whole language.
"""

import dataclasses
import re


@dataclasses.dataclass
class Leaf:
    name: str
    dtype: str
    shape: list
    values: list
    grad: bool = False
    strides: list = None  # of memory larger than the leaf; None: dense
    offset: int = 0

    def text(self):
        layout = "" if self.strides is None else " strides %s offset %d" % (_text(self.strides), self.offset)
        values = "".join(" " + number(v) for v in self.values)
        return "leaf %s %s %s%s%s values%s" % (
            self.name, self.dtype, _text(self.shape), layout, " grad" if self.grad else "", values)


@dataclasses.dataclass
class Statement:
    op: str
    inputs: list
    attributes: dict = dataclasses.field(default_factory=dict)
    results: list = dataclasses.field(default_factory=list)

    def text(self):
        words = self.results + ["="] if self.results else []
        words = words + [self.op] + self.inputs
        return " ".join(words + ["%s=%s" % (k, _text(v)) for k, v in self.attributes.items()])


@dataclasses.dataclass
class Program:
    seed: int
    leaves: list = dataclasses.field(default_factory=list)
    statements: list = dataclasses.field(default_factory=list)

    def text(self, expectations=None):
        """The program; with expectations[i], the lines that follow statement i."""
        lines = ["program %d" % self.seed] + [leaf.text() for leaf in self.leaves]
        for i, statement in enumerate(self.statements):
            lines.append(statement.text())
            lines += ["  " + line for line in (expectations[i] if expectations else [])]
        return "\n".join(lines) + "\n"


def number(v):
    """The shortest text of a number."""
    if v == int(v) and abs(v) < 1e15:
        return "%d" % v
    return repr(v)


def _text(value):
    if isinstance(value, bool):
        return "%d" % value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ",".join(str(v) for v in value) + "]"
    return str(value)


def _value(text):
    if text.startswith("["):
        return [int(v) for v in text[1:-1].split(",") if v]
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def parse(lines):
    """The programs of a file, without what is expected of them."""
    programs = []
    for line in lines:
        words = line.split()
        if not words or line.startswith(("  ", "#")):
            continue
        if words[0] == "program":
            programs.append(Program(int(words[1])))
        elif words[0] == "leaf":
            programs[-1].leaves.append(_parse_leaf(words))
        else:
            programs[-1].statements.append(_parse_statement(words))
    return programs


def _parse_leaf(words):
    at = words.index("values")
    leaf = Leaf(words[1], words[2], _value(words[3]), [float(v) for v in words[at + 1:]], "grad" in words[:at])
    if "strides" in words[:at]:
        leaf.strides = _value(words[words.index("strides") + 1])
        leaf.offset = int(words[words.index("offset") + 1])
    return leaf


def _parse_statement(words):
    results = []
    if "=" in words:
        results, words = words[:words.index("=")], words[words.index("=") + 1:]
    attributes = dict(w.split("=", 1) for w in words[1:] if "=" in w)
    inputs = [w for w in words[1:] if "=" not in w]
    return Statement(words[0], inputs, {k: _value(v) for k, v in attributes.items()}, results)
