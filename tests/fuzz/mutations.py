"""Files a little or a lot other than flic wrote them, by what kind of file they are.

Everything random comes from the `random` that is given: the same one makes the same file again.
"""

import csv
import io
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from datetime import date, time
from pathlib import PurePath
from random import Random
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from flic.notation import toml_key, toml_text

Case = Mapping[str, bytes]
"""Files by name, such as make up one input."""

DEEP = "a very deep value"
DEPTHS = (60, 100_000)  # what any reader follows, and what none does

#: Values that programs stumble over.
ODD: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], {"": {}}, [None, 1, "a"], DEEP),
    *(0, 1, -1, 2, 255, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1e-320, 1e300, -1e308, 1e999, float("nan")),
    *("", " ", "0", "-1", "1e999", "NaN", "null", "*", ".", "..", "../..", "/", "/dev/null"),
    *("\0", "\n", '"', "\x1b[31m", "\ufeff", "\ud800", "🙂", "%s{0}", "a" * 300, "é" * 5_000),
    *("2024-02-30", "31.12.2024", "0x10", "1,5", "1_000", "<b>", "utf-16", "rot13", "cp1252"),
)
ODD_BYTES = (
    *(b"", b"\0", b"\xff", b"\r", b"\n\n", b'"', b"'", b",", b";", b"\t", b"[", b"{", b"=", b"."),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\xf0\x9f\x99\x82", b"\x1b[2J", b"nan"),
    *(b"[" * 5_000, b'{"a":' * 5_000, b"a." * 5_000, b"9" * 5_000, b'"' * 3, b"# \x00\n"),
    *(b"\xff" * 4, b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7), bytes(64)),
)
DELIMITERS = ",;\t| "
ENCODINGS = ("utf-8-sig", "utf-16", "utf-32", "latin-1", "cp037")


def varied(case: Case, random: Random) -> dict[str, bytes]:
    """The case with one file or more changed, lost or exchanged."""
    files = dict(case)
    for _ in range(random.choice([1, 1, 1, 1, 2])):
        name = random.choice(sorted(files))
        if len(files) > 1 and random.random() < 0.05:
            del files[name]
        elif len(files) > 1 and random.random() < 0.05:
            files[name] = files[random.choice(sorted(files))]
        else:
            files[name] = mutated(name, files[name], random)
    return files


def mutated(name: str, content: bytes, random: Random) -> bytes:
    """The file after a few changes, to what it says or to its bytes."""
    change = _CHANGES.get(PurePath(name).suffix, _change_bytes)
    if random.random() < 0.2:
        change = _change_bytes
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        try:
            content = change(content, random)
        except (ValueError, csv.Error, RecursionError):  # no such file any more
            content = _change_bytes(content, random)
    return content


# ---- bytes ---------------------------------------------------------------------------------


def _change_bytes(content: bytes, random: Random) -> bytes:
    at = random.randint(0, len(content))
    end = min(len(content), at + random.choice([1, 1, 4, 8, 64, 1024]))
    piece = content[at:end]
    from_ = random.randint(0, len(content))
    return random.choice(
        [
            lambda: (
                content[:at]
                + bytes(b ^ 1 << random.randrange(8) for b in piece[:1])
                + content[at + 1 :]
            ),
            lambda: content[:at] + content[end:],
            # Not a thousand times: so many clients take their time, as they may.
            lambda: content[:at] + piece * random.choice([2, 9, 200]) + content[end:],
            lambda: content[:at] + random.choice(ODD_BYTES) + content[at:],
            lambda: content[:at] + random.choice(ODD_BYTES) + content[end:],
            lambda: content[:at] + content[from_ : from_ + len(piece)] + content[end:],
            lambda: content[:at],
        ]
    )()


# ---- trees: JSON and TOML ------------------------------------------------------------------


