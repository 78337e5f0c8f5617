"""The ops that programs use: what each is in PyTorch, and how a generator comes to use it.

`run` takes the inputs (None where one is left out) and the attributes of a statement. `make` asks a
Generator for inputs and attributes that fit; it returns (inputs, attributes, number of results), or
None if it has nothing to offer. `exact`: the op rounds nothing.

Where PyTorch 1.13 has a fault or a freedom that is no part of the contract, the op is put together
from others:
- the fused layer norm has a wrong third derivative, and loses the bias in a second one;
- embedding has no second derivative for no ids: they are not made;
- masked_select has a wrong gradient for strided tensors;
- scatter has no gradient for a source that is larger than the index;
- indexing with scalars, and einsum, may give a view or a copy.
What the library has as one op, and PyTorch 1.13 has not, is put together as well, and then `fused`.
"""

import dataclasses
import itertools
import math
import typing

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Operation:
    name: str
    run: typing.Callable
    make: typing.Callable
    exact: bool = False
    in_place: bool = False
    saves_result: bool = False  # one in place, for its derivative
    weight: float = 1.0


TABLE = {}


class Fused(torch.autograd.Function):
    """A function of tensors as one op: it saves its inputs, and nothing that is computed on the way."""

    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.function = function
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        recorded = torch.is_grad_enabled()
        with torch.enable_grad():
            inputs = [x if x is None or not wanted else x.view_as(x) if recorded else x.detach().requires_grad_()
                      for x, wanted in zip(ctx.saved_tensors, ctx.needs_input_grad[1:])]
            wanted = [x for x in inputs if x is not None and x.requires_grad]
            found = iter(torch.autograd.grad(ctx.function(*inputs), wanted, gradient, create_graph=recorded,
                                             allow_unused=True))
        return (None,) + tuple(next(found) if x is not None and x.requires_grad else None for x in inputs)


def fused(function):
    def run(*inputs, **attributes):
        return Fused.apply(lambda *x: function(*x, **attributes), *inputs)
    return run


def add(names, run, make, **options):
    """Adds one op, or several that differ in name only: `run` is then a function of the name."""
    names = names.split()
    for name in names:
        function = run(name) if len(names) > 1 else run
        TABLE[name] = Operation(name, function, make, **options)


def library(name):
    return getattr(torch, name)


def all_axes(x, axes):
    if x.dim() == 0 and any(a not in (0, -1) for a in axes):
        raise IndexError("a scalar has no such axis")
    return axes if axes and x.dim() else list(range(x.dim()))


# -- element-wise -------------------------------------------------------------------------------
def unary(domain="any"):
    return lambda g: g.unary(domain)


def binary(domain="any"):
    def make(g):
        a = g.pick(most=12)
        b = g.partner(a)
        if domain == "pow":
            a = g.positive(a)
        if domain == "div":
            b = g.away_from_zero(b)
        if a is None or b is None:
            return None
        return ([b, a] if domain == "any" and g.chance(.5) else [a, b]), {}, 1
    return make


def with_number(domain="any", numbers=(0.5, -1.5, 2.0, 3.0, -1.0, 0.25, 1.0)):
    def make(g):
        x, value = g.pick(), g.random.choice(numbers)
        if domain == "positive" or (domain == "pow" and value not in (2.0, 3.0, 0.0, 1.0)):
            x = g.positive(x)
        return x and ([x], {"value": value}, 1)
    return make


