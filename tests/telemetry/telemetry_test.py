"""What other programs see of a run: Prometheus' text in a file and over HTTP, MLflow's files, logs
as JSON. Everything is read by readers of their own and held against metrics.jsonl.

  telemetry_test.py PRETRAIN_GPT SCRATCH [TEST...]
"""
import json
import math
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

import exposition
import file_store

PROGRAM, SCRATCH = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
PATIENCE = 120  # seconds for whatever takes one; nothing here is timed
NAME = 'a "b"\\c \u00e4'  # every character that a label must escape but line breaks
TEXT = "".join(f"And king {i * 7 % 11} went up to city {i * 5 % 13}.\n" for i in range(400))
CONFIG = {
    "training_config": {"seed": 7, "num_threads": 1, "log_interval": 1, "log_format": "json"},
    "dataset_config": {"text": "[text.txt]", "tokenizer_type": "character", "split": "90,10",
                       "batch_size": 2},
    "model_config": {"vocab_size": 128, "num_layers": 1, "hidden_size": 16, "ffn_hidden_size": 32,
                     "num_attention_heads": 2, "seq_length": 16},
    "optimizer_config": {"learning_rate": 1e-3},
    "telemetry": {},
}
RECORD_KEYS = ["time", "level", "rank", "host", "message"]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?([-+]\d\d:\d\d|Z)")


def as_number(value):
    """Of metrics.jsonl, and of logs, which write what is not finite as texts."""
    return float(value)


