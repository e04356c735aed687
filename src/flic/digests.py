"""SHA-256 digests of what a result was made with: values, rows and code."""

import hashlib
import json
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np

from flic.notation import json_values

SOURCES = Path(__file__).parent

#: Parts of flic that no run computes with: they show, compare, read tables or send messages.
AROUND = frozenset({"cli", "flower", "page", "silos", "tables"})

#: Packages whose version may change a figure.
COMPUTING = ("flic", "numpy", "scikit-learn", "scipy", "torch")


def digest(content: bytes) -> str:
    """SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()


def digest_of(value: object) -> str:
    """SHA-256 of a value that JSON can write, independent of the order of its keys."""
    text = json.dumps(json_values(value), sort_keys=True, separators=(",", ":"))
    return digest(text.encode())


def digest_of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of arrays of numbers: names, types, shapes and values, in their order."""
    found = hashlib.sha256()
    for name, array in arrays.items():
        found.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


@cache
def digest_of_code(*also: str, sources: Path = SOURCES) -> str:
    """SHA-256 of flic's own code in a run, and of the versions of other packages.

    `also` names further parts of flic that count; parts that only show results never do.
    """
    left_out = AROUND - {*also}
    files = sorted(path.relative_to(sources) for path in sources.rglob("*.py"))
    counted = [file for file in files if file.parts[0] not in left_out]
    own = {file.as_posix(): digest((sources / file).read_bytes()) for file in counted}
    return digest_of([{name: version(name) for name in COMPUTING}, own])


def environment() -> dict[str, str]:
    """Versions of packages, and the machine."""
    packages = ("flic", "torch", "numpy", "scikit-learn", "safetensors", "pydantic")
    own = {name: version(name) for name in packages}
    return {"python": platform.python_version(), "machine": platform.machine(), **own}
