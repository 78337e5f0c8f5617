"""Runs a program in PyTorch, statement by statement, and looks at what it leaves behind."""

import dataclasses
import math
import re
import warnings

import torch

import operations

warnings.filterwarnings("ignore")
torch.set_num_threads(1)

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOATING = ("f64", "f32", "bf16")
EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "bf16": 2.0**-7}

# What PyTorch's refusals are about. The first pattern that fits counts.
KINDS = [
    # the last two: 1.13 cannot retain the gradient of an output that has none, nor add to its own zeros
    ("unsupported", r"not implemented for|not supported for|is not yet supported|Expected a proper Tensor but got None|"
                    r"ZeroTensors are immutable"),
    ("version", r"modified by an inplace operation"),
    ("released", r"backward through the graph a second time"),
    ("leaf", r"leaf Variable that requires grad"),
    ("no_grad_view", r"view was created in no_grad mode"),
    ("multi_view", r"output of a function that returns multiple views"),
    ("view", r"is a view"),
    ("memory", r"single memory location"),
    ("no_graph", r"does not require grad|does not have a grad_fn|doesn't require"),
    ("unused", r"appears to not have been used"),
    ("dtype", r"dtype|[Ss]calar type|can't be cast|same type|Expected object of type|Half|BFloat16"),
    ("index", r"out of (range|bounds)"),
]


@dataclasses.dataclass
class Refusal:
    kind: str
    message: str


@dataclasses.dataclass
class Snapshot:
    """A tensor as a program can see it."""
    dtype: str
    shape: list
    requires_grad: bool
    is_leaf: bool
    values: list  # of floats, row-major


class Native:
    """Every tensor has the dtype that the program says."""

    noise = False

    def dtype(self, name):
        return DTYPES[name]

    def disturb(self, tensor, name):
        return tensor


class Widened(Native):
    """Every floating tensor is float64: what the program means, but for rounding."""

    def dtype(self, name):
        return torch.float64 if name in FLOATING else DTYPES[name]


class Disturbed(Widened):
    """As Widened, but each result, and the gradient that arrives at it, is moved by up to `SIZE` epsilons
    of the dtype that it should have.

    How far an element moves is a function of its absolute value, so that elements which are equal
    stay equal: a tie of a maximum is a property of the program, not of rounding. The factor is a
    constant of the graph. Gradients have factors of their own: a sum of them may be zero however the
    values are moved (that of a row that is normalized, times the row), and rounding makes it another.
    """

    SIZE = 2.0
    noise = True

    def __init__(self, seed):
        self.seed = seed

    def factor(self, tensor, name):
        wild = torch.sin(tensor.detach().abs() * 12345.678 + self.seed) * 43758.5453
        return 1 + (2 * (wild - torch.floor(wild)) - 1) * self.SIZE * EPSILON[name]

    def disturb(self, tensor, name):
        moved = tensor * self.factor(tensor, name)
        if not moved.requires_grad:
            return moved
        # The hook lies on a tensor that the program does not see.
        moved.register_hook(lambda g: None if g is None else g * self.factor(g, name))
        return moved.clone()


