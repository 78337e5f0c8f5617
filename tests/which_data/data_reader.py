"""Says which documents each row of a run has, from the files of the data and the rules of Megatron's
GPT dataset; compares that with what pretrain_gpt --which_data and --which_steps print.

    data_reader.py self_test
    data_reader.py write_dataset PREFIX          sequences of several to a document, empty documents
    data_reader.py documents PREFIX              tokens of bytes are the text that sources name
    data_reader.py rows RUN.json LINES...        all steps, as several calls may have printed them
    data_reader.py steps RUN.json PREFIX:ID LINES

RUN.json says what the run is: data_path, split, seed, seq_length, batch_size, micro_batch_num,
data_parallel, training_iters; checkpoint (of a resumed run), first_step (of LINES, 1), new_dataset;
expect: [epochs, last epoch apart] of each data set, so that a case is the one it is meant to be.

Written from what is documented of the .idx and .bin formats, NumPy's legacy generator and the order
of samples, with Python's standard library alone; shares no code with the programs that it checks.
"""
import array
import bisect
import json
import math
import os
import random
import re
import struct
import sys


class LegacyRandom:
    """numpy.random.RandomState(seed): a Mersenne twister, seeded by one word."""

    def __init__(self, seed):
        words = [seed]
        for i in range(1, 624):
            words.append((1812433253 * (words[-1] ^ (words[-1] >> 30)) + i) & 0xFFFFFFFF)
        self.generator = random.Random()
        self.generator.setstate((3, tuple(words) + (624,), None))

    def word(self):
        return self.generator.getrandbits(32)

    def shuffle(self, values):
        for i in range(len(values) - 1, 0, -1):
            mask = (1 << i.bit_length()) - 1
            j = self.word() & mask
            while j > i:
                j = self.word() & mask
            values[i], values[j] = values[j], values[i]


class Dataset:
    """PREFIX.idx and PREFIX.bin, and where the documents come from."""

    TYPES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}

    def __init__(self, prefix):
        with open(prefix + ".idx", "rb") as file:
            data = file.read()
        magic, version, code, sequences, boundaries = struct.unpack_from("<9sQBQQ", data)
        assert magic == b"MMIDIDX\0\0" and version == 1
        at = 34
        self.prefix = prefix
        self.type = self.TYPES[code]
        self.lengths = struct.unpack_from("<%di" % sequences, data, at)
        self.offsets = struct.unpack_from("<%dq" % sequences, data, at + 4 * sequences)
        self.documents = struct.unpack_from("<%dq" % boundaries, data, at + 12 * sequences)
        assert len(data) == at + 12 * sequences + 8 * boundaries
        with open(prefix + ".bin", "rb") as file:
            self.bytes = file.read()
        self.sources = None
        if os.path.exists(prefix + ".sources.npy"):
            self.sources = self.read_sources()

    def read_sources(self):
        with open(self.prefix + ".sources.npy", "rb") as file:
            data = file.read()
        assert data[:8] == b"\x93NUMPY\x01\x00"
        (length,) = struct.unpack_from("<H", data, 8)
        header = data[10 : 10 + length].decode("latin-1")
        count = len(self.documents) - 1
        assert "'descr': '<i8'" in header and "'fortran_order': False" in header, header
        assert re.search(r"'shape': \(%d, 3\)" % count, header), header
        values = struct.unpack_from("<%dq" % (3 * count), data, 10 + length)
        assert len(data) == 10 + length + 24 * count
        with open(self.prefix + ".sources.json") as file:
            described = json.load(file)
        assert described["documents"] == count
        folder = os.path.dirname(self.prefix)
        places = []
        for d in range(count):
            file, offset, size = values[3 * d : 3 * d + 3]
            path = os.path.normpath(os.path.join(folder, described["files"][file]["path"]))
            assert os.path.getsize(path) == described["files"][file]["bytes"]
            places.append((path, offset, size))
        return places

    def tokens(self, sequence, begin, end):
        size = struct.calcsize(self.type)
        at = self.offsets[sequence]
        return list(struct.unpack_from("<%d%s" % (end - begin, self.type), self.bytes, at + begin * size))

    def document_tokens(self, d):
        return [t for s in range(self.documents[d], self.documents[d + 1])
                for t in self.tokens(s, 0, self.lengths[s])]

    def place(self, sequence, offset):
        """The document with a sequence's token, and the number of the token in it."""
        d = bisect.bisect_right(self.documents, sequence) - 1
        return d, sum(self.lengths[self.documents[d] : sequence]) + offset


