"""Dumps what a PyTorch model computes, in the format that `accuracy compare` reads (docs/dump.md).

    from torch_dump import TorchDump

    dump = TorchDump(model, "dump.json", case="case")
    for tokens, labels in batches:
        with dump.step() as step:
            for micro_batch in ...:                      # one or more
                step.micro_batch(tokens, labels, loss_mask)
                loss = ...
                loss.backward()
            step.gradients()                             # before they are clipped
            optimizer.step()
            step.result(loss=loss.item(), grad_norm=..., lr=...)
            optimizer.zero_grad()
    dump.close()

`dump.json` is the same dump configuration that pretrain_gpt --dump takes. Of each module the inputs and
outputs of the forward pass are written and their gradients in backward, of each parameter its
gradient, its value after the update, and what the update has changed. Iterations count from 0.

With `case` the steps become a replay case (docs/replay.md) beside the dump: initial weights, the
batch and the result of every step, gradients and updated weights of the first three (`case_steps`), and
what the modules take and give for the first row of the first step, from which Tapestry repeats the training. `pretrain_gpt --find_fault CASE` takes it as it is (docs/accuracy.md).

Needs PyTorch 1.13 or later and NumPy; one file, to be copied next to the program that uses it.
"""

import collections
import contextlib
import hashlib
import json
import os
import re
import shutil
import struct
import time

import numpy as np
import torch

STATISTICS = collections.OrderedDict([
    ("max", "Max Value"), ("min", "Min Value"), ("avg", "Avg Value"), ("count", "Count"),
    ("negative zero count", "Negative Zero Count"), ("positive zero count", "Positive Zero Count"),
    ("nan count", "NaN Count"), ("negative inf count", "Negative Inf Count"),
    ("positive inf count", "Positive Inf Count"), ("zero count", "Zero Count"), ("md5", "MD5"),
    ("l2norm", "L2Norm Value"), ("bits", "Bits")])
FIRST_COLUMNS = ["Op Type", "Op Name", "Task ID", "Stream ID", "Timestamp", "IO", "Slot", "Data Size",
                 "Data Type", "Shape"]
LAST_COLUMNS = ["Module", "Pass", "Micro Batch", "Samples", "Global Shape", "Begin", "State", "Source",
                "File"]
MAX_FILE_NAME = 255


class Config:
    """The dump configuration: those of its fields that have a meaning here. The others may only have
    their defaults."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.text = file.read()
        whole = json.loads(self.text)
        common = dict(whole.get("common_dump_settings", {}))
        e2e = dict(whole.get("e2e_dump_settings", {}))

        def take(name, default):
            return common.pop(name, default)

        self.path = take("path", "") or self._default_path()
        if not os.path.isabs(self.path):
            raise ValueError(f"{path}: path: '{self.path}' is not absolute")
        self.net_name = take("net_name", "Net")
        self.iterations = self._iterations(take("iteration", "all"))
        self.saved_data = take("saved_data", "tensor")
        if self.saved_data not in ("tensor", "statistic", "full"):
            raise ValueError(f"{path}: saved_data: '{self.saved_data}' is none of tensor, statistic, full")
        sides = take("input_output", 0)
        self.inputs, self.outputs = sides in (0, 1), sides in (0, 2)
        kernels = take("kernels", [])
        self.kernels = kernels if take("dump_mode", 0) == 1 else None
        self.devices = take("support_device", list(range(8)))
        chosen = take("statistic_category", ["max", "min", "l2norm"])
        for name in chosen:
            if name not in STATISTICS:
                raise ValueError(f"{path}: statistic_category: '{name}' is none of {', '.join(STATISTICS)}")
        self.statistics = [s for s in STATISTICS if s in chosen] if self.saved_data != "tensor" else []
        defaults = {"op_debug_mode": 0, "file_format": "npy", "overflow_number": 0}
        for name, value in common.items():
            if name not in defaults or value != defaults[name]:
                raise ValueError(f"{path}: {name}: {value!r} is not understood here")
        for name in ("enable", "trans_flag", "stat_calc_mode", "device_stat_precision_mode", "sample_num"):
            e2e.pop(name, None)
        for name, value in e2e.items():
            if value:
                raise ValueError(f"{path}: {name}: {value!r} is not understood here")

    @staticmethod
    def _default_path():
        data = os.environ.get("MS_DIAGNOSTIC_DATA_PATH", "")
        if not data:
            raise ValueError("path is empty, and so is MS_DIAGNOSTIC_DATA_PATH")
        return os.path.join(data, "debug_dump")

    @staticmethod
    def _iterations(text):
        if text.strip() == "all":
            return None
        ranges = []
        for item in text.split("|"):
            match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", item)
            if not match:
                raise ValueError(f"iteration: '{item}' in \"{text}\" is no iteration")
            ranges.append((int(match[1]), int(match[2] or match[1])))
        return ranges

    def wants_iteration(self, iteration):
        return self.iterations is None or any(a <= iteration <= b for a, b in self.iterations)

    def wants_op(self, op_type, op_name):
        if self.kernels is None:
            return True
        for kernel in self.kernels:
            regex = re.fullmatch(r"name-regex\((.*)\)", kernel)
            if regex:
                if re.fullmatch(regex[1], op_name):
                    return True
            elif "/" in kernel or "-op" in kernel:
                if kernel == op_name:
                    return True
            elif kernel.lower() in op_name.lower() or kernel.lower() in op_type.lower():
                return True
        return False


def dtype_name(tensor):
    return str(tensor.dtype).replace("torch.", "")


def to_numpy(tensor):
    """The values; bfloat16, which NumPy does not have, as float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).contiguous().numpy()