class Runner:
    """The state of a program: its tensors, hooks and gradient modes.

    dtypes[i]: the floating dtypes of the results of statement i (and of what it changes in place),
    which a Native run has recorded.
    """

    def __init__(self, arithmetic=None, dtypes=None):
        self.arithmetic = arithmetic or Native()
        self.dtypes = dtypes
        self.recorded = []
        self.tensors, self.hooks, self.modes = {}, {}, []
        self.views = {}  # as PyTorch made them, of those that are detached in `tensors`

    # -- executing ----------------------------------------------------------------------------
    def add_leaf(self, leaf):
        dtype = DTYPES[leaf.dtype]
        values = torch.tensor(leaf.values, dtype=torch.float64).reshape(leaf.shape).to(dtype)
        values = values.to(self.arithmetic.dtype(leaf.dtype))
        if self.arithmetic.noise and leaf.dtype in FLOATING:
            values = self.arithmetic.disturb(values, leaf.dtype)
        tensor = values
        if leaf.strides is not None:
            extent = sum((n - 1) * s for n, s in zip(leaf.shape, leaf.strides)) if values.numel() else 0
            memory = torch.full((leaf.offset + extent + 1,), 7, dtype=values.dtype)
            tensor = memory.as_strided(leaf.shape, leaf.strides, leaf.offset)
            tensor.copy_(values)
        self.tensors[leaf.name] = tensor.detach().requires_grad_(leaf.grad)

    def execute(self, statement):
        """Runs a statement. Returns what PyTorch refuses, or None."""
        try:
            with torch.set_grad_enabled(self.modes[-1] if self.modes else True):
                self._execute(statement)
        except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:  # the last: of None
            message = str(error).split("\n")[0]
            kind = next((k for k, pattern in KINDS if re.search(pattern, message)), "shape")
            return Refusal(kind, message)
        return None

    def _execute(self, s):
        control = getattr(self, "_" + s.op, None)
        if control:
            control(s)
            self.recorded.append([])
            return
        inputs = [None if n == "-" else self.tensors[n] for n in s.inputs]
        operation = operations.TABLE[s.op]
        attributes = dict(s.attributes)
        if "dtype" in attributes:
            attributes["dtype"] = self.arithmetic.dtype(attributes["dtype"])
        if operation.in_place:
            self._change(s, operation, inputs, attributes)
            return
        results = operation.run(*inputs, **attributes)
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        if not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in inputs):
            # A view follows what later happens to its base, even where nothing was recorded. That is
            # peculiar to PyTorch; detached, it is a tensor of its own on the same memory. Who changes it
            # in place meets the view itself.
            views = {name: t for name, t in zip(s.results, results) if t._is_view()}
            results = [t if any(t is x for x in inputs) else t.detach() for t in results]
            self.views.update(views)
        if len(results) != len(s.results):
            raise AssertionError("%s gives %d results" % (s.text(), len(results)))
        self.recorded.append([NAMES[t.dtype] for t in results])
        if self.arithmetic.noise and not operation.exact:
            names = self.dtypes[len(self.recorded) - 1]
            results = [self.arithmetic.disturb(t, d) if d in FLOATING else t for t, d in zip(results, names)]
        self.tensors.update(zip(s.results, results))

    def _change(self, s, operation, inputs, attributes):
        name, x = s.inputs[0], inputs[0]
        if name in self.views:
            inputs = [self.views[name] if t is x else t for t in inputs]
            x = inputs[0]
        operation.run(*inputs, **attributes)
        if name in self.views and torch.is_grad_enabled() and x.grad_fn is not None:
            self.tensors[name] = self.views.pop(name)  # it has become a result
        self.recorded.append([NAMES[x.dtype]])
        # an op whose derivative goes by its result would find it changed
        if self.arithmetic.noise and x.is_floating_point() and not (x.requires_grad and operation.saves_result):
            x.mul_(self.arithmetic.factor(x, self.dtypes[len(self.recorded) - 1][0]))

    # -- statements that are not ops ----------------------------------------------------------
    def _roots(self, s):
        n = s.attributes.get("roots", 1)
        roots = [self.tensors[name] for name in s.inputs[:n]]
        # a gradient that is given may not be the memory of what is accumulated
        gradients = [None if name == "-" else self.tensors[name].clone() for name in s.inputs[n:2 * n]]
        create = bool(s.attributes.get("create", 0))
        keep = create or bool(s.attributes.get("retain", 0))
        return roots, gradients, dict(retain_graph=keep, create_graph=create), s.inputs[2 * n:]

    def _backward(self, s):
        roots, gradients, options, _ = self._roots(s)
        torch.autograd.backward(roots, gradients, **options)

    def _grad(self, s):
        roots, gradients, options, names = self._roots(s)
        inputs = [self.tensors[name] for name in names]
        results = torch.autograd.grad(roots, inputs, gradients, allow_unused=True, **options)
        if not options["create_graph"]:
            # as in _execute: a gradient may be a view of another one
            results = [t if t is None else t.detach() for t in results]
        self.tensors.update(zip(s.results, results))

    def _hook(self, s):
        x, value, kind = self.tensors[s.inputs[0]], s.attributes.get("value", 1.0), s.attributes["kind"]
        other = self.tensors[s.inputs[1]] if len(s.inputs) > 1 else None
        change = {
            "scale": lambda g: g * value,
            "clamp": lambda g: g.clamp(-value, value),
            "look": lambda g: None,
            "square": lambda g: g * g,
            "zero": torch.zeros_like,
            "mul": lambda g: g * other,
        }[kind]
        # 1.13 calls hooks for gradients that are not there
        self.hooks[s.results[0]] = x.register_hook(lambda g: None if g is None else change(g))

    def _unhook(self, s):
        self.hooks[s.inputs[0]].remove()

    def _retain_grad(self, s):
        self.tensors[s.inputs[0]].retain_grad()

    def _no_grad(self, _):
        self.modes.append(False)

    def _enable_grad(self, _):
        self.modes.append(True)

    def _end_mode(self, _):
        self.modes.pop()

    def _requires_grad(self, s):
        self.tensors[s.inputs[0]].requires_grad_(bool(s.attributes["value"]))
        self.views.pop(s.inputs[0], None)

    def _clear_grad(self, s):
        for name in s.inputs:
            self.tensors[name].grad = None

    # Copies: whether later accumulation changes what get_grad gave is no part of the contract.
    def _get_grad(self, s):
        grad = self.tensors[s.inputs[0]].grad
        if grad is None:  # as it may be in one of the disturbed runs
            raise RuntimeError("no gradient")
        self.tensors[s.results[0]] = torch.zeros_like(grad) if grad._is_zerotensor() else grad.clone()

    def _set_grad(self, s):
        self.tensors[s.inputs[0]].grad = self.tensors[s.inputs[1]].detach().clone()

    # -- looking ------------------------------------------------------------------------------
    def state(self):
        """Snapshots of all tensors and, under NAME.grad, of their gradients."""
        state = {}
        for name, tensor in self.tensors.items():
            state[name] = _snapshot(tensor)
            if tensor is not None:
                state[name + ".grad"] = _snapshot(tensor.grad)
        return state


def _snapshot(t):
    if t is None:
        return None
    zeros = t._is_zerotensor()  # zeros of backward that have no memory
    values = [0.0] * t.numel() if zeros else t.detach().to(torch.float64).flatten().tolist()
    return Snapshot(NAMES[t.dtype], list(t.shape), t.requires_grad, t.is_leaf, values)


def largest(values):
    return max((abs(v) for v in values if math.isfinite(v)), default=0.0)