class Samples:
    """The first sequences of a data set, without the last `drop` tokens, for N samples; N None: one epoch."""

    def __init__(self, dataset, end, drop, wanted, length, seed, extra=1):
        lengths = list(dataset.lengths[:end])
        lengths[-1] -= drop
        self.dataset, self.length, self.extra, self.lengths = dataset, length, extra, lengths
        tokens = sum(lengths)
        epochs = 1
        while wanted is not None and epochs * tokens < wanted * length + extra:
            epochs += 1
        apart = False
        before = 0
        if epochs > 1:
            before = ((epochs - 1) * tokens - extra) // length
            last = wanted - before
            whole = (tokens - extra) // length
            assert 0 <= last <= whole + 1
            apart = last < int(0.80 * whole)
        self.epochs, self.apart = epochs, apart
        generator = LegacyRandom(seed)
        ids = list(range(end))
        if apart:
            self.order = ids * (epochs - 1)
            generator.shuffle(self.order)
            generator.shuffle(ids)
            self.order += ids
        else:
            self.order = ids * epochs
            generator.shuffle(self.order)
        count = (epochs * tokens - extra) // length
        # Where each sample begins: a position in the order, an offset in that sequence.
        self.entries = [(0, 0)]
        d, offset = 0, 0
        for _ in range(count):
            need = length + extra
            while True:
                available = lengths[self.order[d]] - offset
                need -= available
                if need <= 0:
                    offset += need + available - extra
                    break
                if d + 1 == len(self.order):
                    offset = lengths[self.order[d]] - extra
                    break
                d, offset = d + 1, 0
            self.entries.append((d, offset))
        border = before if apart else count
        first, second = list(range(border)), list(range(border, count))
        generator.shuffle(first)
        generator.shuffle(second)
        self.shuffled = first + second

    def __len__(self):
        return len(self.shuffled)

    def get(self, k):
        """(data set, [(document, first, count)], tokens) of a sample."""
        entry = self.shuffled[k]
        (first, begin), (last, end) = self.entries[entry], self.entries[entry + 1]
        parts, tokens = [], []
        for d in range(first, last + 1):
            sequence = self.order[d]
            low = begin if d == first else 0
            high = end + self.extra if d == last else self.lengths[sequence]
            if high <= low:
                continue
            tokens += self.dataset.tokens(sequence, low, high)
            document, at = self.dataset.place(sequence, low)
            if parts and parts[-1][0] == document and parts[-1][1] + parts[-1][2] == at:
                parts[-1] = (document, parts[-1][1], parts[-1][2] + high - low)
            else:
                parts.append((document, at, high - low))
        assert len(tokens) == self.length + self.extra
        return self.dataset, parts, tokens


class Continued:
    """A data set for growing numbers of samples: each build but the first has what is missing."""

    def __init__(self, plan, build, seed):
        self.builds = []
        for wanted in plan:
            if not self.builds or wanted > len(self):
                self.builds.append(build(wanted - len(self), seed + len(self.builds)))

    def __len__(self):
        return sum(map(len, self.builds))

    def get(self, k):
        for build in self.builds:
            if k < len(build):
                return build.get(k)
            k -= len(build)
        raise IndexError(k)


class Blend:
    def __init__(self, datasets, weights, size):
        assert len(weights) < 8, "NumPy adds eight and more in another order"
        total = sum(weights)
        shares = [w / total for w in weights]
        taken = [0] * len(shares)
        self.picks = []
        for k in range(size):
            t = float(max(k, 1))
            behind = [share * t - n for share, n in zip(shares, taken)]
            i = behind.index(max(behind))  # the first of equals
            self.picks.append((i, taken[i]))
            taken[i] += 1
        self.datasets = datasets

    def __len__(self):
        return len(self.picks)

    def get(self, k):
        i, sample = self.picks[k]
        return self.datasets[i].get(sample)


