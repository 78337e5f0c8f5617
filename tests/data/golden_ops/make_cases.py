#!/usr/bin/env python3
"""Makes the small set of golden operation cases in this folder.

  python3 make_cases.py          needs the standard library only

Every expected value comes from plain loops over Python floats. Derivatives come from `Var`, a scalar
whose operations remember their partial derivatives as expressions, so that first and second
derivatives follow from the same loops and from nothing that the library under test contains.
tests/golden/golden_cases.h describes the files.
"""
import json
import math
import os
import random
import struct


class Var:
    """A number and how it came about: parents, each with d self / d parent as a Var or float."""
    count = 0

    def __init__(self, value, parents=()):
        self.value, self.parents, self.index = float(value), parents, Var.count
        Var.count += 1

    def __add__(self, other):
        other = lift(other)
        return Var(self.value + other.value, ((self, 1.0), (other, 1.0)))

    def __mul__(self, other):
        other = lift(other)
        return Var(self.value * other.value, ((self, other), (other, self)))

    def __neg__(self):
        return self * -1.0

    def __sub__(self, other):
        return self + (-lift(other))

    def __rsub__(self, other):
        return lift(other) - self

    def __truediv__(self, other):
        return self * power(lift(other), -1.0)

    def __rtruediv__(self, other):
        return lift(other) / self

    __radd__, __rmul__ = __add__, __mul__


def lift(x):
    return x if isinstance(x, Var) else Var(x)


def power(x, exponent):
    slope = (lambda: power(x, exponent - 1.0) * exponent)
    return Var(x.value ** exponent, ((x, slope),))


def exp(x):
    out = Var(math.exp(x.value))
    out.parents = ((x, lambda: out * 1.0),)
    return out


def log(x):
    return Var(math.log(x.value), ((x, lambda: power(x, -1.0)),))


def tanh(x):
    out = Var(math.tanh(x.value))
    out.parents = ((x, lambda: 1.0 - out * out),)
    return out


def sigmoid(x):
    return 1.0 / (1.0 + exp(-x))


def total(terms):
    out = lift(0.0)
    for term in terms:
        out = out + term
    return out


def gradient(roots, weights, inputs):
    """Derivatives of sum(root * weight), as Vars."""
    found, nodes, stack = {}, {}, list(roots)
    while stack:
        node = stack.pop()
        if node.index not in nodes:
            nodes[node.index] = node
            stack.extend(parent for parent, _ in node.parents)
    for root, weight in zip(roots, weights):
        found[root.index] = found[root.index] + weight if root.index in found else lift(weight)
    for index in sorted(nodes, reverse=True):
        if index in found:
            for parent, slope in nodes[index].parents:
                slope = slope() if callable(slope) else slope
                part = found[index] * slope
                found[parent.index] = found[parent.index] + part if parent.index in found else part
    return [found.get(x.index, lift(0.0)) for x in inputs]


# ------------------------------------------------------------------------------------------- arrays
class Array:
    """Row-major values of a shape."""

    def __init__(self, shape, values):
        self.shape, self.values = list(shape), list(values)
        assert len(self.values) == math.prod(self.shape), (shape, len(self.values))

    def map(self, f):
        return Array(self.shape, [f(v) for v in self.values])


def indices(shape):
    if not shape:
        yield ()
        return
    for first in range(shape[0]):
        for rest in indices(shape[1:]):
            yield (first,) + rest


def at(array, index):
    position = 0
    for size, i in zip(array.shape, index):
        position = position * size + (0 if size == 1 else i)
    return array.values[position]


def build(shape, f):
    return Array(shape, [f(i) for i in indices(shape)])


def broadcast(a, b, f):
    n = max(len(a.shape), len(b.shape))
    sa, sb = [1] * (n - len(a.shape)) + a.shape, [1] * (n - len(b.shape)) + b.shape
    wide_a, wide_b = Array(sa, a.values), Array(sb, b.values)
    shape = [y if x == 1 else x for x, y in zip(sa, sb)]
    return build(shape, lambda i: f(at(wide_a, i), at(wide_b, i)))


