"""Makes a random program, running it in PyTorch on the way to know shapes and values.

Not made, because versions of PyTorch differ about them: changes in place of a tensor that has a hook or
retains its gradient; grad() for a tensor that has a hook or retains its gradient, where 2.0 runs the hook
or fills the gradient and 1.13 does not.

Not made, because they hang on how PyTorch lays its results out (an elementwise op takes the strides of its
input): changes in place of memory that contiguous() or reshape() may or may not have copied. And because
they hang on its formulas, which may give zeros without a graph: requires_grad of what came from gradients.
"""

import math
import random

import torch

import expectations
import operations
from program import Leaf, Program, Statement
from runner import DTYPES, FLOATING, NAMES, Runner, largest

MOST_ELEMENTS = 24
LARGEST_VALUE = 100.0


class Generator:
    """One program. The functions `make` of operations.py ask it for tensors and numbers."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.program, self.runner = Program(seed), Runner()
        self.base = self.random.choices(["f64", "f32", "mixed", "bf16"], [45, 35, 8, 12])[0]
        self.empties = self.chance(.06)
        self.features = {name: self.chance(p) for name, p in {
            "hook": .3, "in_place": .4, "mode": .25, "requires_grad": .15, "retain": .2, "get_grad": .3,
            "set_grad": .1, "misfit": .08}.items()}
        self.names = 0
        self.ended = False  # by a statement that PyTorch refuses
        self.hooked, self.retained = set(), set()
        self.copied = set()  # tensors that contiguous() or reshape() has copied, and the copies

    # -- random choices -----------------------------------------------------------------------
    def chance(self, p):
        return self.random.random() < p

    def size(self, least=0):
        if self.empties:
            return max(least, self.random.choice([0, 1, 2, 3]))
        return max(least, self.random.choice([1, 1, 2, 2, 3, 4]))

    def shape(self, most_axes=4):
        axes = self.random.choices(range(most_axes + 1), [2, 4, 6, 4, 1][:most_axes + 1])[0]
        shape = [self.size() for _ in range(axes)]
        while math.prod(shape) > MOST_ELEMENTS // 2:
            shape[shape.index(max(shape))] -= 1
        return shape

    def factors(self, numel):
        """A random shape of so many elements."""
        shape = []
        while numel > 1 and len(shape) < 3:
            shape.append(self.random.choice([d for d in range(2, numel + 1) if numel % d == 0]))
            numel //= shape[-1]
        shape += [numel] if numel > 1 else []
        if self.chance(.3):
            shape.append(1)
        self.random.shuffle(shape)
        return shape

    def float_dtype(self):
        choices = {"mixed": ["f64", "f32"], "bf16": ["bf16", "bf16", "f32"]}.get(self.base, [self.base])
        return self.random.choice(choices)

    def index_dtype(self):
        return self.random.choice(["i64", "i64", "i32"])

    def axis(self, name):
        axes = self.tensor(name).dim()
        return self.random.randrange(-axes, axes) if axes else 0

    def axes(self, name):
        axes = self.tensor(name).dim()
        chosen = self.random.sample(range(axes), self.random.randint(0, axes))
        return [a - axes if self.chance(.3) else a for a in chosen]

    # -- tensors --------------------------------------------------------------------------------
    def tensor(self, name):
        return self.runner.tensors[name]

    def shape_of(self, name):
        return list(self.tensor(name).shape)

    def dtype_of(self, name):
        return NAMES[self.tensor(name).dtype]

    def broadcast(self, *names):
        try:
            return list(torch.broadcast_shapes(*(self.tensor(name).shape for name in names)))
        except RuntimeError:
            return None

    def new_name(self, prefix="t"):
        self.names += 1
        return "%s%d" % (prefix, self.names)

    def leaf(self, shape, dtype=None, values=None, grad=False):
        """A new leaf; without values, one of random numbers that may require a gradient."""
        dtype = dtype or self.float_dtype()
        if values is None:
            grad = dtype in FLOATING and self.chance(.8)
            values = [round(self.random.gauss(0, 1) * 16) / 16 for _ in range(math.prod(shape))]
        leaf = Leaf(self.new_name("x"), dtype, list(shape), [float(v) for v in values], grad)
        if shape and self.chance(.25):
            leaf.strides, leaf.offset = self.strides(shape), self.random.choice([0, 0, 1, 3])
        self.program.leaves.append(leaf)
        self.runner.add_leaf(leaf)
        return leaf.name

    def strides(self, shape):
        """Of a tensor with its axes in any order and gaps between its elements."""
        order = list(range(len(shape)))
        self.random.shuffle(order)
        strides, step = [0] * len(shape), 1
        for axis in order:
            step *= self.random.choice([1, 1, 2])
            strides[axis] = step
            step *= max(shape[axis], 1)
        return strides

    def floating(self, condition=None):
        return [n for n, t in self.runner.tensors.items()
                if t is not None and t.is_floating_point() and (condition is None or condition(t))]

    def pick(self, condition=None, most=MOST_ELEMENTS, fresh=.15):
        """A floating tensor that fits, mostly a recent one; None if there is none."""
        def fits(t):
            return t.numel() <= most and (condition is None or condition(t))
        names = self.floating(fits)
        if names and not self.chance(fresh):
            return self.random.choice(names[-6:] if self.chance(.7) else names)
        for _ in range(20):
            shape, dtype = self.shape(), self.float_dtype()
            if fits(torch.linspace(0, 1, math.prod(shape)).reshape(shape).to(DTYPES[dtype])):
                name = self.leaf(shape, dtype)
                if fits(self.tensor(name)):
                    return name
        return self.random.choice(names) if names else None

    def one(self, condition, results=1, **attributes):
        """What a `make` gives for an op of one tensor."""
        x = self.pick(condition)
        return x and ([x], attributes, results)

    def with_shape(self, make):
        return make(self.shape(3))

    def unary(self, domain):
        x = self.pick()
        x = self.positive(x) if domain == "positive" else self.away_from_zero(x) if domain != "any" else x
        return x and ([x], {}, 1)

    def partner(self, name):
        """A tensor that broadcasts with the given one."""
        def fits(t):
            try:
                return math.prod(torch.broadcast_shapes(t.shape, self.tensor(name).shape)) <= MOST_ELEMENTS
            except RuntimeError:
                return False
        if self.chance(.12):
            return name
        names = self.floating(fits)
        if names and self.chance(.5):
            return self.random.choice(names)
        shape = [1 if self.chance(.25) else n for n in self.shape_of(name)]
        return self.leaf(shape[self.random.randint(0, len(shape)):] if self.chance(.3) else shape)

    def shaped(self, shape, dtype=None):
        """A tensor of exactly this shape (and dtype)."""
        dtype = dtype or self.float_dtype()
        names = self.floating(lambda t: list(t.shape) == list(shape) and NAMES[t.dtype] == dtype)
        if names and self.chance(.5):
            return self.random.choice(names)
        numel = math.prod(shape)
        names = self.floating(lambda t: t.numel() == numel > 0 and NAMES[t.dtype] == dtype)
        if names and self.chance(.4):
            made = self.emit("reshape", [self.random.choice(names)], {"shape": list(shape)})
            if made:
                return made[0]
        return self.leaf(shape, dtype)

    def positive(self, name):
        if name is None:
            return None
        t = self.tensor(name).detach()
        if t.numel() == 0 or float(t.min()) > .1:
            return name
        made = self.emit(self.random.choice(["exp", "sigmoid", "softplus"]), [name])
        if made and self.tensor(made[0]).detach().min() < .1:
            made = self.emit("add_number", made, {"value": .5})
        return made and made[0]

    def away_from_zero(self, name):
        if name is None:
            return None
        t = self.tensor(name).detach()
        return name if t.numel() == 0 or float(t.abs().min()) > .1 else self.positive(name)

    def mask(self, shape, leaf=False):
        """A bool tensor of the shape."""
        if not leaf and self.chance(.4):
            names = self.floating(lambda t: list(t.shape) == list(shape))
            if names:
                made = self.emit(self.random.choice(["lt_number", "ge_number"]), [self.random.choice(names)],
                                 {"value": self.random.choice([0.0, .5])})
                if made:
                    return made[0]
        return self.leaf(shape, "bool", [self.chance(.6) for _ in range(math.prod(shape))])

    def indices(self, shape, limit, negative=False):
        values = [self.random.randrange(limit) for _ in range(math.prod(shape))]
        values = [v - limit if negative and self.chance(.3) else v for v in values]
        return self.leaf(shape, self.index_dtype(), values)

    def changed(self):
        """A tensor to change in place."""
        def memory(t):
            return t.storage().data_ptr()
        used = {n for s in self.program.statements for n in s.inputs}
        copied = {memory(self.tensor(n)) for n in self.copied}
        names = [n for n in self.floating(lambda t: t.numel() > 0 and memory(t) not in copied)
                 if n not in self.hooked | self.retained]
        alone = [n for n in names if n not in used and not self.tensor(n).is_leaf and sum(
            t is not None and memory(t) == memory(self.tensor(n)) for t in self.runner.tensors.values()) == 1]
        free = [n for n in names if not self.tensor(n).requires_grad]
        views = [n for n in names if n in self.runner.views]
        kind = self.random.random()
        choice = views if kind < .4 and views else alone if kind < .6 else free if kind < .8 else names
        return self.random.choice(choice[-5:]) if choice else None

    # -- statements ---------------------------------------------------------------------------
    def emit(self, op, inputs, attributes=None, results=1, final=False):
        """Adds a statement and returns its results. One that PyTorch refuses, or that gives wild or
        large results, is taken back, and None returned; a final one stays and ends the program."""
        names = [self.new_name() for _ in range(results)]
        statement = Statement(op, list(inputs), dict(attributes or {}), names)
        if self.ended or len(names) > 4:
            return None
        refusal = self.runner.execute(statement)
        if refusal is not None:
            self.ended = final and refusal.kind != "unsupported"
            if self.ended:
                self.program.statements.append(statement)
            return None
        if op in operations.TABLE and not self.is_tame([self.tensor(name) for name in names]):
            for name in names:
                del self.runner.tensors[name]
            return None
        self.program.statements.append(statement)
        if op in ("contiguous", "reshape") and not self.tensor(inputs[0]).is_contiguous():
            self.copied.update(inputs + names)
        return names

    @staticmethod
    def is_tame(tensors):
        for t in tensors:
            values = t.detach().double()
            if t.numel() > MOST_ELEMENTS or not bool(torch.isfinite(values).all()):
                return False
            if t.numel() and float(values.abs().max()) > LARGEST_VALUE:
                return False
        return True

    def emit_op(self, operation):
        made = operation.make(self)
        if made is None or any(name is None for name in made[0]):
            return
        if operation.in_place:
            self.emit(operation.name, made[0], made[1], 0, final=True)
        else:
            self.emit(operation.name, *made)

    def ops(self, count):
        """So many ops, with other statements between them."""
        plain = [o for o in operations.TABLE.values() if not o.in_place]
        weights = [o.weight for o in plain]
        goal = len(self.program.statements) + count
        for _ in range(4 * count):
            if self.ended or len(self.program.statements) >= goal:
                break
            self.emit_op(self.random.choices(plain, weights)[0])
            if self.chance(.25):
                self.special()
        self.end_modes()

    def end_modes(self):
        while self.runner.modes and not self.ended:
            self.emit("end_mode", [], results=0)

    def special(self):
        """A statement of one of this program's features."""
        features = [name for name, on in self.features.items() if on]
        if features and not self.ended:
            getattr(self, "add_" + self.random.choice(features))()

    def add_in_place(self):
        changes = [o for o in operations.TABLE.values() if o.in_place]
        self.emit_op(self.random.choices(changes, [o.weight for o in changes])[0])

    def add_hook(self):
        if self.runner.hooks and self.chance(.25):
            name = self.random.choice(list(self.runner.hooks))
            self.emit("unhook", [name], results=0)
            del self.runner.hooks[name]
            return
        names = self.floating(lambda t: t.requires_grad)
        if not names:
            return
        x, kind = self.random.choice(names), self.random.choice(["scale", "clamp", "look", "square", "zero", "mul"])
        inputs, attributes = [x], {"kind": kind}
        if kind in ("scale", "clamp"):
            attributes["value"] = self.random.choice([.5, 2.0])
        if kind == "mul":
            inputs.append(self.leaf(self.shape_of(x), self.dtype_of(x)))
        if self.emit("hook", inputs, attributes):
            self.hooked.add(x)

    def add_retain(self):
        names = self.floating(lambda t: t.requires_grad and not t.is_leaf)
        if names:
            x = self.random.choice(names)
            self.emit("retain_grad", [x], results=0)
            self.retained.add(x)

    def add_mode(self):
        if self.runner.modes and self.chance(.7):
            self.emit("end_mode", [], results=0)
        elif len(self.runner.modes) < 3:
            inside = self.runner.modes and not self.runner.modes[-1]
            self.emit("enable_grad" if inside else "no_grad", [], results=0)

    def add_requires_grad(self):
        gradients = expectations.of_gradients(self.program)
        names = [n for n in self.floating(lambda t: t.is_leaf or self.chance(.1))
                 if n not in gradients and not self.has_unrecorded_views(n)]
        if self.chance(.2):
            self.emit_requires_grad(names, 0)
        else:
            self.emit_requires_grad([n for n in names if self.tensor(n).requires_grad or self.is_kept_whole(n)], 1)

    def emit_requires_grad(self, names, value):
        if names:
            self.emit("requires_grad", [self.random.choice(names)], {"value": value}, 0, final=True)

    def is_kept_whole(self, name):
        """No op has made anything of it that its derivative goes by, but the tensor itself."""
        dtype = self.dtype_of(name)
        return all(s.op in ("add", "sub", "mul", "div") and {self.dtype_of(n) for n in s.inputs} == {dtype}
                   for s in self.program.statements if name in s.inputs)

    def has_unrecorded_views(self, name):
        memory = self.tensor(name).storage().data_ptr()
        return any(t.storage().data_ptr() == memory for t in self.runner.views.values())

    def add_get_grad(self):
        names = [n for n in self.leaves() if self.tensor(n).grad is not None]
        if names:
            self.emit("get_grad", [self.random.choice(names)])

    def add_set_grad(self):
        names = self.leaves()
        if names:
            x = self.random.choice(names)
            values = self.leaf(self.shape_of(x), self.dtype_of(x))
            self.emit("set_grad", [x, values], results=0, final=True)

    def add_misfit(self):
        """An op with operands taken at random: most do not fit, and all libraries must say so."""
        names = self.floating()
        x, y, z = (self.random.choice(names) for _ in range(3)) if names else (None,) * 3
        if x is None or len(self.program.statements) < 3:
            return
        n = self.random.randint
        op, inputs, attributes = self.random.choice([
            ("add", [x, y], {}), ("matmul", [x, y], {}), ("bmm", [x, y], {}), ("dot", [x, y], {}),
            ("cat", [x, y], {"axis": 0}), ("stack", [x, y], {"axis": 0}), ("linear", [x, y, z], {}),
            ("view", [x], {"shape": [n(1, 6), 3]}), ("expand", [x], {"shape": [n(1, 4), n(1, 4)]}),
            ("permute", [x], {"axes": [1, 0]}), ("select", [x], {"axis": n(-2, 2), "index": n(-4, 4)}),
            ("sum", [x], {"axes": [n(-3, 3)], "keepdim": 0}), ("softmax", [x], {"axis": n(-3, 3)}),
            ("where", [x, y, z], {}), ("embedding", [x, y], {})])
        self.emit(op, inputs, attributes, final=True)

    # -- running backwards --------------------------------------------------------------------
    def leaves(self):
        return self.floating(lambda t: t.is_leaf and t.requires_grad)

    def root(self, names=None):
        """A root and its gradient, or None."""
        names = names or self.floating(lambda t: t.requires_grad and not t.is_leaf)
        names = [n for n in names if self.tensor(n) is not None and self.tensor(n).requires_grad]
        names = names or self.leaves()
        if not names:
            return None
        x = self.random.choice(names[-4:] if self.chance(.8) else names)
        t, kind = self.tensor(x), self.random.random()
        if t.numel() == 1 and kind < .5:
            return x, "-"
        if kind < .35:
            same = self.floating(lambda q: q.shape == t.shape and q.dtype == t.dtype)
            return x, self.random.choice(same) if kind < .1 else self.leaf(list(t.shape), self.dtype_of(x))
        if kind < .75:
            made = self.emit("mul", [x, self.leaf(list(t.shape), self.dtype_of(x))])
        else:
            made = self.emit("square", [x])
        made = made and self.emit("sum", made, {"axes": [], "keepdim": 0})
        return (made[0], "-") if made and self.tensor(made[0]).requires_grad else None

    def roots(self):
        roots = [self.root()]
        if self.chance(.12):
            roots.append(self.root())
        return roots

    def run_backward(self, roots=None, **options):
        roots = roots or self.roots()
        if None in roots or self.ended:
            return None
        inputs = [r[0] for r in roots] + [r[1] for r in roots]
        attributes = {"roots": len(roots), **{k: 1 for k, on in options.items() if on}}
        done = self.emit("backward", inputs, attributes, 0, final=True)
        return roots if done is not None else None

    def run_grad(self, roots=None, **options):
        roots = roots or self.roots()
        leaves = self.leaves()
        if None in roots or not leaves or self.ended:
            return None
        wanted = self.random.sample(leaves, self.random.randint(1, min(3, len(leaves))))
        between = self.floating(lambda t: t.requires_grad and not t.is_leaf)
        if between and self.chance(.4):
            wanted.append(self.random.choice(between))
        wanted = [name for name in wanted if name not in self.hooked | self.retained]
        if not wanted:
            return None
        inputs = [r[0] for r in roots] + [r[1] for r in roots] + wanted
        attributes = {"roots": len(roots), **{k: 1 for k, on in options.items() if on}}
        made = self.emit("grad", inputs, attributes, len(wanted), final=True)
        return made and [name for name in made if self.tensor(name) is not None]

    def clear(self, some=True):
        names = self.leaves()
        if some and names and self.chance(.5):
            names = self.random.sample(names, self.random.randint(1, len(names)))
        if names:
            self.emit("clear_grad", names, results=0)

    def phase(self, last):
        second = ["backward_create", "second", "second"] if self.second_order else []
        kind = self.random.choice(["once", "once", "once", "twice", "released", "two_roots", "grad", "more"] + second)
        getattr(self, "phase_" + kind)(last)

    def phase_once(self, last):
        self.run_backward(retain=not last or self.chance(.3))

    def phase_twice(self, last):
        roots = self.run_backward(retain=True)
        if roots and self.chance(.3):
            self.clear()
        if roots:
            self.run_backward(roots, retain=not last)

    def phase_released(self, last):
        roots = last and self.run_backward()
        if roots:
            self.run_backward(roots)

    def phase_two_roots(self, last):
        first, second = self.root(), self.root()
        if first and second:
            self.run_backward([first], retain=True)
            self.run_backward([second], retain=not last)

    def phase_grad(self, last):
        self.run_grad(retain=not last)

    def phase_more(self, _):
        self.ops(self.random.randint(1, 4))

    def phase_backward_create(self, _):
        """Gradients of gradients that lie in leaves."""
        if not self.run_backward(create=True):
            return
        names = [n for n in self.leaves() if self.tensor(n).grad is not None]
        self.random.shuffle(names)
        made = [self.emit("get_grad", [name]) for name in names[:2]]
        if self.chance(.7):
            self.clear(some=False)
        root = made and not self.ended and self.root([m[0] for m in made if m])
        if root:
            self.run_backward([root], retain=True, create=self.chance(.2))

    def phase_second(self, _):
        """Gradients of gradients that grad() gives."""
        for depth in range(self.random.choice([1, 1, 1, 2])):
            names = self.run_grad(create=True)
            if not names:
                return
            if self.chance(.3):
                self.ops(1)
            root = not self.ended and self.root(names)
            if root and self.chance(.5):
                self.run_backward([root], retain=True)
            elif root:
                self.run_grad([root], create=depth == 0)

    def make(self):
        self.second_order = self.chance(.5)
        for _ in range(self.random.randint(1, 3)):
            self.leaf(self.shape())
        self.ops(self.random.randint(2, 9))
        phases = self.random.randint(1, 3)
        for i in range(phases):
            if not self.ended:
                self.phase(i == phases - 1)
                if self.chance(.3):
                    self.special()
                self.end_modes()
                if self.chance(.15):
                    self.clear()
        self.drop_unused()
        return self.program

    def drop_unused(self):
        used = {n for s in self.program.statements for n in s.inputs}
        self.program.leaves = [leaf for leaf in self.program.leaves if leaf.name in used]
