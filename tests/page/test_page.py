"""The page of a report, before any browser draws it."""

import json
import re
from dataclasses import asdict, replace

import pytest

from flic.page.contents import Measure, Report
from flic.page.figures import difference, number, prose, score, size
from flic.page.html import render


def without_library(page: str) -> str:
    """The page without plotly.js and the page's own script."""
    return re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def sections_of(page: str) -> list[str]:
    return re.findall(r'<section id="([^"]+)"', page)


def test_a_report_is_plain_values(hospitals):
    assert json.loads(json.dumps(asdict(hospitals)))["verdict"][0]["client"] == "Cleveland"


def test_sections_come_in_the_order_a_reader_asks(hospitals):
    assert sections_of(render(hospitals)) == [
        "verdict",
        "candidates",
        "rounds",
        "gains",
        "latent",
        "alignment",
        "traffic",
        "notes",
        "settings",
    ]


def test_empty_parts_are_left_out():
    page = render(Report("Nothing", "run"))
    assert sections_of(page) == []
    assert len(page) < 50_000  # no plotly.js where nothing is drawn


@pytest.mark.parametrize(
    ("part", "section"),
    [
        ("verdict", "verdict"),
        ("candidates", "candidates"),
        ("rounds", "rounds"),
        ("gains", "gains"),
        ("latent", "latent"),
        ("alignment", "alignment"),
        ("notes", "notes"),
    ],
)
def test_a_part_makes_its_section_alone(hospitals, part, section):
    only = Report("One part", "federation", **{part: getattr(hospitals, part)})
    assert sections_of(render(only)) == [section]


def test_plotly_is_written_once_and_nothing_is_fetched(hospitals):
    page = render(hospitals)
    assert page.count("plotly.js v") == 1
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', without_library(page))


@pytest.mark.slow
def test_a_verdict_has_a_word_and_a_symbol(crowd):
    page = without_library(render(crowd))
    for symbol, word in (("▲", "helps"), ("≈", "no difference shown"), ("▼", "harms")):
        times = sum(row.word == word for row in crowd.verdict)
        assert times > 0
        # Once for each client, and once in the counts above the table.
        assert page.count(f'<span aria-hidden="true">{symbol}</span> {word}</span>') == times + 1


def test_traffic_adds_up(hospitals):
    page = without_library(render(hospitals))
    total = 4 * (2 * 256 * 5 + 16384 * 5)
    assert f'title="{total:,} B"' in page
    assert page.count(f'title="{total // 4:,} B"') == 4


def test_what_traffic_and_rounds_are_of_is_said_above_them(hospitals):
    page = without_library(render(hospitals))
    for section, note in (("traffic", "What the final fit would"), ("rounds", "Scores are of one")):
        body = page.split(f'<section id="{section}"')[1]
        assert body.index(note) < body.index("<table" if section == "traffic" else "<figure")


@pytest.mark.slow
def test_tensors_of_single_clients_are_folded(hospitals):
    page = without_library(render(hospitals))
    assert page.count('aria-expanded="false">') == page.count('<tbody class="folded">') == 4
    alone = without_library(render(replace(hospitals, traffic=hospitals.traffic[:1])))
    assert "folded" not in alone.split("<main>")[1]


@pytest.mark.slow
def test_preparation_and_last_adaptation_are_no_rounds(hospitals):
    page = without_library(render(hospitals))
    assert "<dt>rounds</dt><dd>19</dd>" in page
    assert "train their own part once more: the last point" in page
    plain = [r for r in hospitals.rounds if r.stage == "update"]
    assert "the last point" not in render(replace(hospitals, rounds=plain))


def test_scores_at_the_end_are_a_fact_of_runs_only(hospitals):
    assert "mean accuracy at the end" not in render(hospitals)
    assert "mean accuracy at the end" in render(replace(hospitals, kind="run"))