def equal(one, other):
    return one == other or (math.isnan(one) and math.isnan(other))


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = os.path.join(SCRATCH, self.id().rsplit(".", 1)[1])
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.running = None
        self.write("text.txt", TEXT)

    def tearDown(self):
        if self.running is not None and self.running.poll() is None:
            self.running.kill()
            self.running.wait()

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def configure(self, **sections):
        lines = []
        for section, keys in CONFIG.items():
            keys = {**keys, **sections.get(section, {})}
            lines.append(f"{section}:" if keys else f"{section}: {{}}")
            lines += [f"  {key}: {value}" for key, value in keys.items()]
        self.write("run.yaml", "\n".join(lines) + "\n")

    def start(self, *words):
        with open(self.path("out"), "wb") as out, open(self.path("err"), "wb") as err:
            self.running = subprocess.Popen([PROGRAM, "--config_path", "run.yaml", *words],
                                            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=err)
        return self.running

    def said(self):
        return (self.read("out") + self.read("err")).decode("utf-8", "replace")

    def end(self, code):
        self.assertEqual(self.running.wait(PATIENCE), code, self.said())

    def run_it(self, code, *words):
        self.start(*words)
        self.end(code)

    def until(self, found, what):
        end = time.monotonic() + PATIENCE
        while True:
            result = found()
            if result:
                return result
            self.assertIsNone(self.running.poll(), f"ended before: {what}\n{self.said()}")
            self.assertLess(time.monotonic(), end, f"in vain: {what}\n{self.said()}")
            time.sleep(0.05)

    def records(self, name):
        """Of a file of JSON lines; its last line may be being written."""
        lines = self.read(name).decode("utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def metrics(self):
        return self.records("output/metrics.jsonl")

    def sample(self, metrics, name, **labels):
        found = [value for of, value in metrics[name].samples if labels.items() <= of.items()]
        self.assertEqual(len(found), 1, f"{name} {labels}")
        return found[0]

    def prom(self, name="output/metrics.prom"):
        return exposition.parse(self.read(name))

    def state(self, metrics):
        on = [of["state"] for of, value in metrics["tapestry_run_state"].samples if value == 1]
        self.assertEqual(len(on), 1)
        self.assertEqual(len(metrics["tapestry_run_state"].samples), 4)
        return on[0]

    def url(self):
        def find():
            match = re.search(r"metrics at (http://[0-9.:]+)/metrics", self.said())
            return match and match[1]
        return self.until(find, "the log names the port")


class Values(Case):
    def check_prom(self, metrics, lines, steps):
        last = lines[-1]
        for name, value in {
                "tapestry_loss": last["loss"], "tapestry_gradient_norm": last["grad_norm"],
                "tapestry_learning_rate": last["lr"][0], "tapestry_loss_scale": last["loss_scale"],
                "tapestry_step_seconds": last["step_time_ms"] / 1000, "tapestry_epoch": last["epoch"],
                "tapestry_peak_memory_bytes": last["peak_bytes"], "tapestry_steps_total": steps,
                "tapestry_planned_steps": steps, "tapestry_samples_total": 2 * steps,
                "tapestry_tokens_total": sum(line["tokens"] for line in lines),
                "tapestry_skipped_steps_total": 0, "tapestry_nonfinite_steps_total": 0,
                "tapestry_gradient_norm_spikes_total": 0}.items():
            self.assertAlmostEqual(self.sample(metrics, name), value, delta=1e-12 * abs(value),
                                   msg=name)
        for kind, sizes in last["memory"].items():
            if kind == "process":  # not of tensors: tapestry_resident_bytes
                continue
            self.assertEqual(self.sample(metrics, "tapestry_memory_bytes", kind=kind),
                             sizes["current_bytes"])
        evaluated = [line for line in lines if "eval_loss" in line][-1]
        self.assertEqual(self.sample(metrics, "tapestry_evaluation_loss", part="validation"),
                         evaluated["eval_loss"])
        self.assertEqual(self.sample(metrics, "tapestry_evaluation_step", part="validation"),
                         evaluated["step"])
        self.assertGreater(self.sample(metrics, "tapestry_resident_bytes"), 1 << 20)
        for metric in metrics.values():
            for labels, _ in metric.samples:
                self.assertEqual((labels["run"], labels["host"], labels["rank"]),
                                 (NAME, socket.gethostname(), "0"))
        self.assertEqual(self.state(metrics), "finished")
        times = [self.sample(metrics, f"tapestry_{name}") for name in
                 ("start_time_seconds", "last_step_timestamp_seconds",
                  "last_checkpoint_timestamp_seconds")]
        now = time.time()
        for at in times:
            self.assertLess(abs(now - at), 2 * PATIENCE)
        self.assertLessEqual(times[0], times[1])
        self.assertEqual(self.sample(metrics, "tapestry_last_checkpoint_step"), steps)
        self.assertEqual(self.sample(metrics, "tapestry_run_info", ranks="1",
                                     output_dir=self.path("output")), 1)

    def check_records(self, lines):
        """Every line on the terminal and in the files is one object; steps have their numbers."""
        self.assertEqual(self.read("err"), b"")
        shown = self.records("out")
        kept = self.records("output/log/rank_0/info.log")
        for record in shown + kept:
            self.assertEqual(list(record)[:5], RECORD_KEYS)
            self.assertRegex(record["time"], TIME)
            self.assertEqual((record["rank"], record["host"]), (0, socket.gethostname()))
            self.assertIn(record["level"], ("info", "warning", "error"))
        kept_messages = [record["message"] for record in kept]
        for record in shown:
            self.assertIn(record["message"], kept_messages)
        for records in (shown, kept):
            steps = {record["step"]: record for record in records if "loss" in record}
            self.assertEqual(sorted(steps), [line["step"] for line in lines])
            for line in lines:
                record = steps[line["step"]]
                for key in ("step", "epoch", "loss", "grad_norm", "tokens", "loss_tokens", "finite",
                            "step_time_ms", "peak_bytes", "loss_scale"):
                    self.assertEqual(record[key], line[key], key)
                self.assertEqual(record["lr"], line["lr"][0])
                self.assertGreater(record["tokens_per_second"], 0)
                self.assertIn(f"Step:{line['step']}, Loss: ", record["message"])
            evaluations = {record["step"]: record for record in records if "eval_loss" in record}
            for line in lines:
                self.assertEqual("eval_loss" in line, line["step"] in evaluations)
                for key in ("eval_loss", "eval_perplexity"):
                    if key in line:
                        self.assertEqual(evaluations[line["step"]][key], line[key])

    def check_mlflow(self, run, lines):
        for line in lines:
            for key, value in line.items():
                if key == "step" or isinstance(value, (dict, list)):
                    continue
                self.assertEqual(run.values(key)[line["step"]], as_number(value), key)
            self.assertEqual(run.values("lr")[line["step"]], line["lr"][0])
            for tag, value in line["monitor"].items():
                self.assertEqual(run.values("monitor/" + tag)[line["step"]], as_number(value))
        for key, rows in run.metrics.items():
            self.assertLessEqual(len(rows), len(lines), key)
        self.assertEqual(run.meta["run_name"], NAME)
        self.assertEqual(run.meta["status"], file_store.FINISHED)
        self.assertGreaterEqual(run.meta["end_time"], run.meta["start_time"])
        self.assertEqual(run.params["optimizer_config.learning_rate"], "0.001")
        self.assertEqual(run.params["model_config.hidden_size"], "16")
        self.assertNotIn("training_config.profile", run.params)
        self.assertEqual(run.tags["mlflow.source.type"], "LOCAL")
        self.assertEqual(run.tags["tapestry.output_dir"], self.path("output"))
        with open(os.path.join(run.folder, "artifacts/config.yaml"), "rb") as file:
            self.assertEqual(file.read(), self.read("output/config.yaml"))
        self.assertEqual(run.meta["artifact_uri"],
                         "file://" + urllib.request.pathname2url(run.folder) + "/artifacts")

    def test_values_are_those_of_metrics_jsonl(self):
        self.configure(
            training_config={"training_iters": 5, "eval_interval": 2, "eval_iters": 1},
            monitor_config={},
            telemetry={"run_name": json.dumps(NAME, ensure_ascii=False), "prometheus": True,
                       "mlflow_dir": '"ml runs"', "mlflow_experiment": "tiny"})
        self.run_it(0, "--set", "monitor_config.monitor_on=True", "--set",
                    "monitor_config.weight_state_format=log")
        lines = self.metrics()
        self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4, 5])
        self.check_prom(self.prom(), lines, 5)
        self.check_records(lines)
        store = file_store.Store(self.path("ml runs"))
        self.assertEqual(list(store.experiments), ["tiny"])
        runs = store.runs("tiny")
        self.assertEqual(len(runs), 1)
        self.check_mlflow(runs[0], lines)
        # Another run of the same experiment, and one of another name.
        self.run_it(0, "--overwrite", "--set", "training_config.training_iters=1")
        self.assertIn("metrics.prom", os.listdir(self.path("output/old/run_1")))
        self.run_it(0, "--overwrite", "--set", "telemetry.mlflow_experiment=Default",
                    "--set", "training_config.training_iters=1")
        store = file_store.Store(self.path("ml runs"))
        self.assertEqual(store.experiments["Default"], "0")
        self.assertEqual((len(store.runs("tiny")), len(store.runs("Default"))), (2, 1))


