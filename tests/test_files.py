"""Files are read with an end: ordinary ones alone, so many bytes, so many levels."""

import os
import re
from pathlib import Path

import pytest

import flic
import flic_paper
from flic.errors import ConfigError
from flic.files import BoundedFile, parse_json, read_bytes, read_json
from flic.settings import parse_assignment, read_toml


@pytest.fixture(params=["pipe", "device"])
def endless(request, tmp_path):
    path = tmp_path / "endless"
    if request.param == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("read", [read_bytes, read_json])
def test_what_has_no_end_is_not_read(endless, read):
    with pytest.raises(OSError, match="no ordinary file"):
        read(endless)


def test_nor_as_settings(endless):
    with pytest.raises(ConfigError, match=r"endless: cannot be read \(it is a pipe or a device"):
        read_toml(endless)


def test_a_link_to_an_ordinary_file_is_read(tmp_path):
    (tmp_path / "one").write_bytes(b"content")
    (tmp_path / "link").symlink_to("one")
    assert read_bytes(tmp_path / "link") == b"content"


def test_bytes_are_counted_while_they_are_read(tmp_path):
    path = tmp_path / "growing"
    path.write_bytes(b"x" * 100)
    assert read_bytes(path, most=100) == b"x" * 100
    with BoundedFile(path, most=120) as file:
        assert len(file.read(100)) == 100
        path.write_bytes(b"x" * 200)
        with pytest.raises(OSError, match="more than 120 bytes"):
            file.read()


def test_settings_have_a_size(tmp_path):
    path = tmp_path / "large.toml"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ConfigError, match="it has more than 16,777,216 bytes"):
        read_toml(path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 65 + "]" * 65, '{"a":' * 500 + "1" + "}" * 500]
)
def test_json_has_few_levels(text):
    with pytest.raises(ValueError, match="values within values in more than 64 levels"):
        parse_json(text)


def test_sixty_levels_are_few():
    assert parse_json("[" * 60 + "]" * 60)


def test_half_of_a_pair_of_escapes_is_no_text():
    assert parse_json(r'"\ud83d\ude42"') == "🙂"
    for text in (r'{"a": "\ud800"}', rb'{"\udc00": 1}'):
        with pytest.raises(ValueError, match="surrogates"):
            parse_json(text)


DEEP = {
    "dots": "a" + ".a" * 20_000 + " = 1",
    "dots of a heading": "[" + "a." * 600 + "a]\nb = 1",
    "quoted dots": "'a'" + " . 'a'" * 100 + " = 1",
    "lists": "a = " + "[" * 20_000,
    "tables": "a = " + "{a=" * 200 + "1" + "}" * 200,
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_toml_has_few_levels(tmp_path, text):
    (tmp_path / "deep.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"deep.toml: not valid TOML: .* more than 64 levels"):
        read_toml(tmp_path / "deep.toml")


@pytest.mark.parametrize(
    "number", ["9" * 10_000, "0x" + "f" * 10_000, str(2**4096), f"[{{a = -{2**4096}}}]"]
)
def test_a_number_of_too_many_digits_is_no_toml(tmp_path, number):
    """Python's own error told how to have it read more digits, or came as the number was shown."""
    (tmp_path / "long.toml").write_text(f"seed = {number}")
    with pytest.raises(ConfigError, match="a whole number of more than 4096 bits; expected fewer"):
        read_toml(tmp_path / "long.toml")


def test_an_assignment_has_few_levels_and_is_told_in_short():
    with pytest.raises(ConfigError, match="more than 64 levels") as told:
        parse_assignment("a." * 20_000 + "a=1")
    assert len(str(told.value)) < 400
    assert parse_assignment("a=" + "[" * 20_000) == {"a": "[" * 20_000}


SOURCES = [
    path
    for package in (flic, flic_paper)
    for path in Path(package.__file__).parent.rglob("*.py")
    if path.name != "files.py"
]
PAST_WRITE_JSON = re.compile(r"json\.dumps\([^\n]*indent=1\)\.encode\(\)")


def test_one_function_writes_json_for_people():
    found = [str(path) for path in SOURCES if PAST_WRITE_JSON.search(path.read_text())]
    assert found == []


@pytest.mark.parametrize("text", [b'"\xed\xa0\x80"', '"name"'.encode("utf-16")])
def test_bytes_that_are_no_text_are_refused(text):
    with pytest.raises(ValueError, match="utf-8"):
        parse_json(text)


def test_a_whole_number_of_more_than_64_bits_is_refused():
    assert parse_json(f"[{2**64 - 1}, {-(2**63)}]") == [2**64 - 1, -(2**63)]
    for number in (2**64, -(2**63) - 1, 10**300):
        with pytest.raises(ValueError, match="64 bits"):
            parse_json(f'{{"rows": {number}}}')
