#!/usr/bin/env python3
"""Writes tests/data/golden_sft: examples for fine-tuning, their tokens, and which are learned.

Templates are rendered by Jinja2 (apt-get install python3-jinja2), tokens are those of a byte-level
BPE that is written down here once more, plainly. The form of the cases is that of the README beside
the reference cases: spans in code points of the text, answer = 1 for tokens that are learned.
"""

import json
import pathlib

import jinja2
import jinja2.sandbox

FOLDER = pathlib.Path(__file__).parent / "golden_sft"

TEMPLATES = {
    "plain": "{{ bos_token }}{% for m in messages %}[{{ m.role }}]\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
             "{% if add_generation_prompt %}[assistant]\n{% endif %}",
    # Shows what the assistant thought in its last message alone.
    "forgetful": "{% if tools %}{{ tools | tojson }}\n{% endif %}"
                 "{% for m in messages %}[{{ m.role }}]\n"
                 "{% if m.thought is defined and loop.last %}({{ m.thought }}){% endif %}"
                 "{{ m.content | trim }}{{ eos_token }}\n{% endfor %}"
                 "{% if add_generation_prompt %}[assistant]\n{% endif %}",
}


def byte_characters():
    """GPT-2's characters for bytes."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, extra = {}, 0
    for byte in range(256):
        if byte in shown:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


BYTES = byte_characters()
MERGES = [("h", "e"), ("l", "l"), ("Ġ", "w"), ("o", "r"), ("Ġw", "or"), ("a", "n"), ("Ġ", "an"),
          ("1", "2"), ("Ã", "©")]
SPECIAL = ["<|end|>", "<|begin|>"]


def vocabulary():
    tokens = [BYTES[b] for b in range(256)] + [a + b for a, b in MERGES]
    return {token: number for number, token in enumerate(tokens)}


VOCAB = vocabulary()
SPECIAL_IDS = {token: len(VOCAB) + i for i, token in enumerate(SPECIAL)}


def tokenizer_json(begins):
    end_first = [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}] if begins else []
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    begin = SPECIAL_IDS["<|begin|>"]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": number, "content": token, "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}
                         for token, number in SPECIAL_IDS.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": False},
        "post_processor": {
            "type": "TemplateProcessing", "single": end_first + [sequence],
            "pair": [sequence, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [begin],
                                             "tokens": ["<|begin|>"]}}} if begins else None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": VOCAB,
                  "merges": [f"{a} {b}" for a, b in MERGES]}}


def encode_plain(text, first):
    """Ids and spans in code points; `first` is the place of the text."""
    pieces = []
    for i, character in enumerate(text):
        pieces += [(BYTES[b], first + i, first + i + 1) for b in character.encode()]
    for left, right in MERGES:  # by rank, each from the left: no merge here makes an earlier one
        i = 0
        while i + 1 < len(pieces):
            if pieces[i][0] == left and pieces[i + 1][0] == right:
                pieces[i:i + 2] = [(left + right, pieces[i][1], pieces[i + 1][2])]
            i += 1
    return [(VOCAB[token], begin, end) for token, begin, end in pieces]


def encode(text):
    tokens, at, plain = [], 0, 0
    while at < len(text):
        special = next((s for s in SPECIAL if text.startswith(s, at)), None)
        if special is None:
            at += 1
            continue
        tokens += encode_plain(text[plain:at], plain)
        tokens.append((SPECIAL_IDS[special], at, at + len(special)))
        at = plain = at + len(special)
    return tokens + encode_plain(text[plain:], plain)


def learned(tokens, spans):
    return [int(any(begin < b and end > a for a, b in spans)) for _, begin, end in tokens]


ENVIRONMENT = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
ENVIRONMENT.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)


def render(case, messages, prompt):
    return ENVIRONMENT.from_string(TEMPLATES[case["template"]]).render(
        messages=messages, add_generation_prompt=prompt, tools=case.get("tools"),
        bos_token=case["bos_token"], eos_token=case["eos_token"])


def conversation(case):
    messages = case["messages"]
    whole = render(case, messages, False)
    turns = [(i, render(case, messages[:i], True), render(case, messages[:i + 1], False))
             for i, m in enumerate(messages) if m["role"] == "assistant"]
    if all(whole.startswith(a) and whole.startswith(b) for _, a, b in turns):
        texts = [(whole, [[len(a), len(b)] for _, a, b in turns], None)]
    else:
        texts = [(b, [[len(a), len(b)]], i) for i, a, b in turns]
    for text, spans, unrolled_to in texts:
        tokens = encode(text)
        record = {**case, "text": text, "spans": spans, "ids": [t[0] for t in tokens],
                  "answer": learned(tokens, spans)}
        if unrolled_to is not None:
            record["unrolled_to"] = unrolled_to
        yield record


def completion(case):
    text = case["prompt"] + case["completion"]
    spans = [[len(case["prompt"]), len(text)]]
    tokens = encode(text)
    front = [SPECIAL_IDS["<|begin|>"]] if case["tokenizer"] == "begins" else []
    yield {**case, "text": text, "spans": spans,
           "ids": front + [t[0] for t in tokens] + [SPECIAL_IDS["<|end|>"]],
           "answer": [0] * len(front) + learned(tokens, spans) + [1]}


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def cases():
    for tokenizer in ("plain", "begins"):
        for prompt, answer in (("hello", " world"), ("hello ", "world"), ("", "and 12"), ("é", "é😀"),
                               ("he", "llo and"), ("12", ""), ("<|end|>x", " w<|begin|>")):
            yield from completion({"tokenizer": tokenizer, "prompt": prompt, "completion": answer})
    for template in TEMPLATES:
        for messages, tools in (
                ([said("user", "hello"), said("assistant", " world")], None),
                ([said("system", "s"), said("user", "1"), said("assistant", "2"),
                  said("user", "3"), said("assistant", " 4 ", thought="12"), said("user", "é")], None),
                ([said("user", "1"), said("assistant", "2", thought="he"), said("user", "3"),
                  said("assistant", "4<|end|>", thought="world")], [{"name": "f", "é": [1, None]}]),
                ([said("assistant", ""), said("assistant", "and")], None)):
            case = {"tokenizer": "plain", "template": template, "bos_token": "<|begin|>",
                    "eos_token": "<|end|>", "messages": messages}
            yield from conversation(case if tools is None else {**case, "tools": tools})


def main():
    for name, begins in (("plain", False), ("begins", True)):
        folder = FOLDER / "tokenizers" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(
            json.dumps(tokenizer_json(begins), ensure_ascii=False, indent=1) + "\n")
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}) + "\n")
    (FOLDER / "templates").mkdir(exist_ok=True)
    for name, source in TEMPLATES.items():
        (FOLDER / "templates" / f"{name}.jinja").write_text(source)
    with open(FOLDER / "examples.jsonl", "w", encoding="utf-8") as out:
        for number, case in enumerate(cases()):
            out.write(json.dumps({"n": number, **case}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