def _change_json(content: bytes, random: Random) -> bytes:
    text = json.dumps(_changed_tree(json.loads(content), random))
    return _with_depth(text, random).encode("utf-8", "surrogatepass")


def _change_toml(content: bytes, random: Random) -> bytes:
    tree = _changed_tree(tomllib.loads(content.decode()), random)
    if not isinstance(tree, dict):
        tree = {"": tree}
    text = toml_file(tree)
    if random.random() < 0.1:
        lines = text.splitlines(keepends=True)
        text += random.choice([*lines, "\n"])  # said twice
    return _with_depth(text, random).encode("utf-8", "surrogatepass")


def _with_depth(text: str, random: Random) -> str:
    depth = random.choice(DEPTHS)
    return text.replace(json.dumps(DEEP), "[" * depth + "]" * depth)


def toml_file(tree: Mapping[str, Any]) -> str:
    """Settings as TOML, a line for each key at the top."""
    return "".join(f"{toml_key(key)} = {_toml(value)}\n" for key, value in tree.items())


def _toml(value: Any) -> str:
    """A value, tables in one line; null, which TOML lacks, as a text."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{toml_key(k)} = {_toml(v)}' for k, v in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, str):
        return toml_text(value)
    return repr(value) if isinstance(value, float) else json.dumps("" if value is None else value)


def _changed_tree(tree: Any, random: Random) -> Any:
    whole = {"whole": deepcopy(tree)}
    places = [*_places(whole)]
    (holder, key), other = random.choice(places), random.choice(places)
    change = random.choice([_replace, _replace, _borrow, _bend, _bend, _remove, _add, _wrap])
    change(holder, key, other, random)
    return whole.get("whole")


def _places(holder: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    for key in keys:
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _places(holder[key])


Place = tuple[Any, Any]


def _replace(holder: Any, key: Any, other: Place, random: Random) -> None:
    holder[key] = deepcopy(random.choice(ODD))


def _borrow(holder: Any, key: Any, other: Place, random: Random) -> None:
    holder[key] = deepcopy(other[0][other[1]])


def _remove(holder: Any, key: Any, other: Place, random: Random) -> None:
    del holder[key]


def _add(holder: Any, key: Any, other: Place, random: Random) -> None:
    value = random.choice([deepcopy(random.choice(ODD)), deepcopy(other[0][other[1]])])
    if isinstance(holder, list):
        holder[key:key] = [value] * random.choice([1, 1, 2, 300])
        return
    name = random.choice([other[1], f"{key}x", random.choice(ODD)])
    holder[name if isinstance(name, str) else str(name)[:40]] = value


def _wrap(holder: Any, key: Any, other: Place, random: Random) -> None:
    holder[key] = random.choice([[holder[key]], {"a": holder[key]}, {str(other[1]): holder[key]}])


def _bend(holder: Any, key: Any, other: Place, random: Random) -> None:
    """A value of the same kind, near the old one or far from it."""
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int | float):
        real = float(max(-1e300, min(value, 1e300)))
        near = [value + 1, value - 1, -value, value * 1000, real, str(value)]
        holder[key] = random.choice(near)
    elif isinstance(value, str):
        at = random.randint(0, len(value))
        odd = random.choice([odd for odd in ODD if isinstance(odd, str)])
        holder[key] = random.choice(
            [value[:at], value[:at] + odd + value[at:], value[:at] + value[at + 1 :], value * 50]
        )
    elif isinstance(value, list):
        holder[key] = random.choice([value[:-1], value[::-1], value * 2, value + value[:1], []])
    elif isinstance(value, dict) and value:
        renamed = random.choice(sorted(value))
        value[f"{renamed}{random.choice('sx_ ')}"] = value.pop(renamed)


# ---- cells ---------------------------------------------------------------------------------


def _change_cells(content: bytes, random: Random) -> bytes:
    text = content.decode("utf-8-sig")
    delimiter = max(DELIMITERS, key=text.count)
    rows = [*csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)]
    if not rows:
        raise ValueError("no rows")
    row, other = random.choice(rows), random.choice(rows)
    column = random.randrange(max(1, len(row)))
    random.choice([_odd_cell, _odd_cell, _odd_column, _other_rows, _other_columns])(
        rows, row, other, column, random
    )
    written = io.StringIO(newline="")
    if random.random() < 0.1:
        delimiter = random.choice(DELIMITERS)
    quoting = random.choice([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    end = random.choice(["\n", "\n", "\r\n", "\r"])
    csv.writer(written, delimiter=delimiter, quoting=quoting, lineterminator=end).writerows(rows)
    encoding = random.choice([*["utf-8"] * 12, *ENCODINGS])
    return written.getvalue().encode(encoding, "replace")


def _cell(random: Random, other: list[str]) -> str:
    odd = random.choice(ODD)
    text = odd if isinstance(odd, str) else str(odd)[:60]
    return random.choice([text, *other[:3]])


def _odd_cell(rows: list, row: list, other: list, column: int, random: Random) -> None:
    row[column : column + 1] = [_cell(random, other)]


def _odd_column(rows: list, row: list, other: list, column: int, random: Random) -> None:
    cell = _cell(random, other)
    for own in rows[random.choice([0, 1, 1]) :]:
        own[column : column + 1] = [cell if random.random() < 0.8 else _cell(random, own)]


def _other_rows(rows: list, row: list, other: list, column: int, random: Random) -> None:
    at = random.randrange(len(rows) + 1)
    rows[at:at] = random.choice([[other], [other] * 200, [[]], [["a"]], [row + other]])
    if random.random() < 0.5:
        del rows[random.randrange(len(rows)) :: random.choice([1, 2, 1000])]


def _other_columns(rows: list, row: list, other: list, column: int, random: Random) -> None:
    change: Callable[[list], None] = random.choice(
        [
            lambda own: own.__delitem__(slice(column, column + 1)),
            lambda own: own.insert(column, own[column] if column < len(own) else ""),
            lambda own: own.reverse(),
            lambda own: own.extend([""] * 50),
        ]
    )
    for own in rows:
        change(own)


# ---- tensors -------------------------------------------------------------------------------


def _change_tensors(content: bytes, random: Random) -> bytes:
    try:
        tensors, header = load(content), content[8 : 8 + int.from_bytes(content[:8], "little")]
        facts = json.loads(header).get("__metadata__")
    except SafetensorError as error:
        raise ValueError("no tensors") from error
    if not tensors:
        raise ValueError("nothing to change")
    name = random.choice(sorted(tensors))
    if random.random() < 0.4:
        del tensors[random.choice(sorted(tensors))]
    if name in tensors and random.random() < 0.8:
        tensors[name] = _odd_tensor(tensors[name], random).contiguous()
    if random.random() < 0.2:
        tensors[random.choice([f"{name}x", "a/b", "x", ""])] = torch.zeros(2, 3)
    return save(tensors, facts)


def _odd_tensor(tensor: Tensor, random: Random) -> Tensor:
    return random.choice(
        [
            lambda: tensor.flatten(),
            lambda: tensor[None],
            lambda: tensor.mT if tensor.ndim > 1 else tensor.repeat(2),
            lambda: tensor[:-1] if tensor.ndim else tensor[None],
            lambda: tensor[:0] if tensor.ndim else tensor[None],
            lambda: tensor.to(random.choice([torch.float64, torch.float16, torch.int64])),
            lambda: torch.full_like(tensor, random.choice([0, -1, 1, 100])),
            lambda: tensor * random.choice([-1, 1000, 1e30]),
            lambda: tensor / 0,
        ]
    )()


_CHANGES: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": _change_json,
    ".toml": _change_toml,
    ".csv": _change_cells,
    ".tsv": _change_cells,
    ".safetensors": _change_tensors,
}
