"""Base of all settings files: sections that refuse unknown keys, TOML, plain errors.

Also the error for files that flic wrote and cannot read any more.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from flic.errors import ConfigError, Damaged
from flic.files import (
    MOST_LEVELS,
    read_bytes,
    read_json,
    refuse_deep,
    refuse_large,
    too_deep,
    too_large,
)

MOST_SETTINGS = 2**24
"""Most bytes of a settings file: enough for a hundred thousand clients."""

_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MOST_LEVELS}}}")

_SHOWN = 200  # letters of a bad value
_SHOWN_KEYS = 4  # of many changed ones

_MOST_GIGABYTES = 10**9  # more would tell a reader nothing

_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "{table}",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt:.10g}",
    "greater_than_equal": "{ge:.10g} or more",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "less_than": "less than {lt:.10g}",
    "less_than_equal": "{le:.10g} or less",
    "list_type": "a list",
    "literal_error": "{expected}",
    "missing": "another entry",
    "model_attributes_type": "{table}",
    "model_type": "{table}",
    "path_type": "a path",
    "string_pattern_mismatch": "a text of the form {pattern}",
    "string_too_short": "a longer text",
    "string_type": "a text",
    "too_long": "{max_length} or fewer entries",
    "too_short": "{min_length} or more entries",
    "tuple_type": "a list",
}
"""Pydantic's types of errors, and what is expected instead."""