add("neg abs sign floor ceil round relu", library, unary(), exact=True)
add("exp square sin cos tanh sigmoid erf", library, unary())
add("log sqrt rsqrt", library, unary("positive"))
add("reciprocal", torch.reciprocal, unary("away_from_zero"))
add("squared_relu", lambda x: torch.relu(x) ** 2, unary())
add("gelu", F.gelu, unary())
add("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), unary())
add("silu", F.silu, unary())
add("softplus", lambda x: torch.logaddexp(x, torch.zeros_like(x)), unary())
add("add sub mul maximum minimum", library, binary(), weight=2.5)
add("div", torch.div, binary("div"), weight=2)
add("pow", torch.pow, binary("pow"))
add("add_number sub_number mul_number div_number",
    lambda name: lambda x, value: getattr(torch, name[:3])(x, value), with_number(), weight=1.5)
add("pow_number", lambda x, value: torch.pow(x, value),
    with_number("pow", (2.0, 3.0, 0.5, -1.0, 0.0, 1.0, 1.5, -0.5)))
add("number_sub", lambda x, value: value - x, with_number())
add("number_div", lambda x, value: value / x, with_number("positive"))
add("number_pow", lambda x, value: torch.pow(value, x), with_number("any", (1.3, 0.7, 2.0)))


def make_clamp(g):
    low = g.random.choice([-1.0, -.5, 0.0, .25])
    return [g.pick()], {"low": low, "high": low + g.random.choice([.25, 1.0, 2.0])}, 1


add("clamp", lambda x, low, high: torch.clamp(x, low, high), make_clamp, exact=True)


def make_comparison(g):
    a = g.pick(most=12)
    b = g.partner(a)
    return b and ([a, b], {}, 1)


add("eq ne lt le gt ge", library, make_comparison, exact=True, weight=.4)
add("lt_number ge_number", lambda name: lambda x, value: getattr(torch, name[:2])(x, value),
    with_number(), exact=True, weight=.4)
add("logical_and logical_or logical_xor", library,
    lambda g: g.with_shape(lambda s: ([g.mask(s), g.mask(s)], {}, 1)), exact=True, weight=.2)
add("logical_not isfinite isnan", library, unary(), exact=True, weight=.2)


def make_where(g):
    a = g.pick(most=12)
    b = g.partner(a)
    shape = b and g.broadcast(a, b)
    return None if shape is None else ([g.mask(shape), a, b], {}, 1)


def make_masked(g, **attributes):
    x = g.pick()
    return [x, g.mask(g.shape_of(x))], attributes, 1


add("where", torch.where, make_where, exact=True, weight=2)
add("masked_fill", lambda x, mask, value: x.masked_fill(mask, value),
    lambda g: make_masked(g, value=g.random.choice([0.0, -1.0, 7.5])), exact=True, weight=1.5)
add("masked_select", lambda x, mask: x[mask.expand(x.shape)], make_masked, exact=True)


# -- reductions -----------------------------------------------------------------------------------
def reduction(name):
    def run(x, axes, keepdim):
        axes = all_axes(x, axes)
        if x.dim() == 0:
            return getattr(x.reshape(1), name)(0)
        return getattr(x, name)(axes, keepdim=bool(keepdim))
    return run


def one_by_one(name):
    """A reduction that PyTorch has for one axis only."""
    def run(x, axes, keepdim):
        x, axes = x if name == "prod" else x != 0, all_axes(x, axes)
        if x.dim() == 0:
            return x.clone()
        for axis in sorted((a % x.dim() for a in axes), reverse=True):
            x = getattr(x, name)(axis, keepdim=bool(keepdim))
        return x
    return run


def moments(name):
    def run(x, axes, correction, keepdim):
        axes = all_axes(x, axes) if x.dim() else [0]
        x = x.reshape(1) if x.dim() == 0 else x
        return getattr(torch, name)(x, axes, correction=int(correction), keepdim=bool(keepdim))
    return run


def make_reduction(g):
    x = g.pick()
    return [x], {"axes": g.axes(x), "keepdim": int(g.chance(.4))}, 1


def make_moments(g):
    x = g.pick(lambda t: t.dim() > 0 and t.numel() > 1)
    if x is None:
        return None
    axes = g.axes(x)
    t = g.tensor(x).detach().double()
    count = math.prod([t.shape[a] for a in axes] or t.shape)
    # the deviation of equal elements has no derivative
    if count < 2 or float(torch.var(t, all_axes(t, axes), correction=0).min()) < 1e-2:
        return None
    return [x], {"axes": axes, "correction": g.random.choice([0, 1, 1]), "keepdim": int(g.chance(.4))}, 1


def make_axis(results=1, condition=lambda t: t.dim() > 0, **attributes):
    def make(g):
        x = g.pick(condition)
        return x and ([x], {"axis": g.axis(x), **{k: f(g) for k, f in attributes.items()}}, results)
    return make


def not_empty(t):
    return t.dim() > 0 and t.numel() > 0


def distinct(t):
    """PyTorch does not say which of equal elements max, sort and their like choose."""
    return not_empty(t) and t.detach().double().unique().numel() == t.numel()


def keepdim(g):
    return int(g.chance(.4))


add("sum mean logsumexp", reduction, make_reduction, weight=2)
add("amax amin", reduction, make_reduction, exact=True)
add("prod", one_by_one("prod"), make_reduction)
add("any all", one_by_one, make_reduction, exact=True, weight=.4)
add("var std", moments, make_moments)
add("max_all min_all", lambda name: lambda x: getattr(x, name[:3])(),
    lambda g: g.one(distinct), exact=True, weight=.5)
add("max_axis min_axis",
    lambda name: lambda x, axis, keepdim: getattr(x, name[:3])(axis, keepdim=bool(keepdim)),
    make_axis(2, distinct, keepdim=keepdim), exact=True)
add("argmax argmin", lambda name: lambda x, axis, keepdim: getattr(x, name)(axis, keepdim=bool(keepdim)),
    make_axis(1, distinct, keepdim=keepdim), exact=True, weight=.3)
add("cumsum", lambda x, axis: x.cumsum(axis), make_axis(), weight=1.5)


def make_sum_to(g):
    x = g.pick()
    shape = [1 if g.chance(.4) else n for n in g.shape_of(x)]
    shape = shape[g.random.choice([0, 0, 1, len(shape)]):]
    # where nothing is summed the library gives x itself, PyTorch a view
    return None if shape == g.shape_of(x) else ([x], {"shape": shape}, 1)


add("sum_to", lambda x, shape: x.sum_to_size(shape), make_sum_to)


# -- matrix products ----------------------------------------------------------------------------
def make_matmul(g):
    a = g.pick(lambda t: t.dim() >= 1)
    if a is None:
        return None
    shape, dtype = g.shape_of(a), g.dtype_of(a)
    form = g.random.choice(["vector", "matrix", "batch", "transposed", "left"])
    if form == "vector":
        return [a, g.shaped([shape[-1]], dtype)], {}, 1
    if form == "matrix":
        return [a, g.shaped([shape[-1], g.size()], dtype)], {}, 1
    if form == "batch":
        batch = [1 if g.chance(.4) else n for n in shape[:-2]]
        return [a, g.shaped(batch + [shape[-1], g.size()], dtype)], {}, 1
    if form == "transposed":
        b = g.emit("t", [a])
        return b and ([a, b[0]], {}, 1)
    inner = shape[-2] if len(shape) > 1 else shape[0]
    left = [g.size(), inner] if g.chance(.7) else [inner]
    return [g.shaped(left, dtype), a], {}, 1


def make_bmm(g):
    a = g.pick(lambda t: t.dim() == 3)
    if a is None:
        return None
    batch, _, inner = g.shape_of(a)
    return [a, g.shaped([batch, inner, g.size()], g.dtype_of(a))], {}, 1


def make_vectors(same):
    def make(g):
        a = g.pick(lambda t: t.dim() == 1)
        if a is None:
            return None
        return [a, g.shaped(g.shape_of(a) if same else [g.size()], g.dtype_of(a))], {}, 1
    return make


def make_linear(g):
    x = g.pick(lambda t: t.dim() >= 1)
    if x is None:
        return None
    n, dtype = g.size(), g.dtype_of(x)
    bias = g.shaped([n], dtype) if g.chance(.6) else "-"
    return [x, g.shaped([n, g.shape_of(x)[-1]], dtype), bias], {}, 1


EQUATIONS = """ij,jk->ik ij,jk bij,bjk->bik ii->i ii ij->ji ij-> i,j->ij bij,bkj->bik ij,ij->i ij,jk,kl->il
    bi,bi->b ij,kj->ik iij->j ij->j i,i ij,j->i ab,cd->adbc ijk->kji ij,ik,il->jkl i,ij,j ab,b,bc->ac aab,b->a""".split()


def make_einsum(g):
    equation, sizes, dtype = g.random.choice(EQUATIONS), {}, g.float_dtype()
    inputs = []
    for letters in equation.split("->")[0].split(","):
        for letter in letters:
            sizes.setdefault(letter, g.size())
        inputs.append(g.shaped([sizes[letter] for letter in letters], dtype))
    return inputs, {"equation": equation}, 1


add("matmul", torch.matmul, make_matmul, weight=7)
add("bmm", torch.bmm, make_bmm)
add("dot", torch.dot, make_vectors(True))
add("outer", torch.outer, make_vectors(False))
def run_linear(x, weight, bias=None):
    # addmm would broadcast other shapes than the documented one
    if bias is not None and bias.shape != weight.shape[:1]:
        raise RuntimeError("bias must have one entry per row of weight")
    return F.linear(x, weight, bias)


add("linear", run_linear, make_linear, weight=4)
add("einsum", lambda *x, equation: torch.einsum(equation, *x).clone(), make_einsum, weight=3)


# -- views, copies and joins ----------------------------------------------------------------------
def make_shape(g):
    x = g.pick()
    numel = g.tensor(x).numel()
    if numel == 0:
        return [x], {"shape": g.random.sample(g.shape_of(x), g.tensor(x).dim())}, 1
    shape = g.factors(numel)
    if shape and g.chance(.4):
        shape[g.random.randrange(len(shape))] = -1
    return [x], {"shape": shape}, 1


def make_permute(g):
    x = g.pick()
    axes = list(range(g.tensor(x).dim()))
    g.random.shuffle(axes)
    return [x], {"axes": [a - len(axes) if g.chance(.3) else a for a in axes]}, 1


def make_transpose(g):
    x = g.pick(lambda t: t.dim() > 0)
    return x and ([x], {"axis0": g.axis(x), "axis1": g.axis(x)}, 1)


def make_expand(g):
    x = g.pick(most=12)
    shape = [g.size() if n == 1 else g.random.choice([-1, n]) for n in g.shape_of(x)]
    if len(shape) < 4 and g.chance(.4):
        shape = [g.size()] + shape
    return [x], {"shape": shape}, 1


def make_slice(g):
    x = g.pick(lambda t: t.dim() > 0)
    if x is None:
        return None
    axis = g.axis(x)
    n, r = g.shape_of(x)[axis], g.random
    stop = r.choice([r.randint(-n - 1, n + 2), n, n])
    return [x], {"axis": axis, "start": r.randint(-n - 1, n), "stop": stop, "step": r.choice([1, 1, 2, 3])}, 1


def run_slice(x, axis, start, stop, step):
    return x[(slice(None),) * (axis % x.dim()) + (slice(start, stop, step),)]


def make_select(g):
    x = g.pick(not_empty)
    if x is None:
        return None
    axis = g.axis(x)
    n = g.shape_of(x)[axis]
    return [x], {"axis": axis, "index": g.random.randrange(-n, n)}, 1


def make_squeeze(g):
    x = g.pick()
    return [x], ({"axis": g.axis(x)} if g.tensor(x).dim() and g.chance(.6) else {}), 1


def make_unsqueeze(g):
    x = g.pick(lambda t: t.dim() < 4)
    return x and ([x], {"axis": g.random.randint(-g.tensor(x).dim() - 1, g.tensor(x).dim())}, 1)


def make_split(g):
    x = g.pick(not_empty)
    if x is None:
        return None
    axis = g.axis(x)
    n = g.shape_of(x)[axis]
    if g.chance(.5):
        size = g.random.randint(1, n)
        return [x], {"size": size, "axis": axis}, -(-n // size)
    cuts = sorted(g.random.randint(0, n) for _ in range(g.random.randint(1, 3)))
    sizes = [b - a for a, b in zip([0] + cuts, cuts + [n])]
    return [x], {"sizes": sizes, "axis": axis}, len(sizes)


def run_split(x, axis, sizes=None, size=None):
    return torch.split(x, size if sizes is None else sizes, axis)


def make_to(g):
    x = g.pick()
    dtypes = [g.float_dtype() for _ in range(3)] + (["f32", "f64", "i64", "i32", "bool"] if g.chance(.3) else [])
    return [x], {"dtype": g.random.choice(dtypes)}, 1


def make_join(stack):
    def make(g):
        x = g.pick(lambda t: t.dim() > 0 or stack, most=12)
        if x is None:
            return None
        shape, dtype = g.shape_of(x), g.dtype_of(x)
        axis = g.random.randint(-len(shape) - 1, len(shape)) if stack else g.axis(x)
        inputs = [x]
        for _ in range(g.random.randint(0, 2)):
            other = list(shape)
            if not stack:
                other[axis] = g.size()
            inputs.append(x if g.chance(.2) else g.shaped(other, dtype))
        g.random.shuffle(inputs)
        return inputs, {"axis": axis}, 1
    return make


def make_pad(g):
    x = g.pick(not_empty, most=6)
    if x is None:
        return None
    pairs = [g.random.randint(0, 1) for _ in range(2 * g.tensor(x).dim())]
    return [x], {"padding": pairs, "value": g.random.choice([0.0, 1.5])}, 1


def run_pad(x, padding, value):
    pairs = [padding[i:i + 2] for i in range(0, len(padding), 2)]
    return F.pad(x, list(itertools.chain(*reversed(pairs))), value=value)


add("view", lambda x, shape: x.view(shape), make_shape, exact=True, weight=2)
add("reshape", lambda x, shape: x.reshape(shape), make_shape, exact=True, weight=2)
add("permute", lambda x, axes: x.permute(axes), make_permute, exact=True, weight=2)
add("transpose", lambda x, axis0, axis1: x.transpose(axis0, axis1), make_transpose, exact=True, weight=2)
add("t", lambda x: x.transpose(-1, -2), lambda g: g.one(lambda t: t.dim() >= 2), exact=True)
add("expand", lambda x, shape: x.expand(shape), make_expand, exact=True, weight=3)
add("slice", run_slice, make_slice, exact=True, weight=3)
add("select", lambda x, axis, index: x.select(axis, index), make_select, exact=True, weight=2)
add("squeeze", lambda x, axis=None: x.squeeze() if axis is None else x.squeeze(axis), make_squeeze, exact=True)
add("unsqueeze", lambda x, axis: x.unsqueeze(axis), make_unsqueeze, exact=True)
add("split", run_split, make_split, exact=True, weight=3)
add("contiguous clone detach", lambda name: lambda x: getattr(x, name)(), unary(), exact=True)
add("to", lambda x, dtype: x.to(dtype), make_to, weight=2)
add("cat", lambda *x, axis: torch.cat(x, axis), make_join(False), exact=True, weight=2.5)
add("stack", lambda *x, axis: torch.stack(x, axis), make_join(True), exact=True, weight=2)
add("pad", run_pad, make_pad, exact=True, weight=1.5)


# -- indices --------------------------------------------------------------------------------------
def fit(source, index):
    if source.dim() != index.dim() or any(s < i for s, i in zip(source.shape, index.shape)):
        raise RuntimeError("the source is smaller than the index")
    return source[tuple(slice(0, n) for n in index.shape)]


def make_gather(source):
    def make(g):
        x = g.pick(not_empty)
        if x is None:
            return None
        shape = g.shape_of(x)
        axis = g.random.randrange(len(shape))
        places = [g.size(1) if i == axis else g.random.randint(1, n) for i, n in enumerate(shape)]
        inputs = [x, g.indices(places, shape[axis])]
        if source:
            inputs.append(g.shaped([n + g.random.choice([0, 0, 1]) for n in places], g.dtype_of(x)))
        return inputs, {"axis": axis}, 1
    return make


def make_scatter(g):
    """PyTorch does not say which of several writes to one place stays: none are made."""
    x = g.pick(not_empty)
    if x is None:
        return None
    shape = g.shape_of(x)
    axis = g.random.randrange(len(shape))
    places = [g.random.randint(1, n) for n in shape]
    lines, values = {}, []
    for position in itertools.product(*map(range, places)):
        line = position[:axis] + position[axis + 1:]
        if line not in lines:
            lines[line] = g.random.sample(range(shape[axis]), places[axis])
        values.append(lines[line][position[axis]])
    index = g.leaf(places, g.index_dtype(), values)
    if g.chance(.3):
        return [x, index], {"axis": axis, "value": 1.25}, 1
    return [x, index, g.shaped([n + g.random.choice([0, 0, 1]) for n in places], g.dtype_of(x))], {"axis": axis}, 1


def make_index_axis(source):
    def make(g):
        x = g.pick(not_empty)
        if x is None:
            return None
        shape = g.shape_of(x)
        axis = g.random.randrange(len(shape))
        n = g.random.randint(1, shape[axis]) if source == "unique" else g.size(1)
        # a scalar index stands for a vector of one
        places = [] if source != "unique" and n == 1 and g.chance(.3) else [n]
        if source == "unique":
            index = g.leaf(places, g.index_dtype(), g.random.sample(range(shape[axis]), n))
        else:
            index = g.indices(places, shape[axis])
        inputs, attributes = [x, index], {"axis": axis - len(shape) if g.chance(.3) else axis}
        if source:
            inputs.append(g.shaped(shape[:axis] + [n] + shape[axis + 1:], g.dtype_of(x)))
        return inputs, attributes, 1
    return make


def make_index(g):
    x = g.pick(not_empty)
    if x is None:
        return None
    shape, places = g.shape_of(x), g.random.choice([[], [1], [2], [3], [2, 2], [1, 2]])
    count = g.random.randint(1, len(shape))
    inputs = [x]
    for i in range(count):
        inputs.append(g.indices([1 if g.chance(.3) else n for n in places], shape[i], negative=True))
    return inputs, {}, 1


def make_index_put(g):
    x = g.pick(not_empty)
    if x is None:
        return None
    shape, places = g.shape_of(x), g.random.choice([[], [1], [2], [3], [2, 2]])
    count = g.random.randint(1, len(shape))
    accumulate = g.chance(.5)
    if accumulate:
        indices = [g.indices(places, n, negative=True) for n in shape[:count]]
    else:
        cells = list(itertools.product(*map(range, shape[:count])))
        if math.prod(places) > len(cells):
            places = [len(cells)]
        chosen = g.random.sample(cells, math.prod(places))
        indices = [g.leaf(places, "i64", [c[i] for c in chosen]) for i in range(count)]
    values = [1 if g.chance(.2) else n for n in places + shape[count:]]
    return [x, g.shaped(values, g.dtype_of(x))] + indices, {"accumulate": int(accumulate)}, 1


def run_index_put(x, values, *indices, accumulate):
    return x.index_put(tuple(i.long() for i in indices), values, bool(accumulate))


def make_roll(g):
    x = g.pick()
    axes = g.random.sample(range(g.tensor(x).dim()), g.random.randint(0, g.tensor(x).dim()))
    return [x], {"shifts": [g.random.randint(-3, 3) for _ in axes] or [g.random.randint(-3, 3)], "axes": axes}, 1


def make_flip(g):
    x = g.pick()
    return [x], {"axes": g.random.sample(range(g.tensor(x).dim()), g.random.randint(0, g.tensor(x).dim()))}, 1


def make_repeat(g):
    x = g.pick(lambda t: t.dim() < 4, most=6)
    if x is None:
        return None
    counts = [g.random.choice([1, 1, 2, 3, 0] if g.empties else [1, 1, 2]) for _ in range(g.tensor(x).dim())]
    return [x], {"counts": ([2] if g.chance(.2) else []) + counts}, 1


def make_repeat_interleave(g):
    x = g.pick(most=8)
    attributes = {"axis": g.axis(x)} if g.tensor(x).dim() and g.chance(.7) else {}
    n = g.shape_of(x)[attributes["axis"]] if attributes else g.tensor(x).numel()
    if g.chance(.5):
        counts = g.leaf([n], "i64", [g.random.randint(0, 2) for _ in range(n)])
        return [x, counts], attributes, 1
    return [x], {"count": g.random.choice([1, 2, 3]), **attributes}, 1


def run_repeat_interleave(x, counts=None, count=None, axis=None):
    return torch.repeat_interleave(x, count if counts is None else counts, axis)


def descending(g):
    return int(g.chance(.5))


def make_topk(g):
    made = make_axis(2, distinct, largest=descending)(g)
    if made is None:
        return None
    made[1]["k"] = g.random.randint(1, g.shape_of(made[0][0])[made[1]["axis"]])
    return made


def run_sort(x, axis, descending):
    return torch.sort(x, dim=axis, descending=bool(descending), stable=True)


add("gather", lambda x, index, axis: x.gather(axis, index.long()), make_gather(False), exact=True, weight=2)
add("scatter_add", lambda x, index, source, axis: x.scatter_add(axis, index.long(), fit(source, index)),
    make_gather(True), weight=1.5)
add("scatter", lambda x, index, source=None, axis=0, value=0.0:
    x.scatter(axis, index.long(), value if source is None else fit(source, index)), make_scatter, exact=True,
    weight=1.5)
add("index_select", lambda x, index, axis: x.index_select(axis, index), make_index_axis(""), exact=True, weight=2)
add("index_add", lambda x, index, source, axis: x.index_add(axis, index.long(), source), make_index_axis("any"),
    weight=1.5)
add("index_copy", lambda x, index, source, axis: x.index_copy(axis, index.long(), source),
    make_index_axis("unique"), exact=True, weight=1.5)
add("index", lambda x, *indices: x[tuple(i.long() for i in indices)].clone(), make_index, exact=True, weight=2)
add("index_put", run_index_put, make_index_put, weight=2)
add("nonzero", torch.nonzero, unary(), exact=True, weight=.3)
add("one_hot", lambda index, num_classes: F.one_hot(index.long(), num_classes),
    lambda g: ([g.indices(g.shape(2), 3)], {"num_classes": 4}, 1), exact=True, weight=.3)
add("tril triu", lambda name: lambda x, diagonal: getattr(x, name)(diagonal),
    lambda g: g.one(lambda t: t.dim() >= 2, diagonal=g.random.randint(-2, 2)), exact=True)
add("roll", lambda x, shifts, axes: torch.roll(x, shifts, axes) if axes else torch.roll(x, shifts), make_roll,
    exact=True)
add("flip", lambda x, axes: torch.flip(x, all_axes(x, axes)), make_flip, exact=True)
add("repeat", lambda x, counts: x.repeat(counts), make_repeat, exact=True)
add("repeat_interleave", run_repeat_interleave, make_repeat_interleave, exact=True)
add("sort", run_sort, make_axis(2, distinct, descending=descending), exact=True)
add("argsort", lambda x, axis, descending: run_sort(x, axis, descending)[1],
    make_axis(1, distinct, descending=descending), exact=True, weight=.3)
add("topk", lambda x, k, axis, largest: torch.topk(x, k, axis, bool(largest)), make_topk, exact=True)
add("unique", lambda x: tuple(t.detach() for t in torch.unique(x, return_inverse=True, return_counts=True)),
    lambda g: g.one(lambda t: True, results=3), exact=True, weight=.3)


# -- layers ---------------------------------------------------------------------------------------
def weighted(y, weight, bias=None):
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@fused
def run_layer_norm(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    return weighted(centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps), weight, bias)


@fused
def run_rms_norm(x, weight, eps):
    return weighted(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps), weight)


def run_add_layer_norm(x, residual, weight, bias, x_bias, eps):
    total = weighted(x + residual, None, x_bias)
    return total, run_layer_norm(total, weight, bias, eps)


def run_add_rms_norm(x, residual, weight, x_bias, eps):
    total = weighted(x + residual, None, x_bias)
    return total, run_rms_norm(total, weight, eps)


def make_norm(vectors, add=False):
    def make(g):
        x = g.pick(lambda t: t.dim() > 0 and t.shape[-1] > 1)
        if x is None:
            return None
        inputs = [x] + ([g.shaped(g.shape_of(x), g.dtype_of(x))] if add else [])
        total = sum(g.tensor(name).detach().double() for name in inputs)
        # the norm of equal elements is as steep as 1 / sqrt(eps)
        if total.numel() and float(total.var(-1).min()) < 1e-2:
            return None
        n, dtype = g.shape_of(x)[-1], g.dtype_of(x)
        inputs += [g.shaped([n], dtype) if g.chance(.7) else "-" for _ in range(vectors)]
        return inputs, {"eps": g.random.choice([1e-5, 1e-2])}, 2 if add else 1
    return make


def make_bias(g):
    x = g.pick(lambda t: t.dim() > 0)
    return x and ([x, g.shaped(g.shape_of(x)[-1:], g.dtype_of(x))], {}, 1)


def make_swiglu(g):
    x = g.pick(lambda t: t.dim() > 0 and t.shape[-1] % 2 == 0)
    if x is None:
        return None
    return [x] + ([g.shaped(g.shape_of(x), g.dtype_of(x))] if g.chance(.5) else []), {}, 1


@fused
def run_swiglu(gate, up=None):
    if up is None:
        gate, up = gate.chunk(2, -1)
    return F.silu(gate) * up


def make_rope(g):
    shape = [1, g.random.choice([1, 2]), g.random.choice([1, 2, 3]), g.random.choice([2, 4])]
    offset = g.random.choice([0, 0, 3])
    attributes = {"length": shape[2] + offset, "width": g.random.choice([2, shape[3]]), "offset": offset,
                  "interleaved": int(g.chance(.4))}
    return [g.shaped(shape)], attributes, 1


def run_rope(x, length, width, offset, interleaved):
    frequencies = torch.tensor([100.0 ** (-2 * j / width) for j in range(width // 2)], dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64)[offset:offset + x.shape[2], None] * frequencies
    c, s = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    turned, rest = x[..., :width], x[..., width:]
    if interleaved:
        p, q = turned[..., 0::2], turned[..., 1::2]
        y = torch.stack([p * c - q * s, q * c + p * s], -1).flatten(-2)
    else:
        p, q = turned[..., :width // 2], turned[..., width // 2:]
        y = torch.cat([p * c - q * s, q * c + p * s], -1)
    return torch.cat([y, rest], -1)


def make_attention(g):
    batch, groups, repeats = g.random.choice([1, 1, 2]), g.random.choice([1, 2]), g.random.choice([1, 1, 2])
    s, d = g.random.choice([1, 2, 3]), g.random.choice([1, 2, 3])
    t, dtype = g.random.choice([s, s, 1, 4]), g.float_dtype()
    q = [batch, groups * repeats, s, d]
    inputs = [g.shaped(q, dtype), g.shaped([batch, groups, t, d], dtype), g.shaped([batch, groups, t, d], dtype), "-"]
    if g.chance(.3):
        inputs[3] = g.mask(g.random.choice([[s, t], [batch, 1, 1, t], q[:3] + [t]]))
    attributes = {"causal": int(g.chance(.5))}
    if g.chance(.3):
        attributes["window_left"] = g.random.choice([0, 1, 3])
    if g.chance(.3):
        attributes["scale"] = g.random.choice([0.5, 1.0, 0.1])
    if g.chance(.2):
        attributes["q_offset"] = g.random.choice([1, 2])
    return inputs, attributes, 1


@fused
def run_attention(q, k, v, mask, causal, window_left=None, scale=None, q_offset=0):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[3]))
    row = torch.arange(q.shape[2])[:, None] + q_offset
    column = torch.arange(k.shape[2])[None]
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    seen = seen & (column <= row) if causal else seen
    seen = seen if window_left is None else seen & (column >= row - window_left)
    seen = seen.expand(scores.shape) if mask is None else seen & mask.expand(scores.shape)
    weights = torch.softmax(scores.masked_fill(~seen, -1e30), -1)
    return (weights * seen.any(-1, keepdim=True).to(weights.dtype)) @ v


def make_embedding(g):
    rows, shape = g.random.randint(1, 5), [max(n, 1) for n in g.shape(2)]
    return [g.shaped([rows, g.size()]), g.indices(shape, rows)], {}, 1


def make_dropout_mask(g):
    x = g.pick()
    return [x, g.mask(g.shape_of(x), leaf=True)], {"p": g.random.choice([0.25, 0.5])}, 1


@fused
def run_checkpoint(a, b):
    """Run as a recomputed function by the library."""
    return torch.tanh(a @ b) * a.select(-1, 0).unsqueeze(-1)


def make_checkpoint(g):
    # the result of a recomputed function always wants a gradient: it may use parameters
    a = g.pick(lambda t: t.dim() == 2 and t.shape[1] > 0 and t.requires_grad)
    return a and ([a, g.shaped([g.shape_of(a)[1], g.size()], g.dtype_of(a))], {}, 1)


add("softmax log_softmax", lambda name: lambda x, axis: getattr(torch, name)(x, axis), make_axis(), weight=3)
add("layer_norm", run_layer_norm, make_norm(2), weight=2)
add("rms_norm", run_rms_norm, make_norm(1), weight=2)
add("add_layer_norm", run_add_layer_norm, make_norm(3, add=True))
add("add_rms_norm", run_add_rms_norm, make_norm(2, add=True))
add("bias_gelu", fused(lambda x, bias: F.gelu(x + bias)), make_bias)
add("bias_gelu_tanh", fused(lambda x, bias: F.gelu(x + bias, approximate="tanh")), make_bias)
add("bias_silu", fused(lambda x, bias: F.silu(x + bias)), make_bias)
add("swiglu", run_swiglu, make_swiglu, weight=2)
add("embedding", lambda weight, ids: F.embedding(ids, weight), make_embedding, exact=True, weight=2)
add("rope", run_rope, make_rope, weight=1.5)
add("attention", run_attention, make_attention, weight=4)
add("dropout_mask", lambda x, mask, p: x * mask.to(x.dtype) / (1 - p), make_dropout_mask)
add("checkpoint", run_checkpoint, make_checkpoint)


# -- losses ---------------------------------------------------------------------------------------
REDUCTIONS = ["mean", "mean", "sum", "none"]


def reduced(losses, weights, reduction):
    losses = losses * weights
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / weights.sum()


def entropy_rows(logits, labels, ignore_index, label_smoothing, valid_vocab):
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    log_probs = torch.log_softmax(logits[..., :valid_vocab], -1)
    kept = labels != ignore_index
    losses = -log_probs.gather(-1, torch.where(kept, labels, 0).long().unsqueeze(-1)).squeeze(-1)
    if label_smoothing:
        losses = (1 - label_smoothing) * losses - label_smoothing * log_probs.mean(-1)
    return torch.where(kept, losses, torch.zeros_like(losses))


def entropy(losses, labels, mask, ignore_index, reduction):
    weights = (labels != ignore_index).to(losses.dtype)
    return reduced(losses, weights if mask is None else weights * mask.to(losses.dtype), reduction)


def run_cross_entropy(logits, labels, mask, ignore_index, reduction, label_smoothing, valid_vocab=None):
    losses = fused(entropy_rows)(logits, labels, ignore_index=ignore_index, label_smoothing=label_smoothing,
                                 valid_vocab=valid_vocab)
    return entropy(losses, labels, mask, ignore_index, reduction)


def run_linear_cross_entropy(hidden, weight, labels, mask, chunk_rows, ignore_index, reduction, label_smoothing,
                             valid_vocab=None):
    def rows(hidden, weight, labels):
        return entropy_rows(F.linear(hidden, weight), labels, ignore_index, label_smoothing, valid_vocab)
    return entropy(fused(rows)(hidden, weight, labels), labels, mask, ignore_index, reduction)


def run_nll_loss(log_probs, labels, ignore_index, reduction):
    kept = labels != ignore_index
    losses = -log_probs.gather(-1, torch.where(kept, labels, 0).long().unsqueeze(-1)).squeeze(-1)
    return reduced(torch.where(kept, losses, torch.zeros_like(losses)), kept.to(losses.dtype), reduction)


def make_loss(kind):
    def make(g):
        x = g.pick(lambda t: t.dim() > 0 and t.shape[-1] > 1)
        if x is None:
            return None
        rows, width, dtype = g.shape_of(x)[:-1], g.shape_of(x)[-1], g.dtype_of(x)
        columns = g.size(2) if kind == "linear" else width
        attributes = {"ignore_index": g.random.choice([-100, 0, -1]), "reduction": g.random.choice(REDUCTIONS)}
        valid = columns
        if kind != "nll":
            attributes["label_smoothing"] = g.random.choice([0.0, 0.0, .25])
            if columns > 2 and g.chance(.2):
                valid = attributes["valid_vocab"] = columns - 1
        labels = [g.random.randrange(valid) for _ in range(math.prod(rows))]
        labels = [attributes["ignore_index"] if g.chance(.15) else v for v in labels]
        if attributes["reduction"] == "mean" and all(v == attributes["ignore_index"] for v in labels):
            return None  # the mean of nothing is NaN
        inputs = [x] + ([g.shaped([columns, width], dtype)] if kind == "linear" else [])
        inputs.append(g.leaf(rows, g.index_dtype(), labels))
        if kind != "nll":
            weights = [g.random.choice([.5, 1.0, 2.0]) for _ in labels]
            inputs.append(g.leaf(rows, g.random.choice(["f32", dtype]), weights) if g.chance(.3) else "-")
        if kind == "linear":
            attributes["chunk_rows"] = g.random.choice([1, 2, 512])
        return inputs, attributes, 1
    return make


def make_mse(g):
    x = g.pick()
    return [x, g.shaped(g.shape_of(x), g.dtype_of(x))], {"reduction": g.random.choice(REDUCTIONS)}, 1


def run_mse(x, target, reduction):
    if x.dtype != torch.bfloat16:
        return F.mse_loss(x, target, reduction=reduction)
    d = (x - target) ** 2  # 1.13 has no other
    return d if reduction == "none" else getattr(d, reduction)()


def make_bce(g):
    x = g.pick()
    shape, dtype = g.shape_of(x), g.dtype_of(x)
    targets = g.leaf(shape, dtype, [g.random.randrange(9) / 8 for _ in range(math.prod(shape))])
    tail = shape[g.random.randint(0, len(shape)):]
    weights = g.leaf(tail, dtype, [g.random.choice([.5, 1.0, 2.0]) for _ in range(math.prod(tail))])
    return [x, targets, weights if g.chance(.4) else "-"], {"reduction": g.random.choice(REDUCTIONS)}, 1


add("cross_entropy", run_cross_entropy, make_loss("plain"), weight=3)
add("linear_cross_entropy", run_linear_cross_entropy, make_loss("linear"), weight=2)
add("nll_loss", run_nll_loss, make_loss("nll"))
add("mse_loss", run_mse, make_mse)
add("binary_cross_entropy_with_logits",
    lambda x, targets, weight, reduction:
    F.binary_cross_entropy_with_logits(x, targets, pos_weight=weight, reduction=reduction), make_bce)


# -- changes in place ----------------------------------------------------------------------------
def in_place(names, make, run=None, **options):
    for name in names.split():
        function = run or (lambda x, *others, n=name: getattr(x, n)(*others))
        TABLE[name] = Operation(name, function, make, in_place=True, **options)


def change(domain="any"):
    def make(g):
        x = g.changed()
        t = None if x is None else g.tensor(x).detach()
        if t is None or (t.numel() and domain == "positive" and float(t.min()) < .1):
            return None
        if t.numel() and domain == "small" and float(t.max()) > 3:
            return None
        if t.numel() and domain == "away" and float(t.abs().min()) < .1:
            return None
        return [x], {}, 0
    return make


def change_by_number(numbers):
    def make(g):
        x = g.changed()
        return x and ([x], {"value": g.random.choice(numbers)}, 0)
    return make


def change_by_tensor(g):
    x = g.changed()
    if x is None:
        return None
    shape = [1 if g.chance(.2) else n for n in g.shape_of(x)]
    shape = shape[g.random.randint(0, len(shape)):] if g.chance(.2) else shape
    other = g.shaped(g.shape_of(x)) if g.chance(.4) else g.leaf(shape)
    return [x, other], {}, 0


def divide_by_tensor(g):
    made = change_by_tensor(g)
    if made is None or made[0][1] == made[0][0]:
        return None
    made[0][1] = g.away_from_zero(made[0][1])
    return made[0][1] and made


def change_masked(g):
    x = g.changed()
    return x and ([x, g.mask(g.shape_of(x))], {"value": g.random.choice([0.0, -1.0, 2.5])}, 0)


def change_clamp(g):
    x = g.changed()
    return x and ([x], {"low": -1.0, "high": g.random.choice([0.5, 2.0])}, 0)


in_place("add_ sub_ mul_", change_by_tensor, weight=2)
in_place("copy_", change_by_tensor, exact=True, weight=2)
in_place("div_", divide_by_tensor)
for _name in "add sub mul div".split():
    in_place(_name + "_number_", change_by_number([.5, 2.0, -1.5]),
             lambda x, value, n=_name: getattr(x, n + "_")(value), weight=1.5)
in_place("pow_number_", change_by_number([2.0, 3.0]), lambda x, value: x.pow_(value))
in_place("fill_", change_by_number([0.0, 1.5]), lambda x, value: x.fill_(value), exact=True)
in_place("neg_ abs_ floor_ ceil_ round_ zero_", change(), exact=True, weight=.5)
in_place("square_", change())
in_place("tanh_ sigmoid_", change(), saves_result=True)
in_place("exp_", change("small"), saves_result=True)
in_place("log_", change("positive"), weight=.5)
in_place("sqrt_ rsqrt_", change("positive"), weight=.5, saves_result=True)
in_place("reciprocal_", change("away"), weight=.5, saves_result=True)
in_place("clamp_", change_clamp, lambda x, low, high: x.clamp_(low, high), exact=True)
in_place("masked_fill_", change_masked, lambda x, mask, value: x.masked_fill_(mask.expand(x.shape), value),
         exact=True)