def test_ranges_of_responses_are_not_called_classes(hospitals):
    page = without_library(render(replace(hospitals, group="range")))
    assert ">Range</span>" in page
    assert ">Range</th>" in page
    assert not re.search(r"\bclass\b(?!=)", page.split("<main>")[1], re.IGNORECASE)


def test_what_is_kept_has_a_score_and_choices_are_explained(hospitals):
    page = without_library(render(hospitals))
    for row in hospitals.verdict:
        assert f"{100 * row.kept_score:.1f}<small>{row.kept}</small>" in page
    assert "Each score uses the model chosen on that split's training rows" in page
    assert "the most frequent choice" in page


def test_there_is_one_minus(hospitals):
    said = "No difference shown: -0.3 points (95 % interval -4.3 points to +3.7 points)."
    rows = [replace(row, sentence=said) for row in hospitals.verdict]
    page = without_library(render(replace(hospitals, verdict=rows, notes=[said])))
    assert page.count("−4.3 points") == len(rows) + 1
    assert "-4.3 points" not in page


def test_a_client_that_sends_nothing_says_so(hospitals):
    quiet = replace(hospitals.traffic[0], tensors=())
    page = without_library(render(Report("Alone", "run", traffic=[quiet])))
    assert ">nothing</td>" in page


def test_a_measure_without_per_cent(hospitals):
    page = without_library(render(replace(hospitals, measure=Measure("R²", percent=False))))
    row = hospitals.verdict[0]
    assert f"{row.alone:.3f}<small>lda" in page
    assert "accuracy" not in page
    assert "R², %" not in page


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_do_not_break_the_page(hospitals, bad):
    rounds = [replace(r, losses={"data": bad}, test=bad) for r in hospitals.rounds]
    verdict = [replace(v, low=bad) for v in hospitals.verdict]
    page = render(replace(hospitals, rounds=rounds, verdict=verdict))
    data = re.search(r'id="charts">(.*?)</script>', page, re.DOTALL)
    charts = json.loads(data[1], parse_constant=pytest.fail)
    assert set(charts["plot-losses"]["data"][0]["y"]) == {None}


def test_text_is_escaped_in_elements_attributes_and_data(hospitals):
    bad = "</script><b title='\">&"
    measure = Measure(bad, percent=False)
    page = without_library(render(replace(hospitals, title=bad, measure=measure, notes=[bad])))
    assert bad not in page
    spelled = "&lt;/script&gt;&lt;b title=&#39;&#34;&gt;&amp;"
    assert f"<h1>{spelled}</h1>" in page
    assert f'aria-label="Test {spelled}"' in page
    assert f"<li>{spelled}</li>" in page
    data = re.search(r'id="charts">(.*?)</script>', page, re.DOTALL)
    assert bad in json.loads(data[1])["plot-gains"]["layout"]["xaxis"]["title"]["text"]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (score(0.8547, Measure()), "85.5"),
        (score(-0.5, Measure("R²", percent=False)), "−0.500"),
        (score(None, Measure()), "–"),
        (difference(0.012, Measure()), "+1.2"),
        (difference(-0.012, Measure()), "−1.2"),
        (difference(-0.0004, Measure()), "0.0"),
        (difference(0.0004, Measure("R²", percent=False)), "0.000"),
        (score(-0.0004, Measure("R²", percent=False)), "0.000"),
        (prose("-3.7 points (-inf to +2.0)"), "−3.7 points (−∞ to +2.0)"),
        (prose("A difference of -0.0 points"), "A difference of 0.0 points"),
        (prose("run-3.1: set missing=[-9] at 1e-5.0"), "run-3.1: set missing=[-9] at 1e-5.0"),
        (number(1234.6), "1,235"),
        (number(0.012345), "0.0123"),
        (size(999), "999 B"),
        (size(1_250_000), "1.2 MB"),
    ],
)
def test_figures(shown, expected):
    assert shown == expected