S = TypeVar("S", bound=BaseModel)


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True
    )


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `override` on top, section by section."""
    merged = deepcopy(dict(base))
    for key, value in override.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else deepcopy(value)
    return merged


def read_toml(path: Path) -> dict[str, Any]:
    """Settings of a TOML file, not yet resolved."""
    try:
        return _parse_toml(read_bytes(path, most=MOST_SETTINGS).decode())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; expected settings in TOML.") from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); expected settings in TOML."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error}).") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}.") from None


def _parse_toml(text: str) -> dict[str, Any]:
    """Settings of a TOML text.

    Raises:
        ValueError: it is no TOML, nested too deep, or has numbers that no file can hold.
    """
    if _LONG_KEY.search(text):  # the time for a key grows with the square of its parts
        raise too_deep()
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise too_deep() from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python's own, whose hint is how to change Python's limit of digits
        raise too_large() from None
    refuse_deep(found)
    refuse_large(found)
    return found


def parse_assignment(text: str) -> dict[str, Any]:
    """Nested settings from a dotted `key=value`; the value is read as TOML, else as text."""
    key, separator, value = text.partition("=")
    parts = key.strip().split(".")
    if not separator or not all(parts):
        raise ConfigError(
            f"--set {_cut(repr(text))}: expected key=value with a dotted key, such as "
            "training.rounds=10."
        )
    if len(parts) > MOST_LEVELS:
        raise ConfigError(f"--set {_cut(repr(text))}: {too_deep()}.")
    try:
        parsed: Any = _parse_toml(f"value = {value}")["value"]
    except ValueError:
        parsed = value.strip()
    for part in reversed(parts):
        parsed = {part: parsed}
    return parsed


def assigned(raw: Mapping[str, Any], assignments: Iterable[str] | None) -> dict[str, Any]:
    """Settings with `key=value` assignments on top, each over those before it."""
    found = dict(raw)
    for assignment in assignments or ():
        found = merge(found, parse_assignment(assignment))
    return found


def source_of(source: object, assignments: Iterable[str] | None) -> str:
    """Source of settings for an error: a file, and the assignments on top of it."""
    sets = [f"--set {_cut(text)}" for text in assignments or ()]
    return f"{source}, with {' '.join(sets)}" if sets else str(source)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Keys whose values differ, such as "seed: 0 became 1"; of many, the first few."""
    old, new = _flat(before), _flat(after)
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    said = [f"{key}: {old.get(key, 'nothing')} became {new.get(key, 'nothing')}" for key in changed]
    more = [f"and {len(said) - _SHOWN_KEYS} more"] if len(said) > _SHOWN_KEYS else []
    return ", ".join([*map(_cut, said[:_SHOWN_KEYS]), *more])


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Values as JSON by their dotted keys."""
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = json.dumps(value, default=str)
    return found


def refuse_beyond_memory(needed: Mapping[str, int], *, source: str) -> None:
    """Refuse what does not fit into this machine's memory; `needed` has the least bytes by part.

    Raises:
        ConfigError: naming the largest part, and its size.
    """
    total = sum(needed.values())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if total > memory:
        most = max(needed, key=lambda name: needed[name])
        gigabytes = total // 2**30
        known = f"at least {gigabytes:,} GB of memory"
        size = known if gigabytes < _MOST_GIGABYTES else "more memory than any machine has"
        raise ConfigError(
            f"{source}: takes {size}, most of it for {most}; this machine has "
            f"{memory // 2**30:,} GB. Choose smaller numbers."
        )


def strictly(model: type[S], raw: Mapping[str, Any]) -> S:
    """A section from plain values, without turning texts into numbers.

    Through JSON, whose strict mode takes lists for tuples.

    Raises:
        ValidationError: some keys are not what they must be.
    """
    return model.model_validate_json(json.dumps(raw, default=str), strict=True)


def validated(
    model: type[S],
    raw: Mapping[str, Any],
    *,
    source: str,
    variants: Mapping[str, type[BaseModel]] | None = None,
    within: Mapping[str, type[BaseModel]] | None = None,
) -> S:
    """A section from plain values, or one error that lists every bad key.

    Args:
        model: the kind of section.
        raw: the values.
        source: where they come from, for the error.
        variants: models of a tagged union by tag.
        within: models of keys that hold the settings of another section as plain values.
    """
    try:
        return strictly(model, raw)
    except ValidationError as error:
        problems = error.errors()
        said = [_explain_within(problem, model, variants, within or {}) for problem in problems]
        raise ConfigError("\n  ".join([f"{source}:", *said])) from None


def _explain_within(
    problem: Mapping[str, Any],
    model: type[BaseModel],
    variants: Mapping[str, type[BaseModel]] | None,
    within: Mapping[str, type[BaseModel]],
) -> str:
    first, *rest = problem["loc"] or ("",)
    if first not in within or not rest:
        return explain(problem, model, variants)
    return f"{first}.{explain({**problem, 'loc': rest}, within[first])}"


def explain(
    problem: Mapping[str, Any],
    model: type[BaseModel],
    variants: Mapping[str, type[BaseModel]] | None = None,
) -> str:
    """One sentence for one problem pydantic found in a `model`.

    `variants` are the models of a tagged union by tag, which pydantic puts into its locations.
    """
    variants = variants or {}
    location = [str(part) for part in problem["loc"]]
    key = _cut(".".join(part for part in location if part not in variants))
    if problem["type"] == "extra_forbidden":
        known = _known_keys(location[:-1], model, variants)
        return f"{key}: unknown key; expected one of {', '.join(known)}"
    if problem["type"].startswith("union_tag"):
        tag = problem["ctx"].get("tag")
        found = "missing" if tag is None else f"got {json.dumps(tag)}"
        return f"{key}.problem: {found}; expected one of {', '.join(variants)}"
    return ": ".join(filter(None, [key, _wrong(problem)]))


COPY = "Restore it from a copy."


def read_object(path: Path, *, remedy: str = COPY) -> dict[str, Any]:
    """An object of JSON that flic wrote.

    Raises:
        Damaged: the file is missing, or no such object.
    """
    try:
        found = read_json(path)
        if not isinstance(found, dict):
            raise ValueError("it holds no JSON object")
    except (ValueError, OSError) as error:
        raise damaged(path, error, remedy=remedy) from error
    return found


def read_model(kind: type[S], path: Path) -> S | None:
    """The contents of a file of JSON that flic wrote; None if there is no file.

    Raises:
        Damaged: the file holds something else.
    """
    if not path.exists():
        return None
    try:
        return kind.model_validate(read_object(path))
    except ValidationError as error:
        raise damaged(path, error) from error


def damaged(path: Path, why: object, *, remedy: str = COPY) -> Damaged:
    """Error for a file or folder that is not as flic wrote it; `remedy` says what to do."""
    return Damaged(f"{path} is damaged ({in_words(why)}); expected it as flic wrote it. {remedy}")


def in_words(error: object) -> str:
    """An error about the contents of a file in one line; of several problems, the first."""
    if isinstance(error, KeyError):
        return f"{_cut(str(error))} is missing"
    if isinstance(error, TypeError | AttributeError):  # in Python's words
        return "a part of it is of the wrong kind, such as a list in place of an object"
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON: {error}"
    if not isinstance(error, ValidationError):
        return str(error)
    problem = error.errors()[0]
    key = _cut(".".join(map(str, problem["loc"])))
    return ": ".join(filter(None, [key, _wrong(problem, table="a JSON object")]))


def _wrong(problem: Mapping[str, Any], *, table: str = "a table of settings") -> str:
    """The problem with a value, without pydantic's words where its error is known."""
    kind, value = problem["type"], problem["input"]
    if kind == "missing" and isinstance(problem["loc"][-1], str):
        return "missing; this key is needed"
    if kind == "json_invalid":
        return f"not valid JSON: {problem['ctx']['error']}"
    message = problem["msg"].removeprefix("Value error, ")
    if kind == "value_error" and isinstance(value, dict):
        return message  # about several keys, which it names
    if kind in _EXPECTED:
        message = f"expected {_EXPECTED[kind].format(table=table, **problem.get('ctx', {}))}"
    return f"got {_cut(json.dumps(value, default=str))}; {message}"


def _cut(text: str) -> str:
    """A text, cut so that it fits into a sentence."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _known_keys(
    location: Sequence[str], model: Any, variants: Mapping[str, type[BaseModel]]
) -> list[str]:
    """Keys of the section at `location`."""
    for part in location:
        if part in variants:
            model = variants[part]
        elif get_origin(model) in (dict, tuple):  # the part is a name or number in it
            model = get_args(model)[-1 if get_origin(model) is dict else 0]
        else:
            model = model.model_fields[part].annotation
        while get_origin(model) is Annotated:
            model = get_args(model)[0]
    return list(model.model_fields)
