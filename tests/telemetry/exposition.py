"""Reads Prometheus' text format (version 0.0.4), strictly, without a library of it.

Source: prometheus.io/docs/instrumenting/exposition_formats. What is refused here, a server may take.
"""
import math
import re

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="')
UNITS = ("_total", "_seconds", "_bytes", "_info")


class Metric:
    def __init__(self, name, kind, help_text):
        self.name, self.kind, self.help = name, kind, help_text
        self.samples = []  # (labels, value)


def unescaped(text, also):
    out, at = "", 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
            assert at < len(text) and text[at] in "\\n" + also, f"bad escape in {text!r}"
            out += "\n" if text[at] == "n" else text[at]
        else:
            assert text[at] not in also, f"{text[at]} without a backslash in {text!r}"
            out += text[at]
        at += 1
    return out


def labels_of(text):
    """Of what stands behind a name, from `{` on; and the rest of the line."""
    labels, at = {}, 1
    while text[at] != "}":
        match = LABEL.match(text, at)
        assert match, f"no label at {text[at:]!r}"
        end = at = match.end()
        while text[end] != '"':
            end += 2 if text[end] == "\\" else 1
        assert match[1] not in labels, f"label {match[1]} twice"
        assert not match[1].startswith("__"), match[1]
        labels[match[1]] = unescaped(text[at:end], '"')
        at = end + 1
        if text[at] == ",":
            at += 1
        else:
            assert text[at] == "}", f"neither comma nor brace: {text[at:]!r}"
    return labels, text[at + 1:]


def number_of(text):
    if text in ("NaN", "+Inf", "-Inf"):
        return {"NaN": math.nan, "+Inf": math.inf, "-Inf": -math.inf}[text]
    assert re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?", text), f"no number: {text!r}"
    return float(text)


def parse(data):
    """The metrics by name. AssertionError for whatever is not as it should be."""
    text = data.decode("utf-8")
    assert text.endswith("\n"), "the last line has no end"
    metrics, current, pending = {}, None, None
    for line in text[:-1].split("\n"):
        assert line and "\r" not in line, repr(line)
        if line.startswith("# HELP "):
            name, help_text = line[7:].split(" ", 1)
            pending = (name, unescaped(help_text, ""))
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert pending and pending[0] == name, f"HELP and TYPE of {name} are apart"
            assert kind in ("gauge", "counter") and name not in metrics and NAME.fullmatch(name), line
            assert (kind == "counter") == name.endswith("_total"), line
            current = metrics[name] = Metric(name, kind, pending[1])
            pending = None
        else:
            assert not line.startswith("#") and pending is None, line
            name = NAME.match(line)[0]
            assert current and name == current.name, f"{name} stands elsewhere than its TYPE"
            rest = line[len(name):]
            labels, rest = labels_of(rest) if rest.startswith("{") else ({}, rest)
            assert re.fullmatch(r" \S+", rest), rest
            assert labels not in [other for other, _ in current.samples], f"{line} is there twice"
            current.samples.append((labels, number_of(rest[1:])))
    assert pending is None
    for metric in metrics.values():
        assert metric.samples, f"{metric.name} has no sample"
    return metrics


def self_test():
    good = b'# HELP a_total T\\\\ \\n.\n# TYPE a_total counter\na_total{b="\\"\\\\\\n,}",c="\xc3\xa4"} 1.5e-3\n'
    parsed = parse(good)["a_total"]
    assert parsed.samples == [({"b": '"\\\n,}', "c": "\u00e4"}, 0.0015)], parsed.samples
    assert parsed.help == "T\\ \n."
    bad = [good[:-1], good + good, good.replace(b"1.5e-3", b"1,5"), good.replace(b"counter", b"gauge"),
           good.replace(b'\\"', b'"'), good.replace(b"# TYPE", b"#TYPE"), b"a 1\n",
           good.replace(b"\\\\\\n,", b"\\x,"), good + b'a_total{b="\\"\\\\\\n,}",c="\xc3\xa4"} 2\n']
    for text in bad:
        try:
            parse(text)
        except (AssertionError, IndexError, ValueError):
            continue
        raise AssertionError(f"taken: {text!r}")
