"""Reports of any size to show on a page, and a real browser to open it in."""

import math
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from flic.engine.traffic import ClientTraffic, SentTensor
from flic.page.contents import Gain, Gains, Report, Round, VerdictRow
from flic.page.html import render
from flic.runs.latent import AlignmentCell, Anchor, Latent, LatentPoint

SLOW_MS = 180_000  # a page of megabytes on a machine that is busy with other tests

HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "Long Beach")
SENTENCES = {
    "helps": "The federation predicts better here than any model of its own rows.",
    "no difference shown": "The rows cannot tell the two apart; either will do.",
    "harms": "The federation predicts worse here: stay alone.",
}


def _verdict(name: str, rng: random.Random) -> VerdictRow:
    alone, gain, width = rng.uniform(0.6, 0.85), rng.gauss(0.02, 0.04), rng.uniform(0.01, 0.05)
    low, high = gain - width, gain + width
    word = "helps" if low > 0 else "harms" if high < 0 else "no difference shown"
    kept = "flic-hl" if word == "helps" else "lda"
    sentence = SENTENCES[word]
    rows = rng.randint(100, 400)
    both = ("lda", alone, "flic-hl", alone + gain)
    score = alone + max(gain, 0.0)
    return VerdictRow(name, rows, *both, gain, low, high, word, sentence, kept, score)


def _latent(names: list[str], labels: list[str], rng: random.Random) -> Latent:
    turns = [2 * math.pi * i / len(labels) for i in range(len(labels))]
    anchors = [
        Anchor(5 * math.cos(t), 5 * math.sin(t), c) for t, c in zip(turns, labels, strict=True)
    ]
    points = []
    for _ in range(min(3000, 150 * len(names))):
        anchor = rng.choice(anchors)
        split = rng.choice(["train", "train", "test"])
        wide = 0.9 if split == "train" else 1.4
        x, y = rng.gauss(anchor.x, wide), rng.gauss(anchor.y, wide)
        points.append(LatentPoint(x, y, anchor.label, rng.choice(names), split))
    return Latent(points, anchors, "First two principal components; they hold 61 % of variance.")


def _cells(names: list[str], labels: list[str], rng: random.Random) -> list[AlignmentCell]:
    cells = []
    for name in names:
        for label in labels:
            for split, centre in (("train", 2.0), ("test", 3.5)):
                value = rng.uniform(0.5, 1.5) * centre
                ends = (value - 0.4, value + 0.4) if split == "train" else (None, None)
                cells.append(AlignmentCell(name, label, value, *ends, split))
    return cells


def _traffic(names: list[str], labels: list[str]) -> list[ClientTraffic]:
    tensors = [SentTensor(f"anchor.{i}.mean", [64], 256, 5) for i in range(len(labels))]
    tensors += [SentTensor("hidden.weight", [64, 64], 16384, 5)]
    return [ClientTraffic(name, tensors) for name in names]


def tell(names: list[str], labels: list[str], *, kind: str = "federation") -> Report:
    """A report with every part."""
    rng = random.Random(3)
    verdict = [_verdict(name, rng) for name in names]
    rounds = [
        Round(
            t,
            0.5 + 0.3 * (1 - math.exp(-t / 8)),
            0.52 + 0.3 * (1 - math.exp(-t / 8)),
            {"data": 1.2 * math.exp(-t / 10) + 0.2, "alignment": 0.05 + 0.1 / (t + 1)},
            4000,
            "prepare" if t == 0 else "adapt" if t == 20 else "update",
        )
        for t in range(21)
    ]
    return Report(
        "Heart disease in four hospitals",
        kind,
        verdict=verdict,
        rounds=rounds,
        rounds_note="Scores are of one split.",
        gains=Gains(
            "each client's best own model",
            [Gain(v.client, v.difference, v.low, v.high) for v in verdict],
        ),
        latent=_latent(names, labels, rng),
        alignment=_cells(names, labels, rng),
        traffic=_traffic(names, labels),
        traffic_notes=["What the final fit would send."],
        never_left=["rows and labels", "φ, the embedding of the client's own columns"],
        candidates={
            method: {v.client: v.alone + shift for v in verdict}
            for method, shift in (("lda", 0.0), ("boosting", -0.02), ("flic-hl", 0.02))
        },
        settings={"training": {"rounds": 20, "optimiser": {"learning_rate": 0.001}}, "seed": 0},
        versions={"python": "3.11.2", "flic": "0.1.0"},
        notes=["Switzerland: chol is constant and was left out."],
    )


@pytest.fixture(scope="session")
def hospitals() -> Report:
    """Four clients and two classes."""
    return tell(list(HOSPITALS), ["healthy", "ill"])


@pytest.fixture(scope="session")
def crowd() -> Report:
    """200 clients and 20 classes."""
    report = tell([f"client-{i:03d}" for i in range(200)], [str(c) for c in range(20)])
    return replace(report, title="Two hundred silos")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser without a window; closed soon, as it keeps an event loop running."""
    found = shutil.which("chromium")
    if found is None:
        pytest.fail("chromium was not found: install it, on Debian with apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@dataclass(frozen=True)
class Opened:
    """A page as it stands in the browser, what it complained of and what it asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def show(browser, tmp_path_factory) -> Iterator[Callable[..., Opened]]:
    """show(report, **context): the report's page, or a file, opened in a context of its own."""
    contexts = []

    def open_page(report: Report | Path, **options: object) -> Opened:
        path = report if isinstance(report, Path) else tmp_path_factory.mktemp("page") / "page.html"
        if isinstance(report, Report):
            path.write_text(render(report), encoding="utf-8")
        context = browser.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(SLOW_MS)
        opened = Opened(context.new_page())
        page = opened.page
        page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        page.on("console", lambda said: opened.complaints.append(said.text))

        def refuse(route):
            if route.request.url != path.as_uri():
                opened.requests.append(route.request.url)
                route.abort()
            else:
                route.continue_()

        page.route("**/*", refuse)
        page.goto(path.as_uri())
        return opened

    yield open_page
    for context in contexts:
        context.close()