def training_part(split, lengths, needed):
    """How many sequences are for training, and how many tokens of the last one are not."""
    numbers = [float(text) for text in re.findall(r"[.0-9]+", split)] + [0.0, 0.0]
    train, valid = numbers[0] / sum(numbers), numbers[1] / sum(numbers)
    end = round(train * len(lengths))  # half to even, as Python rounds
    until = min(round((train + valid) * len(lengths)), len(lengths))
    if sum(lengths[:end]) >= needed and (valid == 0 or sum(lengths[end:until]) >= needed):
        return end, 0
    # Too few documents: the split cuts tokens, and validation has at least one sample.
    tokens = sum(lengths)
    border, last = int(train * tokens), int((train + valid) * tokens)
    if valid == 0 or train + valid == 1:
        last = tokens
    if valid > 0:
        border = min(border, last - needed)
    end = next(i for i in range(1, len(lengths) + 1) if sum(lengths[:i]) >= border)
    return end, sum(lengths[:end]) - border


def is_number(text):
    try:
        float(text)
        return True
    except ValueError:
        return False


def order_of(run, plan):
    """The samples of a run's training data, and all builds."""
    built = []

    def build(prefix):
        dataset = Dataset(prefix)
        end, drop = training_part(run["split"], dataset.lengths, run["seq_length"] + 1)

        def samples(wanted, seed):
            built.append(Samples(dataset, end, drop, wanted, run["seq_length"], seed))
            return built[-1]

        return samples

    path = [str(item) for item in run["data_path"]]
    seed = run["seed"]
    if len(path) % 2 == 0 and all(map(is_number, path[::2])):
        weights = [float(item) for item in path[::2]]
        total = sum(weights)
        shares = [w / total for w in weights]
        sets = []
        for share, prefix in zip(shares, path[1::2]):
            wanted = [math.ceil(math.ceil(n * share) * 1.005) for n in plan]
            sets.append(Continued(wanted, build(prefix), seed))
        order = Blend(sets, shares, sum(math.ceil(plan[-1] * share) for share in shares))
    elif len(path) == 1:
        order = Continued(plan, build(path[0]), seed)
    else:
        sets = [build(prefix)(None, seed) for prefix in path]
        sizes = [len(each) for each in sets]
        order = Blend(sets, [float(n) for n in sizes], min(plan[-1], sum(sizes)))
    return order, built


def rows_of(run):
    """Every row of the run's steps, as the program prints it, with the text apart."""
    batch = run["batch_size"] * run["micro_batch_num"] * run["data_parallel"]
    begun, done, drawn, plan = 0, 0, 0, []
    if "checkpoint" in run:
        with open(os.path.join(run["checkpoint"], "training_state.json")) as file:
            state = json.load(file)["trainer"]["data"]
        if run.get("new_dataset"):
            begun = state["begun"]["step"] + state["position"]["step"]
        else:
            begun = state["begun"]["step"]
            done, drawn = state["position"]["step"], state["position"]["sample"]
            plan = state["train"]["samples"]
    wanted = drawn + (run["training_iters"] - begun - done) * batch
    if not plan or wanted > plan[-1]:
        plan = plan + [wanted]
    order, built = order_of(run, plan)
    if "expect" in run:
        found = [[each.epochs, each.apart] for each in built]
        assert found == run["expect"], "the builds have epochs and a last one apart: %s" % found
    rows = []
    for step in range(run.get("first_step", 1), run["training_iters"] + 1):
        first = drawn + (step - 1 - begun - done) * batch
        for rank in range(run["data_parallel"]):
            for micro in range(run["micro_batch_num"]):
                for row in range(run["batch_size"]):
                    sample = first + (micro * run["data_parallel"] + rank) * run["batch_size"] + row
                    dataset, parts, tokens = order.get(sample)
                    documents = []
                    for document, at, count in parts:
                        place = dataset.sources[document] if dataset.sources else (None,) * 3
                        documents.append({"id": document, "first": at, "count": count,
                                          "file": place[0], "offset": place[1], "bytes": place[2]})
                    line = {"step": step, "dp_rank": rank, "micro_batch": micro, "row": row,
                            "sample": sample, "dataset": dataset.prefix, "documents": documents}
                    rows.append((line, text_of(tokens[:-1])))
    return rows


