#!/usr/bin/env python3
"""Writes the cases of golden_chat and chat_language: what Jinja2 (3.1, python3-jinja2) makes of templates,
set up as Python's transformers do.

  make_chat_cases.py

golden_chat/cases.jsonl: the templates of golden_chat/templates with conversations.
chat_language/cases.jsonl: snippets, one construct or two each, with the variables of its first line:
`text`, or `error` = what Jinja2 raised, or `refused` = what we say where we do not know what Jinja2 knows.
"""

import json
import pathlib

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


ENVIRONMENT = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
ENVIRONMENT.filters["tojson"] = tojson
ENVIRONMENT.globals["raise_exception"] = raise_exception


def rendered(template, variables):
    try:
        return {"text": ENVIRONMENT.from_string(template).render(**variables)}
    except Exception as error:  # whatever Python raises is an error of ours
        return {"error": str(error)}


def write(path, lines):
    with open(path, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def said(role, content, **more):
    return {"role": role, "content": content, **more}


CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "exact": None}}}
TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "The weather of a \"city\" <b>",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string"}, "days": {"type": ["integer", "null"], "default": 1.0},
            "unit": {"type": "string", "enum": ["°C", "K"]}, "other": {}}}}},
    {"type": "function", "function": {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}}}]
CONVERSATIONS = [
    [], [said("user", "  Hello\n")], [said("system", "Be brief."), said("user", "a"), said("assistant", " b "), said("user", "c")],
    [said("assistant", "I begin"), said("user", "no")], [said("user", "a"), said("user", "b")],
    [said("user", "x"), said("system", "late")], [said("user", ""), said("assistant", "")],
    [said("user", "{{ x }} {% if %} 😀 \\ \"q\""), said("assistant", "<t>\nwhy\n</t>\n\nbecause"), said("user", "?"),
     said("assistant", "<t>so</t>thus", thought="\nmine\n")],
    [said("user", "w"), said("assistant", None, tool_calls=[CALL, CALL["function"]]), said("tool", {"t": 1.5, "ok": True}),
     said("assistant", "", tool_calls=[{"function": {"name": "clock", "arguments": "{}"}}]),
     said("user", [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}])]]
EXTRAS = {"tools": [{}, {"tools": TOOLS}], "thoughts": [{}, {"think": False}]}


def golden_cases():
    for template in ("blocks", "strict", "tools", "thoughts"):
        source = (HERE / "golden_chat/templates" / f"{template}.jinja").read_text(encoding="utf-8")
        for messages in CONVERSATIONS:
            for extra in EXTRAS.get(template, [{}]):
                for prompt in (False, True):
                    case = {"template": template, "messages": messages, "add_generation_prompt": prompt,
                            "bos_token": "<s>", "eos_token": "</s>", "extra": extra}
                    given = {key: case[key] for key in ("messages", "add_generation_prompt", "bos_token", "eos_token")}
                    outcome = rendered(source, {**given, **extra})
                    yield {**case, **outcome}


def language_cases():
    snippets = (HERE / "chat_language/snippets.txt").read_bytes().decode().split("\n----\n")
    variables = json.loads(snippets[0])
    yield variables
    for snippet in snippets[1:]:
        refused = snippet.startswith("refused ")
        name, _, template = snippet.partition("\n") if refused else ("", "", snippet)
        outcome = rendered(template, variables)
        if refused:
            outcome = {"refused": name.removeprefix("refused ")}
        yield {"template": template, **outcome}


write(HERE / "golden_chat/cases.jsonl", ({"n": n, **case} for n, case in enumerate(golden_cases())))
write(HERE / "chat_language/cases.jsonl", language_cases())