def raw_bytes(tensor):
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().tobytes()


def significant_bits(values):
    """The most binary digits that a finite value needs, without zeros behind the last 1."""
    values = values[np.isfinite(values) & (values != 0)].astype(np.float64)
    if values.size == 0:
        return 0
    mantissa, _ = np.frexp(np.abs(values))
    digits = (mantissa * 2.0**53).astype(np.int64)  # the highest of 53 is 1
    used = np.bitwise_or.reduce(digits)
    return 53 - int(np.log2(float(used & -used)))


def statistics_of(tensor, names):
    values = to_numpy(tensor)
    wide = values.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    nothing = finite.size == 0
    found = {
        "max": lambda: np.nan if nothing else finite.max(),
        "min": lambda: np.nan if nothing else finite.min(),
        "avg": lambda: np.nan if nothing else finite.mean(),
        "count": lambda: wide.size,
        "negative zero count": lambda: (wide < 0).sum(),
        "positive zero count": lambda: (wide > 0).sum(),
        "nan count": lambda: np.isnan(wide).sum(),
        "negative inf count": lambda: np.isneginf(wide).sum(),
        "positive inf count": lambda: np.isposinf(wide).sum(),
        "zero count": lambda: (wide == 0).sum(),
        "md5": lambda: hashlib.md5(raw_bytes(tensor)).hexdigest(),
        "l2norm": lambda: np.sqrt(np.square(finite).sum()),
        "bits": lambda: significant_bits(wide),
    }
    return [number_text(found[name]()) for name in names]


def number_text(value):
    if isinstance(value, str):
        return value
    value = float(value)
    return str(int(value)) if value == np.floor(value) and abs(value) < 2**53 else repr(value)


def csv_line(fields):
    quoted = ['"' + f.replace('"', '""') + '"' if re.search(r'[,"\n\r]', f) else f for f in fields]
    return ",".join(quoted) + "\n"


def shape_text(shape):
    return "(" + ",".join(str(size) for size in shape) + ")"


def samples_text(samples, axis):
    pieces = []
    for sample in samples:
        if pieces and pieces[-1][1] == sample - 1:
            pieces[-1][1] = sample
        else:
            pieces.append([sample, sample])
    text = " ".join(str(a) if a == b else f"{a}-{b}" for a, b in pieces)
    return text + (f"@{axis}" if text and axis else "")