def get(url, path, method="GET"):
    request = urllib.request.Request(url + path, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return answer.headers, answer.read()


def connection(url):
    host, port = url[len("http://"):].split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def answer_to(url, data):
    """All that comes back for these bytes."""
    with connection(url) as link:
        link.sendall(data)
        parts = []
        while True:
            try:
                part = link.recv(65536)
            except ConnectionResetError:
                break
            if not part:
                break
            parts.append(part)
    return b"".join(parts)


class WhileItTrains(Case):
    def begin(self, steps, **keys):
        self.configure(
            training_config={"training_iters": steps, "save_interval": 50,
                             "keep_checkpoint_max": 2},
            telemetry={"http_port": 0, "prometheus": True, "prometheus_interval": 0.1,
                       "mlflow_dir": "mlruns", **keys})
        self.start()
        return self.url()

    def step_shown(self, url):
        return self.sample(exposition.parse(get(url, "/metrics")[1]), "tapestry_steps_total")

    def check_answers(self, url):
        headers, body = get(url, "/metrics")
        self.assertEqual(headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        self.assertEqual(self.state(exposition.parse(body)), "running")
        headers, body = get(url, "/metrics?module=x", method="HEAD")
        self.assertEqual(body, b"")
        self.assertGreater(int(headers["Content-Length"]), 1000)
        self.assertRegex(get(url, "/healthz")[1].decode(), r"^running, step \d+ of \d+, \d+ s ago\n$")
        for method, path, code in (("GET", "/", 404), ("POST", "/metrics", 405),
                                   ("GET", "/metrics/../etc/passwd", 404)):
            with self.assertRaises(urllib.error.HTTPError) as raised:
                get(url, path, method)
            self.assertEqual(raised.exception.code, code)
            raised.exception.close()
        self.assertIn(b"400", answer_to(url, b"\x16\x03\x01\x02\x00\x01\r\n\r\n").split(b"\r\n")[0])
        long = answer_to(url, b"GET / HTTP/1.1\r\nA: " + b"x" * 20000 + b"\r\n\r\n")
        self.assertTrue(long == b"" or b" 431 " in long.split(b"\r\n")[0], long[:80])

    def test_asked_while_it_trains_then_killed_then_it_goes_on(self):
        url = self.begin(1_000_000)
        before = self.step_shown(url)
        self.until(lambda: self.step_shown(url) > before, "steps go on while it is asked")
        self.check_answers(url)
        # Clients that say nothing, or a letter now and then, and more of them than there is room for.
        silent = [connection(url) for _ in range(40)]
        try:
            for number, link in enumerate(silent):
                if number % 2:
                    try:
                        link.sendall(b"GET /met")
                    except OSError:  # closed for those who came later
                        pass
            at = self.step_shown(url)
            self.until(lambda: self.step_shown(url) > at, "neither steps nor answers are held up")
            closed = select.select(silent, [], [], 0)[0]
            self.assertGreaterEqual(len(closed), 40 - 16)
        finally:
            for link in silent:
                link.close()
        # The files grow while the run trains.
        self.until(lambda: self.sample(self.prom(), "tapestry_steps_total") > at, "the file is new")
        self.until(lambda: "tapestry_last_checkpoint_step" in self.prom(), "a checkpoint is seen")
        store = file_store.Store(self.path("mlruns"))
        self.assertEqual(store.runs("Default")[0].meta["status"], file_store.RUNNING)
        self.until(lambda: store.runs("Default")[0].metrics.get("loss"), "MLflow has values")
        self.running.kill()
        self.end(-signal.SIGKILL)
        self.assertEqual(self.state(self.prom()), "running")  # its last step tells that it is dead
        run = store.runs("Default")[0]
        killed_at = max(run.values("loss"))
        last = max(int(name[5:]) for name in os.listdir(self.path("output/checkpoint"))
                   if re.fullmatch(r"step_\d{8}", name))
        # It goes on: the same run, each step once, counters as if nothing had happened.
        total = last + 3
        self.run_it(0, "--set", "training_config.resume_training=True", "--set",
                    f"training_config.training_iters={total}")
        lines = self.metrics()
        self.assertEqual([line["step"] for line in lines], list(range(1, total + 1)))
        runs = store.runs("Default")
        self.assertEqual(len(runs), 1, f"killed at {killed_at}")
        self.assertEqual(runs[0].meta["run_id"], run.meta["run_id"])
        self.assertEqual(runs[0].meta["start_time"], run.meta["start_time"])
        self.assertEqual(runs[0].meta["status"], file_store.FINISHED)
        losses = runs[0].values("loss")
        self.assertEqual({line["step"]: line["loss"] for line in lines if line["step"] in losses},
                         losses)
        self.assertLessEqual(set(range(last + 1, total + 1)), set(losses))
        metrics = self.prom()
        self.assertEqual(self.state(metrics), "finished")
        self.assertEqual(self.sample(metrics, "tapestry_steps_total"), total)
        self.assertEqual(self.sample(metrics, "tapestry_samples_total"), 2 * total)
        self.assertEqual(self.sample(metrics, "tapestry_tokens_total"),
                         sum(line["tokens"] for line in lines))

    def test_stopped_by_a_signal(self):
        url = self.begin(1_000_000)
        self.until(lambda: self.step_shown(url) > 0, "a step is done")
        self.running.send_signal(signal.SIGTERM)  # no thread of ours takes it
        self.end(0)
        self.assertEqual(self.state(self.prom()), "stopped")
        self.assertEqual(file_store.Store(self.path("mlruns")).runs("Default")[0].meta["status"],
                         file_store.KILLED)
        for record in self.records("out"):
            self.assertEqual(list(record)[:5], RECORD_KEYS)
        self.assertEqual(self.read("err"), b"")


class OnATerminal(Case):
    def test_json_is_all_that_a_terminal_shows(self):
        self.configure(training_config={"training_iters": 3})
        main, other = pty.openpty()
        self.running = subprocess.Popen(
            [PROGRAM, "--config_path", "run.yaml"], cwd=self.folder, stdin=other, stdout=other,
            stderr=other, env={**os.environ, "TERM": "xterm"})
        os.close(other)
        shown = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # the program has closed its side
                break
            if not part:
                break
            shown += part
        os.close(main)
        self.assertEqual(self.running.wait(PATIENCE), 0, shown)
        records = [json.loads(line) for line in shown.decode("utf-8").split("\r\n")[:-1]]
        self.assertEqual([record["step"] for record in records if "loss" in record], [1, 2, 3])
        for record in records:
            self.assertEqual(list(record)[:5], RECORD_KEYS)


class WhatGoesWrong(Case):
    def test_a_run_that_fails_says_so(self):
        self.configure(training_config={"training_iters": 50, "max_nonfinite_steps": 2},
                       optimizer_config={"learning_rate": 1e30},
                       telemetry={"prometheus": True, "mlflow_dir": "mlruns"})
        self.run_it(1)
        metrics = self.prom()
        self.assertEqual(self.state(metrics), "failed")
        lines = self.metrics()
        self.assertEqual(self.sample(metrics, "tapestry_nonfinite_steps_total"),
                         sum(not line["finite"] for line in lines))
        self.assertGreater(self.sample(metrics, "tapestry_nonfinite_steps_total"), 0)
        self.assertTrue(equal(self.sample(metrics, "tapestry_loss"), as_number(lines[-1]["loss"])))
        run = file_store.Store(self.path("mlruns")).runs("Default")[0]
        self.assertEqual(run.meta["status"], file_store.FAILED)
        for line in lines:
            self.assertTrue(equal(run.values("loss")[line["step"]], as_number(line["loss"])))
        errors = self.records("err")
        self.assertEqual([record["level"] for record in errors], ["error"])
        self.assertEqual(errors, self.records("output/log/rank_0/error.log"))
        for record in self.records("out"):
            self.assertNotEqual(record["level"], "error")

    def test_steps_that_are_skipped_are_counted(self):
        self.configure(training_config={"training_iters": 4}, telemetry={"prometheus": True})
        self.run_it(0, "--set", "monitor_config.monitor_on=True", "--set",
                    "monitor_config.use_skip_data_by_global_norm=True", "--set",
                    "monitor_config.global_norm_spike_threshold=0.000001", "--set",
                    "monitor_config.global_norm_spike_count_threshold=100")
        self.assertTrue(all(line["skipped"] for line in self.metrics()))
        metrics = self.prom()
        for name, count in (("skipped_steps", 4), ("gradient_norm_spikes", 4),
                            ("nonfinite_steps", 0)):
            self.assertEqual(self.sample(metrics, f"tapestry_{name}_total"), count)
        self.assertTrue(all(record["skipped"] for record in self.records("out")
                            if "loss" in record))

    def test_a_port_that_is_taken_is_a_warning(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.configure(training_config={"training_iters": 2}, telemetry={"http_port": port})
            self.run_it(0)
        warnings = [record["message"] for record in self.records("out")
                    if record["level"] == "warning"]
        self.assertEqual(len(warnings), 1, warnings)
        self.assertRegex(warnings[0], rf"telemetry.http_port: cannot listen at 127.0.0.1 port {port}: "
                         r"Address already in use; the run goes on without it")
        self.assertEqual(len(self.metrics()), 2)

    def test_another_address_is_said_aloud(self):
        self.configure(training_config={"training_iters": 1},
                       telemetry={"http_port": 0, "http_address": "0.0.0.0"})
        self.run_it(0)
        self.assertRegex(self.said(), r"http_address 0\.0\.0\.0: whoever reaches this host")

    def test_what_is_refused(self):
        self.configure(training_config={"training_iters": 1, "log_format": "text"})
        for key, words in {
                "http_address=localhost": "must be an address in numbers: 127.0.0.1",
                "http_port=70000": "http_port",
                "prometheus_file=metrics.txt": "must end with .prom",
                "prometheus_file=none/a.prom": "none/a.prom: cannot create in folder none",
                "mlflow_dir=text.txt/mlruns": "text.txt/mlruns"}.items():
            self.run_it(2, "--set", f"telemetry.{key}", "--overwrite")
            self.assertIn(words, self.said())
        self.run_it(2, "--set", "training_config.log_format=xml")
        self.assertIn("log_format", self.said())

    def test_a_file_elsewhere_that_can_be_written_no_more(self):
        os.makedirs(self.path("collector"))
        self.configure(training_config={"training_iters": 1_000_000},
                       telemetry={"prometheus_file": "collector/run.prom",
                                  "prometheus_interval": 0.1})
        self.start()
        self.until(lambda: os.path.exists(self.path("collector/run.prom")), "the file is there")
        self.assertFalse(os.path.exists(self.path("output/metrics.prom")))
        shutil.rmtree(self.path("collector"))
        self.until(lambda: "collector/run.prom: cannot create" in self.said(), "a warning")
        os.makedirs(self.path("collector"))
        self.until(lambda: os.path.exists(self.path("collector/run.prom")), "it is there again")
        self.running.send_signal(signal.SIGTERM)
        self.end(0)
        self.assertEqual(self.said().count("cannot create in folder"), 1)
        self.assertEqual(self.state(self.prom("collector/run.prom")), "stopped")
        self.assertEqual(os.listdir(self.path("collector")), ["run.prom"])


if __name__ == "__main__":
    exposition.self_test()
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[3:]])
