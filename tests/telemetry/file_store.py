"""Reads a run of MLflow's file store as MLflow 2.x does, without it.

Source: mlflow/store/tracking/file_store.py and mlflow/utils/validation.py. Whatever these would
refuse is an AssertionError.
"""
import json
import os
import posixpath
import re

RUN_KEYS = {
    "artifact_uri", "deleted_time", "end_time", "entry_point_name", "experiment_id",
    "lifecycle_stage", "run_id", "run_name", "run_uuid", "source_name", "source_type",
    "source_version", "start_time", "status", "tags", "user_id"}
EXPERIMENT_KEYS = {"artifact_location", "creation_time", "experiment_id", "last_update_time",
                   "lifecycle_stage", "name"}
RUNNING, FINISHED, FAILED, KILLED = 1, 3, 4, 5


def scalar(text):
    if text.startswith('"'):
        return json.loads(text)
    if text in ("null", "''", "[]"):
        return {"null": None, "''": "", "[]": []}[text]
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    assert re.fullmatch(r"[a-z]+", text) and text not in ("true", "false", "yes", "no", "on", "off")
    return text


def meta(folder):
    with open(os.path.join(folder, "meta.yaml"), encoding="utf-8") as file:
        text = file.read()
    values = {}
    for line in text.splitlines():
        key, value = line.split(": ", 1)
        assert key not in values
        values[key] = scalar(value)
    try:  # the reader of MLflow's own, where it is installed
        import yaml
        assert yaml.safe_load(text) == values, (yaml.safe_load(text), values)
    except ImportError:
        pass
    return values


def files_in(folder):
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            key = os.path.relpath(path, folder)
            assert re.fullmatch(r"[/\w.\- ]*", key) and posixpath.normpath(key) == key, key
            yield key, path


def metric_line(line):
    parts = line.strip().split(" ")
    assert len(parts) == 3 and line.endswith("\n"), repr(line)
    return int(parts[0]), float(parts[1]), int(parts[2])


class Run:
    def __init__(self, store, experiment, run):
        folder = os.path.join(store, experiment, run)
        self.meta = meta(folder)
        assert set(self.meta) == RUN_KEYS, set(self.meta) ^ RUN_KEYS
        assert self.meta["experiment_id"] == experiment and self.meta["run_id"] == run
        assert re.fullmatch(r"[a-zA-Z0-9][\w\-]{0,255}", run) and self.meta["run_uuid"] == run
        assert self.meta["source_type"] == 4 and self.meta["lifecycle_stage"] == "active"
        self.folder = folder
        self.params, self.tags, self.metrics = {}, {}, {}
        for into, kind in ((self.params, "params"), (self.tags, "tags")):
            for key, path in files_in(os.path.join(folder, kind)):
                with open(path, encoding="utf-8") as file:
                    into[key] = file.read()
        for key, path in files_in(os.path.join(folder, "metrics")):
            with open(path, encoding="utf-8") as file:
                lines = file.readlines()
            assert lines, f"{key} has no values, which MLflow refuses"
            self.metrics[key] = [metric_line(line) for line in lines]
        assert self.tags["mlflow.runName"] == self.meta["run_name"]

    def values(self, key):
        """By step; each is there once."""
        rows = self.metrics[key]
        steps = [step for _, _, step in rows]
        assert len(set(steps)) == len(steps), f"{key}: a step is there twice"
        assert steps == sorted(steps), f"{key}: steps are out of order"
        return {step: value for _, value, step in rows}


class Store:
    def __init__(self, folder):
        self.folder = folder
        self.experiments = {}
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if os.path.isdir(path) and name != ".trash":
                values = meta(path)
                assert set(values) == EXPERIMENT_KEYS and values["experiment_id"] == name
                self.experiments[values["name"]] = name

    def runs(self, experiment):
        number = self.experiments[experiment]
        path = os.path.join(self.folder, number)
        return [Run(self.folder, number, name) for name in sorted(os.listdir(path))
                if os.path.isdir(os.path.join(path, name))]