def tensors_in(value):
    """The tensors of what a module takes or gives, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for item in value for tensor in tensors_in(item)]


class _Iteration:
    """The files of an iteration. They have their final folder when all of them are there."""

    def __init__(self, config, rank, iteration):
        self.config = config
        graph = os.path.join(config.path, f"rank_{rank}", config.net_name, "0")
        self.folder = os.path.join(graph, f".{iteration}.unfinished")
        self.final = os.path.join(graph, str(iteration))
        self.order = []
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        table = "statistic.csv" if config.statistics else "tensors.csv"
        self.table = open(os.path.join(self.folder, table), "w", encoding="utf-8", newline="")
        self.table.write(csv_line(FIRST_COLUMNS + [STATISTICS[s] for s in config.statistics] +
                                  LAST_COLUMNS))

    def write(self, row, tensor):
        if not self.config.wants_op(row["Op Type"], row["Op Name"]):
            return
        if not (self.config.inputs if row["IO"] == "input" else self.config.outputs):
            return
        tensor = tensor.detach()
        shape = shape_text(tensor.shape)
        row.update({"Stream ID": "0", "Timestamp": str(time.time_ns() // 1000),
                    "Data Size": str(tensor.numel() * tensor.element_size()),
                    "Data Type": dtype_name(tensor), "Shape": shape, "Global Shape": shape,
                    "Begin": shape_text([0] * tensor.dim()), "State": "whole", "File": ""})
        if self.config.saved_data != "statistic":
            row["File"] = self._save(row, tensor)
        fields = [row[name] for name in FIRST_COLUMNS]
        fields += statistics_of(tensor, self.config.statistics) if self.config.statistics else []
        self.table.write(csv_line(fields + [row[name] for name in LAST_COLUMNS]))
        self.table.flush()
        if not self.order or self.order[-1] != row["Op Name"]:
            self.order.append(row["Op Name"])

    def _save(self, row, tensor):
        ending = ".".join(["", row["Task ID"], row["Stream ID"], row["Timestamp"], row["IO"], row["Slot"],
                           "DefaultFormat", row["Data Type"], "npy"])
        whole = row["Op Type"] + "." + row["Op Name"]
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", whole)
        if len(name) + len(ending) > MAX_FILE_NAME:
            checksum = "~" + hashlib.md5(whole.encode()).hexdigest()[:16]
            name = name[:MAX_FILE_NAME - len(ending) - len(checksum)] + checksum
        np.save(os.path.join(self.folder, name + ending), to_numpy(tensor))
        return name + ending

    def finish(self):
        self.table.close()
        shutil.rmtree(self.final, ignore_errors=True)
        os.rename(self.folder, self.final)


class _Case:
    """A replay case: weights, batches and results of steps."""

    def __init__(self, folder, model, rank):
        self.folder, self.rank = folder, rank
        os.makedirs(folder, exist_ok=True)
        config = getattr(model, "config", None)
        if rank == 0:
            if hasattr(config, "to_json_string"):
                self._text("config.json", config.to_json_string())
            save_safetensors(os.path.join(folder, "init.safetensors"), named_weights(model))
            self._text("trace.jsonl", "")

    def _text(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def batch(self, iteration, parts):
        """`parts`: of each micro-batch tokens, labels, mask."""
        folder = os.path.join(self.folder, "data", f"step_{iteration + 1}", f"rank_{self.rank}")
        os.makedirs(folder, exist_ok=True)
        for name, column in zip(("tokens", "labels", "loss_mask"), zip(*parts)):
            if all(tensor is not None for tensor in column):
                dtype = np.float32 if name == "loss_mask" else np.int64
                values = np.concatenate([to_numpy(tensor).astype(dtype) for tensor in column])
                np.save(os.path.join(folder, name + ".npy"), values)

    def tensors(self, kind, iteration, tensors):
        if self.rank == 0:
            save_safetensors(os.path.join(self.folder, f"{kind}_step_{iteration + 1}.safetensors"), tensors)

    def result(self, iteration, numbers):
        if self.rank == 0:
            with open(os.path.join(self.folder, "trace.jsonl"), "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": iteration + 1, **numbers}) + "\n")


def named_weights(model):
    """Parameters under their names; of one that several modules share the first."""
    return collections.OrderedDict((name, p.detach()) for name, p in model.named_parameters())


def save_safetensors(path, tensors):
    kinds = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16"}
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        blob = raw_bytes(tensor)
        header[name] = {"dtype": kinds[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(blobs)


class Step:
    """One training step; made by TorchDump.step()."""

    def __init__(self, dump, iteration):
        self._dump = dump
        self._iteration = iteration
        self._parts = []
        self._weights = {}

    def micro_batch(self, tokens, labels=None, loss_mask=None, samples=None):
        """Says what the next forward pass sees: [rows, seq_length]. `samples`: global numbers of the
        rows; rows are counted over all steps if it is left out."""
        self._dump._begin_micro_batch(len(self._parts), tokens, samples)
        self._parts.append((tokens, labels, loss_mask))

    def gradients(self):
        """To be called when all gradients are complete and before they are clipped."""
        dump = self._dump
        gradients = collections.OrderedDict(
            (name, p.grad) for name, p in dump.model.named_parameters() if p.grad is not None)
        for name, gradient in gradients.items():
            dump._write_parameter("Gradients/" + name, "backward", gradient)
        if dump._case is not None and self._iteration < dump._case_steps:
            dump._case.tensors("grads", self._iteration, gradients)
        if dump._writes:
            self._weights = {name: p.detach().clone() for name, p in dump.model.named_parameters()}

    def result(self, **numbers):
        """Called after the update, with loss, grad_norm, lr: what the step's line in trace.jsonl has."""
        dump = self._dump
        for name, p in dump.model.named_parameters():
            if name in self._weights:
                dump._write_parameter(name, "optimizer", p)
                dump._write_parameter("Updates/" + name, "optimizer", p.detach() - self._weights[name])
        if dump._case is not None:
            if self._iteration < dump._case_steps:
                dump._case.tensors("weights", self._iteration, named_weights(dump.model))
            dump._case.result(self._iteration, {k: float(v) for k, v in numbers.items()})

    def _end(self):
        dump = self._dump
        if dump._case is not None and self._parts:
            dump._case.batch(self._iteration, self._parts)
            if dump._values:
                dump._case.tensors("acts", self._iteration, dump._values)
            dump._values = {}


