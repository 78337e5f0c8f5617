"""Tests of tools/torch_dump.py; exits with 77, skipped, where there is no PyTorch."""

import csv
import json
import os
import sys
import tempfile
import unittest

try:
    import numpy as np
    import torch
    from torch import nn
except ImportError:
    print("skipped: no PyTorch")
    sys.exit(77)

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
sys.path.insert(0, os.path.join(HERE, "..", "data", "torch_dump"))
import make_dump  # noqa: E402
import torch_dump  # noqa: E402


def table(folder):
    path = os.path.join(folder, "rank_0", "Net", "0", "0")
    name = [n for n in os.listdir(path) if n.endswith(".csv")][0]
    with open(os.path.join(path, name), encoding="utf-8", newline="") as file:
        return path, list(csv.DictReader(file))


class Tests(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        torch.manual_seed(0)

    def config(self, **fields):
        path = os.path.join(self.dir.name, "dump.json")
        fields.setdefault("path", os.path.join(self.dir.name, "dump"))
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"common_dump_settings": fields}, file)
        return path

    def step(self, model, x, **fields):
        dump = torch_dump.TorchDump(model, self.config(**fields))
        with dump.step() as step:
            step.micro_batch(x)
            model(x).float().sum().backward()
            step.gradients()
            step.result(loss=0)
        dump.close()
        return table(os.path.join(self.dir.name, "dump"))

    def test_the_stored_dumps_are_what_the_tool_makes(self):
        torch.manual_seed(3)
        torch.set_num_threads(1)
        make_dump.train("llama", make_dump.Llama(), 1, self.dir.name)
        _, fresh = table(os.path.join(self.dir.name, "llama", "dump"))
        _, stored = table(os.path.join(make_dump.HERE, "llama", "dump"))
        same = ["Op Type", "Op Name", "Task ID", "IO", "Slot", "Data Type", "Shape", "Module", "Pass",
                "Micro Batch", "Samples", "Global Shape", "Begin", "State"]
        self.assertEqual([[row[c] for c in same] for row in fresh],
                         [[row[c] for c in same] for row in stored])
        for a, b in zip(fresh, stored):
            self.assertAlmostEqual(float(a["L2Norm Value"]), float(b["L2Norm Value"]),
                                   delta=1e-4 * float(b["L2Norm Value"]), msg=a["Op Name"])

    def test_rows_of_a_module(self):
        model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(inplace=True))
        path, rows = self.step(model, torch.ones(4, 3), saved_data="full")
        named = {(row["Op Name"], row["IO"]): row for row in rows}
        out = named["0", "output"]
        self.assertEqual((out["Shape"], out["Samples"], out["Pass"]), ("(4,2)", "0-3", "forward"))
        saved = np.load(os.path.join(path, out["File"]))
        np.testing.assert_array_equal(saved, model[0](torch.ones(4, 3)).detach().numpy())
        self.assertEqual(named["Gradients/0", "input"]["Pass"], "backward")
        self.assertEqual(named["Gradients/0.weight", "output"]["Op Type"], "Parameter")
        self.assertEqual(float(named["Updates/0.bias", "output"]["Max Value"]), 0)
        self.assertTrue(model[1].inplace)  # as it was
        self.assertEqual(len(model[0]._forward_hooks), 0)

    def test_statistics(self):
        x = torch.tensor([3, -1, 0, float("nan"), float("inf"), -float("inf"), 2])
        names = list(torch_dump.STATISTICS)
        found = dict(zip(names, torch_dump.statistics_of(x, names)))
        self.assertEqual([found[n] for n in ("max", "min", "count", "nan count", "zero count", "bits",
                                             "negative zero count", "positive inf count")],
                         ["3", "-1", "7", "1", "1", "2", "2", "1"])
        self.assertAlmostEqual(float(found["l2norm"]), 14**0.5)
        y = torch.arange(1, 5) / 3
        self.assertEqual(torch_dump.statistics_of(y.bfloat16().float(), ["bits"]), ["8"])
        self.assertEqual(torch_dump.statistics_of(torch.zeros(0), ["max", "md5"]),
                         ["nan", "d41d8cd98f00b204e9800998ecf8427e"])

    def test_bfloat16_is_saved_as_float32_under_its_own_name(self):
        model = nn.Linear(3, 2).bfloat16()
        path, rows = self.step(model, torch.ones(4, 3).bfloat16())
        row = [r for r in rows if r["Op Name"] == "Linear" and r["IO"] == "output"][0]
        self.assertEqual((row["Data Type"], row["Data Size"]), ("bfloat16", "16"))
        self.assertEqual(np.load(os.path.join(path, row["File"])).dtype, np.float32)

    def test_what_is_chosen(self):
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        _, rows = self.step(model, torch.ones(4, 3), input_output=2, dump_mode=1,
                            kernels=["name-regex([01])"], saved_data="statistic")
        self.assertEqual([(r["Op Name"], r["IO"], r["File"]) for r in rows],
                         [("0", "output", ""), ("1", "output", "")])

    def test_a_step_that_fails_leaves_its_folder_unfinished(self):
        model = nn.Linear(3, 2)
        dump = torch_dump.TorchDump(model, self.config())
        with self.assertRaises(RuntimeError):
            with dump.step() as step:
                step.micro_batch(torch.ones(4, 2))
                model(torch.ones(4, 2))
        folder = os.path.join(self.dir.name, "dump", "rank_0", "Net", "0")
        self.assertEqual(os.listdir(folder), [".0.unfinished"])

    def test_wrong_configurations(self):
        for fields, word in (({"path": "relative"}, "absolute"), ({"saved_data": "all"}, "saved_data"),
                             ({"iteration": "x"}, "iteration"), ({"op_debug_mode": 3}, "op_debug_mode"),
                             ({"statistic_category": ["median"]}, "median"), ({"itration": "0"}, "itration")):
            with self.assertRaisesRegex(ValueError, word):
                torch_dump.Config(self.config(**fields))

    def test_a_case_holds_what_the_step_saw(self):
        make_dump.train("gpt2", make_dump.Gpt2(), 2, self.dir.name)
        case = os.path.join(self.dir.name, "gpt2", "case")
        tokens = np.load(os.path.join(case, "data", "step_1", "rank_0", "tokens.npy"))
        self.assertEqual((tokens.shape, tokens.dtype), ((2, 6), np.int64))
        with open(os.path.join(case, "trace.jsonl"), encoding="utf-8") as file:
            line = json.loads(file.read())
        self.assertEqual(line["step"], 1)
        self.assertGreater(line["loss"], 0)


if __name__ == "__main__":
    unittest.main()
