"""The screen while a run goes on."""

import io
import time

import pytest
from rich.console import Console

from flic.cli import screen

RECORD = {
    "stage": "update",
    "round": 1,
    "losses": {"data": 0.5, "alignment": 0.25},
    "scores": {"a": {"test_right": 3, "test_rows": 4}},
}


@pytest.fixture
def terminal(monkeypatch) -> io.StringIO:
    """A terminal of 100 columns."""
    written = io.StringIO()
    monkeypatch.setattr(screen, "console", Console(file=written, force_terminal=True, width=100))
    return written


def test_a_terminal_shows_a_bar_with_steps_terms_and_time(terminal) -> None:
    with screen.StepDisplay("flic-hl (seed 0)", quiet=False) as display:
        display.step(RECORD, total=4, done=2)
    shown = terminal.getvalue()
    for part in ("flic-hl (seed 0)", "━", "2/4", "0:00:0", "data 0.5, alignment 0.25"):
        assert part in shown


def test_elsewhere_a_step_is_a_plain_line(capsys) -> None:
    with screen.StepDisplay("local (seed 3)", quiet=False) as display:
        display.step(RECORD, total=4, done=2)
    expected = "local (seed 3): step 2 of 4 (update): data 0.5, alignment 0.25, accuracy 75.0 %\n"
    assert capsys.readouterr().out == expected


def test_quiet_shows_nothing(terminal, capsys) -> None:
    with screen.StepDisplay("local (seed 3)", quiet=True) as display:
        display.step(RECORD, total=4, done=2)
    assert terminal.getvalue() + capsys.readouterr().out == ""


@pytest.mark.parametrize(("share", "text"), [(0.5, "50.0"), (0.123, "12.3"), (None, "–")])
def test_shares_are_shown_in_percent(share, text) -> None:
    assert screen.percent(share) == text


OBEYED = {
    "colour": ("a\x1b[31mge", "a\\u001b[31mge"),
    "one letter for two": ("a\x9b2Jb", "a\\u009b2Jb"),
    "bell and return": ("a\x07\rb", "a\\u0007\\rb"),
    "backwards": ("a\u202eb", "a\\u202eb"),
    "no text": ("a\udcff", "a\\udcff"),
    "letters": ("Größe\u00a0(کیلو\u200cگرم)\n\t体重", "Größe\u00a0(کیلو\u200cگرم)\n\t体重"),
}


@pytest.mark.parametrize(("text", "shown"), OBEYED.values(), ids=OBEYED)
def test_a_terminal_is_given_letters_alone(capsys, text, shown) -> None:
    screen.say(text)
    screen.notice(text)
    screen.complain(text)
    said = capsys.readouterr()
    assert said.out == f"{shown}\n"
    assert said.err == f"note: {shown}\nflic: {shown}\n"


def test_tables_and_bars_are_given_letters_alone(terminal, capsys) -> None:
    screen.table("a\x1b[31m", ["b\x1b[31m"], [["c\x1b[31m"]])
    assert "\x1b" not in capsys.readouterr().out
    with screen.StepDisplay("d\x9b31m", quiet=False) as display:
        display.advance(1, 2, "e\x9b31m")
    with screen.latest_line(quiet=False) as tell:
        tell("f\x9b31m")
    assert "\x9b" not in terminal.getvalue()


def test_what_takes_long_is_said_now_and_then(capsys, monkeypatch) -> None:
    monkeypatch.setattr(screen, "PATIENCE_S", 0.01)
    with screen.still("looking"):
        for _ in range(1000):
            time.sleep(0.01)
            if said := capsys.readouterr().err:
                break
    assert said.startswith("note: still looking, 0 s so far")
    monkeypatch.setattr(screen, "PATIENCE_S", 10.0)
    with screen.still("looking"):
        pass
    assert capsys.readouterr().out == ""