class TorchDump:
    """Watches a model. `config`: path of a dump configuration. `rank`: of this process among the
    data-parallel ones, each of which sees rows of its own; `local_rank`: on its host. `batch_first`:
    False if the model's activations are [seq_length, rows, ...]. `case`: folder of a replay case, with
    gradients and weights of the first `case_steps` steps."""

    def __init__(self, model, config, case=None, rank=0, local_rank=None, batch_first=True, case_steps=3):
        self.model = model
        self._config = Config(config)
        self._rank = rank
        self._batch_first = batch_first
        self._wanted = (rank if local_rank is None else local_rank) in self._config.devices
        self._case = _Case(case, model, rank) if case else None
        self._case_steps = case_steps
        self._iteration = 0
        self._sample = 0
        self._writes = False
        self._files = None
        self._micro_batch = 0
        self._samples, self._rows, self._tokens = [], 0, 0
        self._task = 0
        self._values = {}  # of the first row of a case's first step, for its acts_step_1
        self._running = []
        self._hooks = []
        self._in_place = []
        if self._wanted or self._case is not None:
            self._attach()
        if self._wanted:
            metadata = os.path.join(self._config.path, f"rank_{rank}", ".dump_metadata")
            os.makedirs(metadata, exist_ok=True)
            with open(os.path.join(metadata, "data_dump.json"), "w", encoding="utf-8") as file:
                file.write(self._config.text)

    @contextlib.contextmanager
    def step(self):
        """The next training step."""
        self._writes = self._wanted and self._config.wants_iteration(self._iteration)
        self._task = 0
        if self._writes:
            self._files = _Iteration(self._config, self._rank, self._iteration)
        step = Step(self, self._iteration)
        try:
            yield step
            step._end()
            if self._files is not None:
                self._finish()
        finally:
            if self._files is not None:
                self._files.table.close()
            self._files = None
            self._running = []
        self._iteration += 1

    def close(self):
        """Takes the hooks off the model."""
        for hook in self._hooks:
            hook.remove()
        for module in self._in_place:
            module.inplace = True
        self._hooks, self._in_place = [], []

    def _finish(self):
        self._files.finish()
        folder = os.path.join(self._config.path, f"rank_{self._rank}", "execution_order")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "ms_execution_order_graph_0.csv"), "w", encoding="utf-8") as file:
            file.write("NodeExecutionOrder-FullNameWithScope\n")
            file.writelines(csv_line([name]) for name in self._files.order)
        with open(os.path.join(folder, "ms_global_execution_order_graph_0.csv"), "a",
                  encoding="utf-8") as file:
            file.write(f"{self._iteration}\n")

    def _begin_micro_batch(self, number, tokens, samples):
        rows = tokens.shape[0]
        self._micro_batch = number
        self._rows, self._tokens = rows, tokens.numel()
        self._samples = list(range(self._sample, self._sample + rows)) if samples is None else list(samples)
        self._sample += rows

    def _attach(self):
        for path, module in self.model.named_modules():
            if getattr(module, "inplace", False):  # its input would be gone, and hooks forbid it
                module.inplace = False
                self._in_place.append(module)
            path = path or type(module).__name__
            self._hooks += [
                module.register_forward_pre_hook(lambda m, args, path=path: self._before(path, args)),
                module.register_forward_hook(
                    lambda m, args, out, path=path: self._after(path, out)),
                module.register_full_backward_hook(
                    lambda m, grad_in, grad_out, path=path: self._backward(path, grad_in, grad_out)),
            ]

    def _row(self, op_type, op_name, task, io, slot, **more):
        return {"Op Type": op_type, "Op Name": op_name, "Task ID": str(task), "IO": io, "Slot": str(slot),
                "Module": "", "Pass": "forward", "Micro Batch": str(self._micro_batch), "Samples": "",
                "Source": "", **more}

    def _place(self, tensor):
        """Which axis has the rows of the batch, as `Samples` says it."""
        if not self._samples or tensor.dim() == 0:
            return ""
        if self._batch_first or tensor.dim() == 1:
            return samples_text(self._samples, 0) if tensor.shape[0] in (self._rows, self._tokens) else ""
        return samples_text(self._samples, 1) if tensor.shape[1] == self._rows else ""

    def _write_all(self, path, name, task, io, tensors, pass_name):
        for slot, tensor in enumerate(tensors):
            if tensor is not None:
                self._files.write(self._row("Module", name, task, io, slot, Module=path, Pass=pass_name,
                                            Samples=self._place(tensor)), tensor)

    def _keep_values(self, path, io, tensors):
        """Of the case's first step what a module takes and gives first, of the first row of the batch."""
        if self._case is None or self._iteration > 0 or self._micro_batch > 0 or not self._samples:
            return
        for slot, tensor in enumerate(tensors):
            key = f"{path}/{io}.{slot}"
            axis = 0 if self._batch_first else 1
            if (tensor is None or key in self._values or not tensor.is_floating_point() or
                    tensor.dim() < 2 or tensor.shape[axis] != self._rows):
                continue
            self._values[key] = tensor.detach().narrow(axis, 0, 1).transpose(0, axis).clone()

    def _before(self, path, args):
        self._keep_values(path, "input", tensors_in(args))
        if self._files is None:
            return
        self._running.append((path, self._task))
        self._write_all(path, path, self._task, "input", tensors_in(args), "forward")
        self._task += 1

    def _after(self, path, out):
        self._keep_values(path, "output", tensors_in(out))
        if self._files is None:
            return
        while self._running:  # a module that has thrown has no end
            running, task = self._running.pop()
            if running == path:
                self._write_all(path, path, task, "output", tensors_in(out), "forward")
                return

    def _backward(self, path, grad_in, grad_out):
        if self._files is None:
            return
        name = "Gradients/" + path
        self._write_all(path, name, self._task, "input", grad_out, "backward")
        self._write_all(path, name, self._task, "output", grad_in, "backward")
        self._task += 1

    def _write_parameter(self, name, pass_name, tensor):
        if self._files is not None:
            row = self._row("Parameter", name, self._task, "output", 0, Pass=pass_name)
            row["Micro Batch"] = "0"
            self._files.write(row, tensor)
            self._task += 1
