#!/usr/bin/env python3
"""Tests bench/compare.py and bench/states.py with programs that only say what they are told to, bench/peer's
torch_about.py without PyTorch; and that the real programs print the state of the machine. No time is
asserted.

    compare_test.py FOLDER_OF_THE_BENCHMARK_PROGRAMS
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "peer")]
import states  # noqa: E402
import torch_about  # noqa: E402

# Takes the next of the states in the file beside it; the last one stays.
NEXT_STATE = """
import json, pathlib, sys
here = pathlib.Path(__file__).resolve().parent
def next_state():
    left = (here / "states").read_text().split()
    (here / "states").write_text(" ".join(left[1:] or left))
    return left[0]
"""

MACHINE = """
if "--round-trip" in sys.argv:
    print(json.dumps({"round_trip_ns": 51.0, "state": next_state()}))
else:
    rates = {"peak_gflops": 400.0}
    print(json.dumps({"gemm": {"float32": rates, "bfloat16": {**rates, "native": True}},
                      "arithmetic": {"float32": {"peak_gflops": 500.0}, "bfloat16": {"peak_gflops": 1000.0}},
                      "memory": {"peak_gbs": 70.0}, "threads": 2, "cpu_level": "avx512", "blas": "none"}))
"""

# The median step is 50 ms at 200 GFLOP/s, so the least, 40 ms, ran at 250.
STEP = """
with open(here / "calls", "a") as calls:
    print("tapestry", file=calls)
state = (here / "states").read_text().split()[0]
print(json.dumps({"step_ms": 50.0, "min_ms": 40.0, "gflops": 200.0, "peak_rss_mib": 90, "loss": 4.0,
                  "page_faults_per_step": 0.0, "state": state, "state_after": state}))
"""

PEER = """
if sys.argv[1].endswith("torch_about.py"):
    print(json.dumps({"torch": "2.13.0+cpu", "blas": "MKL 2025.0", "onednn": "3.9.1"}))
    sys.exit()
flags = {"--keep-memory", "--compile"} & set(sys.argv)
with open(here / "calls", "a") as calls:
    print("peer", *sorted(flags), file=calls)
ms = {0: 100.0, 1: 80.0, 2: 60.0}[len(flags)]
print(json.dumps({"step_ms": ms + 9, "min_ms": ms, "gflops": 100.0, "peak_rss_mib": 200, "loss": 4.0,
                  "page_faults_per_step": 9.0}))
