"""Writes the small tokenizers of this folder, and the texts that they are tried on.

    python3 make_tokenizers.py          # tokenizer.json of each, texts.jsonl, invalid_utf8.jsonl
    node make_ids.mjs                   # ids/*.jsonl, by the Rust library; after `npm install tokenizers@0.23.2`

The texts and the tokenizers are made here and belong to this project.
"""

import collections
import json
import os

WORDS = """the river runs under the old stone bridge and the light of the morning falls on the water
where the children of the village used to swim they do not swim there any more because the river is
too fast in spring and too low in summer but the water is as clear as it ever was and the bridge still
stands with its three arches over the light and the shadow of it lies on the stones 12 345 in 1867 it
was built it's said by people who couldn't read they'd count on their fingers and we'll never know""".split()

SPACE = "\u2581"


def byte_characters():
    own = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, other = {}, 256
    for byte in range(256):
        if byte in own:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(other)
            other += 1
    return table


BYTES = byte_characters()


def learn_merges(words, count):
    """Byte-pair encoding of words, which are lists of symbols."""
    words = [list(word) for word in words]
    merges = []
    for _ in range(count):
        pairs = collections.Counter()
        for word in words:
            pairs.update(zip(word, word[1:]))
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        if pairs[best] < 2:
            break
        merges.append(best)
        for word in words:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == best:
                    word[at:at + 2] = [best[0] + best[1]]
                at += 1
    return merges


def added(token_id, content, special=True, **flags):
    token = {"id": token_id, "content": content, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": special}
    token.update(flags)
    return token


def written(name, **parts):
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
                 "normalizer": None, "pre_tokenizer": None, "post_processor": None,
                 "decoder": None, "model": None}
    tokenizer.update(parts)
    os.makedirs(name, exist_ok=True)
    with open(f"{name}/tokenizer.json", "w", encoding="utf-8") as file:
        json.dump(tokenizer, file, ensure_ascii=False, indent=None, separators=(",", ":"))
        file.write("\n")


def bpe(vocab, merges, **flags):
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False, "vocab": vocab, "merges": merges}
    model.update(flags)
    return model


def numbered(tokens):
    vocab = {}
    for token in tokens:
        vocab.setdefault(token, len(vocab))
    return vocab


def bytes_model(count, extra=()):
    spaced = [[BYTES[b] for b in (" " + word).encode()] for word in WORDS]
    merges = learn_merges(spaced, count)
    vocab = numbered([BYTES[b] for b in range(256)] + [a + b for a, b in merges] + list(extra))
    return vocab, merges


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": True}
TEMPLATE = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def make_bytes():
    vocab, merges = bytes_model(7)
    written("own_bytes", added_tokens=[added(263, "<|endoftext|>")], pre_tokenizer=BYTE_LEVEL,
            decoder=BYTE_LEVEL, model=bpe(vocab, [f"{a} {b}" for a, b in merges]))


def make_chat():
    vocab, merges = bytes_model(80, [" ignored"])
    # A token that no merge makes, which ignore_merges finds all the same.
    del vocab[" ignored"]
    vocab["".join(BYTES[b] for b in b" bridges")] = len(vocab)
    first = len(vocab)
    tokens = [added(first, "<|endoftext|>"), added(first + 1, "<|im_start|>"),
              added(first + 2, "<|im_end|>", rstrip=True),
              added(first + 3, "River", special=False, normalized=True, single_word=True),
              added(first + 4, "<left>", special=False, lstrip=True)]
    no_regex = dict(BYTE_LEVEL, use_regex=False, trim_offsets=False)
    written("own_chat", added_tokens=tokens, normalizer={"type": "NFC"},
            pre_tokenizer={"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated",
                 "invert": False}, no_regex]},
            post_processor=no_regex, decoder=no_regex,
            model=bpe(vocab, [list(pair) for pair in merges], ignore_merges=True))


def pieces():
    return [[SPACE] + list(word) for word in WORDS]


