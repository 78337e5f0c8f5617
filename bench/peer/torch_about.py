"""What the programs of this folder that run PyTorch share: how it was run, and how it says so.

glibc's malloc gives large blocks back to the system and asks for them again in the next step, where
each of their pages costs a fault and is cleared. Told to keep its memory it saves PyTorch up to 30 % of
a step. Compiled models save some more. PyTorch "at its best" has both.
"""
import os
import re
import sys

# Read by glibc when a process starts: no block by mmap, nothing given back, asked for in large pieces.
KEEPS_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}


def memory_kept():
    return all(os.environ.get(name) == value for name, value in KEEPS_MEMORY.items())


def keep_memory():
    """Starts this program again with malloc told so, if it is not yet. Call it before anything else."""
    if not memory_kept():
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.argv], dict(os.environ, **KEEPS_MEMORY))


def blas_of(torch):
    """The library of float32 products: built in (MKL, as pip has it), or the one that was loaded."""
    built_in = re.search(r"Math Kernel Library Version ([0-9][0-9.]*)", torch.__config__.show())
    if built_in:
        return "MKL " + built_in.group(1)
    loaded = set()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if re.search(r"/lib(openblas|mkl|blis)[^/]*\.so", path):
                loaded.add(os.path.basename(path))
    named = re.search(r"BLAS_INFO=([^,\s]*)", torch.__config__.show())
    return ", ".join(sorted(loaded)) or (named.group(1) if named else "unknown")


def onednn_of(torch):
    found = re.search(r"(?:MKL-DNN|oneDNN) v([0-9][0-9.]*)", torch.__config__.show())
    return found.group(1) if found else "none"


def about(torch, compiled):
    """Which PyTorch it was, and how it ran."""
    return {
        "torch": torch.__version__,
        "blas": blas_of(torch),
        "onednn": onednn_of(torch),
        "compiled": compiled,
        "memory_kept": memory_kept(),
    }


if __name__ == "__main__":
    import json

    import torch

    print(json.dumps(about(torch, False)))