"""


class Scripted:
    """A probe that gives these states in turn, and counts."""

    def __init__(self, *seen):
        self.left = list(seen)

    def __call__(self):
        return self.left.pop(0)


class InOneState(unittest.TestCase):
    def test_one_state_needs_no_second_attempt(self):
        probe = Scripted("near", "near", "near")
        runs = [lambda: (1, ["near", "near"]), lambda: (2, [])]
        self.assertEqual(states.in_one_state(runs, probe, 2), ([1, 2], "near"))
        self.assertEqual(probe.left, [])

    def test_a_change_between_the_sides_repeats_the_pair(self):
        probe = Scripted("near", "near", "far", "far", "far", "far")
        results = iter((1, 2, 3, 4))
        run = lambda: (next(results), [])
        said = []
        self.assertEqual(states.in_one_state([run, run], probe, 2, said.append), ([3, 4], "far"))
        self.assertIn("near, near, far", said[0])

    def test_a_change_that_only_a_run_saw_repeats_it(self):
        seen = iter((["near", "far"], ["near", "near"]))
        outcome = states.in_one_state([lambda: (0, next(seen))], lambda: "near", 1)
        self.assertEqual(outcome, ([0], "near"))

    def test_repeats_are_bounded(self):
        calls = []
        probe = Scripted(*["near", "far"] * 3)
        self.assertEqual(
            states.in_one_state([lambda: (calls.append(1), [])], probe, 2), ([None], states.CHANGED)
        )
        self.assertEqual(len(calls), 3)


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.here = pathlib.Path(folder.name)
        programs = {"machine_bench": MACHINE, "step_bench": STEP, "ops_bench": "", "python": PEER}
        for name, text in programs.items():
            path = self.here / name
            path.write_text(f"#!{sys.executable}\n{NEXT_STATE}{text}", encoding="utf-8")
            path.chmod(0o755)

    def compare(self, of_states, *arguments):
        (self.here / "states").write_text(of_states, encoding="utf-8")
        (self.here / "calls").write_text("", encoding="utf-8")
        command = [sys.executable, str(BENCH / "compare.py"), "--steps", "--presets", "char", "--rounds", "1"]
        command += ["--dtypes", "float32", "--build-dir", str(self.here), "--python", str(self.here / "python")]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
        self.calls = (self.here / "calls").read_text(encoding="utf-8").splitlines()
        self.about = done.stdout.splitlines()[0]
        return [dict(zip(rows[0], row)) for row in rows[1:]]

    def test_best_of_pytorch_share_and_state(self):
        (row,) = self.compare("near")
        self.assertEqual(self.calls, ["peer", "peer --keep-memory", "peer --compile --keep-memory", "tapestry"])
        self.assertIn("PyTorch 2.13.0+cpu (MKL 2025.0, oneDNN 3.9.1)", self.about)
        self.assertEqual(row["PyTorch 2.13 eager ms"], "100.0")
        self.assertEqual(row["PyTorch 2.13 kept ms"], "80.0")
        self.assertEqual(row["PyTorch 2.13 compiled ms"], "60.0")
        self.assertEqual(row["Tapestry ms"], "40.0")
        self.assertEqual(row["ratio to the best"], "1.50x")
        self.assertEqual(row["share of arithmetic"], "50 %")
        self.assertEqual(row["of the best product"], "62 %")
        self.assertEqual(row["state"], "near")

    def test_a_pair_in_two_states_runs_again(self):
        (row,) = self.compare("near near far", "--peer-modes", "eager")
        self.assertEqual(row["state"], "far")
        self.assertEqual(self.calls, ["peer", "tapestry"] * 2)

    def test_a_pair_that_never_lies_in_one_state_says_so(self):
        arguments = ("--peer-modes", "kept", "--state-repeats", "1")
        (row,) = self.compare("near far near far near far", *arguments)
        self.assertEqual(row["state"], states.CHANGED)
        self.assertEqual(len(self.calls), 4)

    def test_each_state_has_its_row(self):
        rows = self.compare("near near near far", "--rounds", "2", "--peer-modes", "eager")
        self.assertEqual([row["state"] for row in rows], ["far", "near"])


class AboutPyTorch(unittest.TestCase):
    def test_a_program_starts_again_with_its_memory_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "program.py"
            program.write_text(
                f"import sys\nsys.path.insert(0, {str(BENCH / 'peer')!r})\nimport torch_about\n"
                "print(torch_about.memory_kept(), flush=True)\ntorch_about.keep_memory()\nprint(sys.argv[1])\n",
                encoding="utf-8",
            )
            command = [sys.executable, str(program), "a b"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.splitlines(), ["False", "True", "a b"])

    def test_libraries_are_read_from_the_configuration(self):
        text = (
            "  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605 for Intel(R) 64\n"
            "  - Intel(R) MKL-DNN v3.7.1 (Git Hash 8d263e6)\n"
        )
        config = types.SimpleNamespace(show=lambda: text)
        seen = torch_about.about(types.SimpleNamespace(__config__=config, __version__="2.9.0+cpu"), True)
        expected = {"torch": "2.9.0+cpu", "blas": "MKL 2024.2", "onednn": "3.7.1", "compiled": True}
        self.assertEqual(seen, {**expected, "memory_kept": torch_about.memory_kept()})


class Programs(unittest.TestCase):
    folder = None

    def seen(self, program, *arguments):
        environment = dict(os.environ)
        command = [str(self.folder / program), *arguments]
        return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    def test_two_threads_have_a_round_trip(self):
        seen = self.seen("machine_bench", "--round-trip", "--threads", "2")
        if len(os.sched_getaffinity(0)) < 2:
            self.assertEqual(seen["state"], "none")
            return
        self.assertIn(seen["state"], ("near", "far"))
        self.assertGreater(seen["round_trip_ns"], 0)
        self.assertGreaterEqual(seen["round_trip_median_ns"], seen["round_trip_ns"])
        self.assertEqual(seen["round_trip_least_ns"], seen["round_trip_ns"])

    def test_one_thread_has_none(self):
        seen = self.seen("machine_bench", "--round-trip", "--threads", "1")
        self.assertEqual((seen["round_trip_ns"], seen["state"]), (0, "none"))

    def test_a_step_says_its_state(self):
        small = ("--preset", "tiny", "--batch", "1", "--seq", "16", "--steps", "1", "--warmup", "1")
        seen = self.seen("step_bench", *small)
        for when in ("", "_after"):
            self.assertIn(seen["state" + when], ("near", "far", "both", "none"))
            self.assertGreaterEqual(seen["round_trip_ns" + when], 0)


if __name__ == "__main__":
    Programs.folder = pathlib.Path(sys.argv.pop(1))
    unittest.main()