def text_of(tokens):
    text = bytes(t for t in tokens if t < 256).decode("utf-8", "replace")
    return text if len(text) <= 200 else text[:200] + "..."


def read_lines(paths):
    lines = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            lines += [json.loads(line) for line in file]
    return lines


def expect_equal(found, expected):
    for i, (a, b) in enumerate(zip(found, expected)):
        assert a == b, "line %d:\n  printed %s\n  here    %s" % (i + 1, a, b)
    assert len(found) == len(expected), "%d lines, here %d" % (len(found), len(expected))


def compare_rows(run, paths):
    expected = []
    for line, text in rows_of(run):
        expected.append(dict(line, text=text))
    found = read_lines(paths)
    expect_equal(found, expected)
    print("%d rows are the same" % len(found))


def compare_steps(run, asked, paths):
    prefix, document = asked.rsplit(":", 1)
    expected = []
    for line, _ in rows_of(run):
        own = [part for part in line["documents"] if part["id"] == int(document)]
        if line["dataset"] == prefix and own:
            expected.append(dict(line, documents=own))
    expected.sort(key=lambda line: line["sample"])
    assert expected, "no row has the document: a poor case"
    found = read_lines(paths)
    expect_equal(found, expected)
    print("%d rows of document %s are the same" % (len(found), document))


def check_documents(prefix):
    """The bytes that sources name are the text whose bytes are the document's tokens."""
    dataset = Dataset(prefix)
    for d, (path, offset, size) in enumerate(dataset.sources):
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(size)
        if path.endswith(".jsonl"):
            data = json.loads(data)["text"].encode()
        tokens = dataset.document_tokens(d)
        assert bytes(t for t in tokens if t < 256) == data, "document %d" % d
    print("%d documents are their sources" % len(dataset.sources))


def write_dataset(prefix):
    lengths, boundaries, values = [], [0], []
    for d in range(60):
        for s in range(d * 7 % 4):  # some documents have no sequence, and some sequences no token
            lengths.append((d * 5 + s * 11) % 23)
            values += [97 + (d + s + t) % 26 for t in range(lengths[-1])]
        boundaries.append(len(lengths))
    with open(prefix + ".bin", "wb") as file:
        array.array("i", values).tofile(file)
    offsets = [4 * sum(lengths[:i]) for i in range(len(lengths))]
    with open(prefix + ".idx", "wb") as file:
        file.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 4, len(lengths), len(boundaries)))
        file.write(struct.pack("<%di" % len(lengths), *lengths))
        file.write(struct.pack("<%dq" % len(offsets), *offsets))
        file.write(struct.pack("<%dq" % len(boundaries), *boundaries))


def self_test():
    def shuffled(seed):
        values = list(range(10))
        LegacyRandom(seed).shuffle(values)
        return values

    # What NumPy gives.
    assert shuffled(0) == [2, 8, 4, 9, 1, 6, 7, 3, 0, 5]
    assert shuffled(42) == [8, 1, 5, 0, 7, 2, 9, 4, 3, 6]
    assert LegacyRandom(1234).word() == 822569775
    blend = Blend([], [0.5, 0.3, 0.2], 12)
    assert [i for i, _ in blend.picks] == [0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 0, 1]


def main(command, *arguments):
    if command == "self_test":
        self_test()
    elif command == "write_dataset":
        write_dataset(*arguments)
    elif command == "documents":
        check_documents(*arguments)
    else:
        with open(arguments[0]) as file:
            run = json.load(file)
        if command == "rows":
            compare_rows(run, arguments[1:])
        else:
            assert command == "steps", command
            compare_steps(run, arguments[1], arguments[2:])


if __name__ == "__main__":
    main(*sys.argv[1:])