def rows(x, f):
    """f on each row of the last axis; returns the rows it gives, put together."""
    width = x.shape[-1]
    out = []
    for r in range(len(x.values) // width):
        out += f(x.values[r * width:(r + 1) * width])
    return Array(x.shape, out)


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def bfloat16_bits(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if math.isnan(value):
        return (bits >> 16) | 0x40
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) & 0xffff


PACK = {"float32": ("F32", "f"), "float64": ("F64", "d"), "int64": ("I64", "q"), "bool": ("BOOL", "?"),
        "bfloat16": ("BF16", "H")}


class Cases:
    def __init__(self, op):
        self.op, self.tensors, self.meta = op, {}, []
        self.random = random.Random(op)

    def normal(self, *shape, shift=0.0):
        return build(list(shape), lambda _: self.random.gauss(shift, 1.0))

    def uniform(self, *shape, low=0.4, high=2.4):
        return build(list(shape), lambda _: self.random.uniform(low, high))

    def integers(self, high, *shape):
        return build(list(shape), lambda _: self.random.randrange(high))

    def add(self, f, inputs, attrs=None, second=False, layout=None, dtypes=("float32", "float64"), diff=None):
        """f(**arrays) -> Array or {name: Array}; inputs whose values are floats have derivatives."""
        for dtype in dtypes:
            case = "case_%03d" % len(self.meta)
            rounding = float32 if dtype == "float32" else float
            is_float = {k: all(isinstance(v, float) for v in a.values) and k != "ids" for k, a in inputs.items()}
            stored = {k: a.map(rounding) if is_float[k] else a for k, a in inputs.items()}
            wanted = [k for k in inputs if is_float[k]] if diff is None else diff
            leaves = {k: a.map(Var) if is_float[k] else a for k, a in stored.items()}
            result = f(**leaves)
            result = result if isinstance(result, dict) else {"": result}
            put = lambda key, array, kind: self.tensors.__setitem__(f"{case}.{key}", (kind, array))
            for k, a in stored.items():
                kind = dtype if is_float[k] else "bool" if a.values and isinstance(a.values[0], bool) else "int64"
                put("input." + k, a, kind)
            roots, ups = [], []
            for name, array in result.items():
                dot = "." + name if name else ""
                real = not array.values or isinstance(array.values[0], Var)
                put("output" + dot, array.map(lambda v: v.value) if real else array, dtype if real else "int64")
                if real and wanted:
                    up = build(array.shape, lambda _: rounding(self.random.gauss(0, 1)))
                    put("grad_output" + dot, up, dtype)
                    up_vars = up.map(Var)
                    roots += array.values
                    ups.append((dot, up_vars))
            weights = [v for _, up in ups for v in up.values]
            flat = [v for k in wanted for v in leaves[k].values]
            grads = gradient(roots, weights, flat) if wanted else []
            offset = 0
            probes = []
            for k in wanted:
                n = len(leaves[k].values)
                put("grad." + k, Array(leaves[k].shape, [g.value for g in grads[offset:offset + n]]), dtype)
                offset += n
                if second:
                    probe = build(leaves[k].shape, lambda _: rounding(self.random.gauss(0, 1)))
                    put("probe." + k, probe, dtype)
                    probes += probe.values
            if second:
                two = gradient(grads, probes, flat + weights)
                names = [("grad2." + k, leaves[k].shape) for k in wanted]
                names += [("grad2.grad_output" + dot, up.shape) for dot, up in ups]
                offset = 0
                for name, shape in names:
                    n = math.prod(shape)
                    put(name, Array(shape, [g.value for g in two[offset:offset + n]]), dtype)
                    offset += n
            entry = {"case": case, "dtype": dtype, "inputs": list(inputs), "differentiate": wanted, "attrs": attrs or {}}
            if layout:
                entry["layout"] = layout
            if second:
                entry["second_order"] = True
            self.meta.append(entry)

    def save(self):
        header, blob = {}, b""
        # Wide elements first, so that each tensor is aligned.
        for key, (kind, array) in sorted(self.tensors.items(), key=lambda kv: (-struct.calcsize(PACK[kv[1][0]][1]), kv[0])):
            name, code = PACK[kind]
            values = array.values if kind in ("int64", "bool", "bfloat16") else [float(v) for v in array.values]
            data = struct.pack("<%d%s" % (len(values), code), *values)
            header[key] = {"dtype": name, "shape": array.shape, "data_offsets": [len(blob), len(blob) + len(data)]}
            blob += data
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        folder = os.path.dirname(os.path.abspath(__file__))
        with open(os.path.join(folder, self.op + ".safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + blob)
        with open(os.path.join(folder, self.op + ".json"), "w") as file:
            file.write('{"op": ' + json.dumps(self.op) + ', "cases": [\n' + ",\n".join(map(json.dumps, self.meta)) + "\n]}\n")


# --------------------------------------------------------------------------------------- operations
def arithmetic():
    for op, f in (("add", lambda a, b: a + b), ("mul", lambda a, b: a * b), ("div", lambda a, b: a / b)):
        c = Cases(op)
        g = lambda a, b, f=f: broadcast(a, b, f)
        c.add(g, {"a": c.normal(2, 3), "b": c.uniform(3)}, second=op != "add")
        c.add(g, {"a": c.normal(2, 1, 2), "b": c.uniform(3, 1)}, dtypes=("float32",))
        c.add(g, {"a": c.normal(0, 3), "b": c.uniform(1, 3)}, dtypes=("float32",))
        c.add(g, {"a": c.normal(3, 2), "b": c.uniform(3, 2)}, dtypes=("float32",),
              layout={"a": {"kind": "permuted", "perm": [1, 0]}, "b": {"kind": "strided", "axis": 1, "step": 2}})
        c.save()
    for op, f in (("exp", exp), ("tanh", tanh), ("silu", lambda x: x * sigmoid(x))):
        c = Cases(op)
        c.add(lambda x: x.map(f), {"x": c.normal(2, 3)}, second=True)
        c.add(lambda x: x.map(f), {"x": Array([3, 2], [0.5, -1.5] * 3)}, dtypes=("float32",),
              layout={"x": {"kind": "expanded", "axis": 0}})
        c.add(lambda x: x.map(f), {"x": c.normal()}, dtypes=("float32",))
        c.save()


def shapes():
    c = Cases("slice")
    c.add(lambda x: build([1, 2], lambda i: at(x, (i[0] + 1, 2 * i[1]))), {"x": c.normal(3, 4)},
          {"index": [[1, 2, 1], [-4, 100, 2]]})
    c.save()
    c = Cases("cat")
    c.add(lambda x0, x1: build([2, 3], lambda i: at(x0, i) if i[1] < 1 else at(x1, (i[0], i[1] - 1))),
          {"x0": Array([2, 1], [0.5, 1.5]), "x1": c.normal(2, 2)}, {"dim": 1})
    c.save()
    c = Cases("sum")
    c.add(lambda x: Array([], [total(x.values)]), {"x": c.normal(2, 3)}, {"dim": None, "keepdim": False})
    c.add(lambda x: build([2, 1], lambda i: total(at(x, (i[0], j)) for j in range(3))), {"x": c.normal(2, 3)},
          {"dim": [-1], "keepdim": True})
    c.save()
    c = Cases("topk")

    def topk(x):
        order = sorted(range(4), key=lambda j: -x.values[j].value)[:2]
        return {"values": Array([2], [x.values[j] for j in order]), "indices": Array([2], order)}
    c.add(topk, {"x": Array([4], [0.25, 1.5, -2.0, 0.75])}, {"k": 2, "dim": -1, "largest": True, "sorted": True})
    c.save()


def products():
    def matmul(a, b):
        return build([a.shape[0], b.shape[1]],
                     lambda i: total(at(a, (i[0], k)) * at(b, (k, i[1])) for k in range(a.shape[1])))
    c = Cases("matmul")
    c.add(matmul, {"a": c.normal(2, 3), "b": c.normal(3, 2)}, second=True)
    c.add(matmul, {"a": c.normal(2, 0), "b": c.normal(0, 2)}, dtypes=("float32",))
    c.add(matmul, {"a": c.normal(3, 2), "b": c.normal(2, 4)}, dtypes=("float32",),
          layout={"a": {"kind": "permuted", "perm": [1, 0]}})
    c.save()
    c = Cases("embedding")
    c.add(lambda weight, ids: build([4, 2], lambda i: at(weight, (ids.values[i[0]], i[1]))),
          {"weight": c.normal(3, 2), "ids": Array([4], [2, 0, 2, 1])})
    c.save()


def layers():
    def softmax_row(row):
        top = max(v.value for v in row)
        e = [exp(v - top) for v in row]
        return [v / total(e) for v in e]
    c = Cases("softmax")
    c.add(lambda x: rows(x, softmax_row), {"x": c.normal(2, 4)}, {"dim": -1}, second=True)
    c.save()

    def rms_norm(x, weight):
        def row(values):
            r = power(total(v * v for v in values) / float(len(values)) + 1e-5, -0.5)
            return [v * r * w for v, w in zip(values, weight.values)]
        return rows(x, row)
    c = Cases("rms_norm")
    c.add(rms_norm, {"x": c.normal(2, 4), "weight": c.normal(4, shift=1.0)}, {"eps": 1e-5}, second=True)
    c.save()

    def cross_entropy(logits, labels):
        losses = []
        for r, label in enumerate(labels.values):
            row = logits.values[3 * r:3 * r + 3]
            if label != -100:
                losses.append(log(total(exp(v) for v in row)) - row[label])
        return Array([], [total(losses) / float(len(losses))])
    c = Cases("cross_entropy")
    c.add(cross_entropy, {"logits": c.normal(4, 3), "labels": Array([4], [0, 2, -100, 1])},
          {"ignore_index": -100, "reduction": "mean"}, second=True)
    c.save()

    def attention(q, k, v):
        heads, s, d = q.shape[1:]
        group = heads // k.shape[1]
        out = []
        for h in range(heads):
            for i in range(s):
                scores = [total(at(q, (0, h, i, e)) * at(k, (0, h // group, j, e)) for e in range(d)) * d ** -0.5
                          for j in range(i + 1)]
                p = softmax_row(scores)
                out += [total(p[j] * at(v, (0, h // group, j, e)) for j in range(i + 1)) for e in range(d)]
        return Array(q.shape, out)
    c = Cases("scaled_dot_product_attention")
    c.add(attention, {"q": c.normal(1, 2, 3, 2), "k": c.normal(1, 1, 3, 2), "v": c.normal(1, 1, 3, 2)},
          {"layout": "BHSD", "causal": True, "window_left": None, "scale": "1/sqrt(D)"}, second=True)
    c.save()

    def rope(x):
        def one(i):
            angle = i[2] * 100.0 ** -(i[3] % 2 / 2)
            other = at(x, i[:3] + ((i[3] + 2) % 4,))
            return at(x, i) * math.cos(angle) + other * ((1.0 if i[3] >= 2 else -1.0) * math.sin(angle))
        return build(x.shape, one)
    c = Cases("rope")
    c.add(rope, {"x": c.normal(1, 1, 3, 4)},
          {"layout": "BHSD", "base": 100.0, "rotary_dim": 4, "position_offset": 0, "convention": "half rotation"})
    c.save()


def updates():
    def adamw(p, **gs):
        lr, b1, b2, eps, wd = 1e-2, 0.9, 0.95, 1e-8, 0.1
        m, v, out = [lift(0.0)] * 3, [lift(0.0)] * 3, {}
        p = p.values
        for t, g in enumerate(gs.values(), 1):
            g = g.values
            m = [b1 * a + (1 - b1) * b for a, b in zip(m, g)]
            v = [b2 * a + (1 - b2) * b * b for a, b in zip(v, g)]
            p = [a * (1 - lr * wd) - lr * (b / (1 - b1 ** t)) / (power(c / (1 - b2 ** t), 0.5) + eps)
                 for a, b, c in zip(p, m, v)]
            out["p_after_%d" % t] = Array([3], p)
        return {**out, "exp_avg": Array([3], m), "exp_avg_sq": Array([3], v)}
    c = Cases("adamw")
    c.add(adamw, {"p": c.normal(3), "g1": c.normal(3), "g2": c.normal(3)},
          {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}, diff=[])
    c.save()

    def clip_norm(g0, g1):
        norm = power(total(v * v for v in g0.values + g1.values), 0.5)
        k = 1.0 / (norm + 1e-6) if norm.value > 1.0 else lift(1.0)
        return {"total_norm": Array([], [norm]), "clipped.g0": g0.map(lambda v: v * k), "clipped.g1": g1.map(lambda v: v * k)}
    c = Cases("clip_norm")
    c.add(clip_norm, {"g0": c.normal(2, 2), "g1": c.normal(3)}, {"max_norm": 1.0}, diff=[])
    c.save()

    c = Cases("cast_bf16")
    values = [0.0, -0.0, 1.0, 1.00390625, 1.01171875, -1.00390625, 3.3895314e38, float("inf"), 1e-40, float("nan"), 0.1]
    x = Array([11], [float32(v) for v in values])
    c.tensors = {"case_000.input.x": ("float32", x), "case_000.output": ("bfloat16", x.map(bfloat16_bits))}
    c.meta = [{"case": "case_000", "dtype": "float32", "inputs": ["x"], "differentiate": [], "attrs": {"to": "bfloat16"}}]
    c.save()


if __name__ == "__main__":
    arithmetic()
    shapes()
    products()
    layers()
    updates()