def make_pieces():
    merges = learn_merges(pieces(), 60)
    letters = sorted({symbol for word in pieces() for symbol in word})
    codes = [f"<0x{b:02X}>" for b in range(256)]
    vocab = numbered(["<unk>", "<s>", "</s>"] + codes + letters + [a + b for a, b in merges])
    special = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")]
    written("own_pieces", added_tokens=special,
            normalizer={"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]},
            post_processor=TEMPLATE,
            decoder={"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            model=bpe(vocab, [f"{a} {b}" for a, b in merges], unk_token="<unk>", fuse_unk=True,
                      byte_fallback=True))
    # Without tokens for bytes: what is unknown is one token together, and words end in a sign.
    words = [list(word[:-1]) + [word[-1] + "</w>"] for word in WORDS]
    merges = learn_merges(words, 50)
    letters = sorted({symbol for word in words for symbol in word} |
                     {symbol for word in WORDS for symbol in word} | {"."})
    vocab = numbered(["<unk>"] + letters + [a + b for a, b in merges])
    written("own_words", added_tokens=[added(0, "<unk>")],
            normalizer={"type": "Sequence", "normalizers": [
                {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
                {"type": "Strip", "strip_left": True, "strip_right": True}]},
            pre_tokenizer={"type": "Sequence", "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Punctuation", "behavior": "MergedWithPrevious"},
                {"type": "Digits", "individual_digits": False}]},
            decoder={"type": "BPEDecoder", "suffix": "</w>"},
            model=bpe(vocab, [f"{a} {b}" for a, b in merges], unk_token="<unk>", fuse_unk=True,
                      end_of_word_suffix="</w>"))


def make_unigram():
    counts = collections.Counter()
    for word in WORDS:
        text = SPACE + word
        for begin in range(len(text)):
            for end in range(begin + 1, min(len(text), begin + 6) + 1):
                counts[text[begin:end]] += 1
    tokens = [token for token, count in sorted(counts.items()) if count > 2 or len(token) == 1]
    total = sum(counts[token] for token in tokens)
    scored = [[token, round(-8 + 10 * counts[token] * len(token) / total, 6)] for token in tokens]
    vocab = [["<unk>", 0], ["<s>", 0], ["</s>", 0]] + scored
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": True}
    written("own_unigram", added_tokens=[added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
            normalizer={"type": "Sequence", "normalizers": [
                {"type": "NFKC"},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
            pre_tokenizer=space, post_processor=TEMPLATE, decoder=space,
            model={"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": False})


TEXTS = [
    "", " ", "a", "the river", " the  river ", "The River runs.", "It's 1867, they'd say; we'LL see!",
    "bridges and bridge bridges", "12 345 6789", "x1y22z333", "\n", "\n\n  the\n\tlight \r\n water\n ",
    "<|im_start|>user\nThe River<|im_end|>  \n<|im_start|>assistant\n", "a <left>b  <left> River",
    "Rivers River-bed (River) riverRiver", "<|endoftext|><|endoftext|> x", "<s>the</s> <unk> <pad>",
    "<s> the <s>", "caf\u00e9 cafe\u0301 na\u00efve \u00c5ngstr\u00f6m \u212b", "a\u0323\u0307 a\u0307\u0323 q\u0307\u0323",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002", "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\U0001F600\U0001F468\u200D\U0001F469\u200D\U0001F467 ok", "\u00a0non\u2003breaking\u3000spaces\u00a0",
    "\ufb01ne \uff11\uff12\uff13 \u2460 \u00bd", "\u2581the\u2581river \u2581", "<0x41><0xE2> <0xZZ>", "tab\tand\x0bvt\x0c\x85nel",
    "zero\u200bwidth \u180e \ufeff", "def f(x):\n    return x ** 2  # the light\n", "{\"a\": [1, 2.5e-3]}",
    "https://example.org/the?river=12&x=%20", "\u0130stanbul \u01c5 \u1e9e STRASSE", "...!!!???", "a.b,c;d:e",
    "the" * 40, "light of the morning " * 8, "\x00\x01\x1f", "\u0301alone", "e\u0301\u0301\u0327 o\u0308\u0304",
]

INVALID = ["74686520ff7269766572", "e282", "6162f09f98", "edA080".lower(), "c3a9c3", "fffe6100", "f4908080",
           "80bf20c0af", "e4bda0e4bd20e4", "20ff20"]


def write_texts():
    with open("texts.jsonl", "w", encoding="utf-8") as file:
        for number, text in enumerate(TEXTS):
            file.write(json.dumps({"n": number, "kind": "own", "text": text}) + "\n")
    with open("invalid_utf8.jsonl", "w", encoding="utf-8") as file:
        for number, text in enumerate(INVALID):
            read = bytes.fromhex(text).decode("utf-8", "replace")
            file.write(json.dumps({"n": number, "kind": "invalid", "hex": text, "text": read}) + "\n")


if __name__ == "__main__":
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    make_bytes()
    make_chat()
    make_pieces()
    make_unigram()
    write_texts()
