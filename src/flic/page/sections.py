"""Sections of the page, from a report's parts: each a heading, text, tables and its charts."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flic.page import charts, latent_charts, marks
from flic.page.charts import Chart
from flic.page.contents import Report, VerdictRow, Word
from flic.page.figures import (
    UNKNOWN,
    count,
    difference,
    heading,
    number,
    prose,
    score,
    size,
)
from flic.page.markup import Markup, el, join
from flic.page.names import distinct
from flic.page.tables import row_name, table, table_frame
from flic.page.traffic_table import traffic_table
from flic.runs.latent import AlignmentCell, Split

BUTTONS = {"label": 32, "client": 12}  # up to which each has a button of its own in a legend
SHOWN_NOTES = 5

SYMBOLS: Mapping[Word, str] = {"helps": "▲", "no difference shown": "≈", "harms": "▼"}
CLASSES: Mapping[Word, str] = {"helps": "helps", "no difference shown": "same", "harms": "harms"}
CHOSEN = (
    "Alone, federation and keeps are scores of what would have been chosen on each split without "
    "looking at its held-out rows, which may be another model on another split. Alone and "
    "federation are named after the most frequent choice, keeps after the choice by all rows; "
    "that is why they differ from the scores of single candidates."
)
SPLITS: Mapping[Split, str] = {"train": "Training rows", "test": "Test rows"}


@dataclass(frozen=True)
class Section:
    """A part of the page; `charts` by the id of the element they are drawn in."""

    key: str
    title: str
    body: Markup
    charts: Mapping[str, Chart] = field(default_factory=dict)


def sections(report: Report) -> list[Section]:
    """All sections that the report has something for, in their order."""
    makers: Sequence[Callable[[Report], Section | None]] = (
        _verdict,
        _candidates,
        _rounds,
        _gains,
        _latent,
        _alignment,
        _traffic,
        _notes,
        _settings,
    )
    return [section for make in makers if (section := make(report)) is not None]


def facts(report: Report) -> Markup:
    """The figures a reader looks for first."""
    found: dict[str, str] = {}
    clients = max(len(report.verdict), len(report.traffic), *map(len, _candidate_rows(report)), 0)
    if clients:
        found["clients"] = f"{clients:,}"
    if trained := sum(r.stage == "update" for r in report.rounds):
        found["rounds"] = f"{trained:,}"
    tested = [r.test for r in report.rounds if r.test is not None]
    if tested and report.kind == "run":  # of a federation, the verdict says how good it is
        unit = "\u00a0%" if report.measure.percent else ""
        found[f"mean {report.measure.name} at the end"] = score(tested[-1], report.measure) + unit
    if report.traffic:
        sent = "left all clients together" if report.kind == "run" else "sent in the final fit"
        found[sent] = size(sum(t.total for t in report.traffic))
    pairs = [el("div", el("dt", name), el("dd", value)) for name, value in found.items()]
    return el("dl", *pairs, class_="facts") if pairs else Markup()


def _candidate_rows(report: Report) -> list[Mapping[str, float]]:
    return [{}, *report.candidates.values()]


# ---- verdict -----------------------------------------------------------------------------


def _verdict(report: Report) -> Section | None:
    if not report.verdict:
        return None
    measure = report.measure
    counts = [
        el("li", _word(word), f" {sum(row.word == word for row in report.verdict)}")
        for word in SYMBOLS
    ]
    rows = [
        [
            join(row.client, el("small", count(row.rows, "row"))),
            _interval(row, report),
            join(_word(row.word), el("small", prose(row.sentence), class_="sentence")),
            _with_model(score(row.alone, measure), row.alone_model),
            _with_model(score(row.federation, measure), row.federation_model),
            _with_model(score(row.kept_score, measure), row.kept),
        ]
        for row in report.verdict
    ]
    columns = [
        "Client",
        "Difference [95\u00a0%\u00a0interval]",
        "Verdict",
        f"Alone, {heading(measure)}",
    ]
    columns += [f"Federation, {heading(measure)}", kept := f"Keeps, {heading(measure)}"]
    body = join(
        el("ul", *counts, class_="counts"),
        table("Verdict per client", columns, rows, words={"Verdict", kept}),
        el("p", CHOSEN, class_="about"),
    )
    return Section("verdict", "Does the federation help?", body)


def _word(word: Word) -> Markup:
    symbol = el("span", SYMBOLS[word], aria_hidden="true")
    return el("span", symbol, f" {word}", class_=f"word {CLASSES[word]}")


def _with_model(value: str, model: str) -> Markup:
    return join(value, el("small", model))


def _interval(row: VerdictRow, report: Report) -> Markup:
    low, high = (difference(end, report.measure) for end in (row.low, row.high))
    return join(difference(row.difference, report.measure), el("small", f"[{low}, {high}]"))


def _candidates(report: Report) -> Section | None:
    methods = list(report.candidates)
    clients = distinct(name for own in report.candidates.values() for name in own)
    if not clients:
        return None
    rows: list[Sequence[str]] = []
    several = len(clients) > 1
    if several:
        means = [_mean(report.candidates[method].values()) for method in methods]
        rows.append([el("em", "mean over clients"), *_best_marked(means, report)])
    rows += [
        [client, *_best_marked([report.candidates[m].get(client) for m in methods], report)]
        for client in clients
    ]
    title = f"Test {heading(report.measure)}"
    hint = "The best of each row is bold." if len(methods) > 1 else ""
    whole = table(title, ["Client", *methods], rows, before=int(several))
    body = join(el("p", hint) if hint else "", whole)
    return Section("candidates", "Scores per client", body)


def _mean(values: Any) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def _best_marked(values: Sequence[float | None], report: Report) -> list[Markup]:
    known = [v for v in values if v is not None and v == v]
    best = (max if report.measure.higher_is_better else min)(known, default=None)
    return [
        el("strong", score(v, report.measure))
        if len(values) > 1 and v is not None and v == best
        else join(score(v, report.measure))
        for v in values
    ]


# ---- charts ------------------------------------------------------------------------------


def _rounds(report: Report) -> Section | None:
    drawn = {}
    if any(r.test is not None or r.validation is not None for r in report.rounds):
        drawn["plot-scores"] = charts.scores(report)
    if any(r.losses for r in report.rounds):
        drawn["plot-losses"] = charts.losses(report.rounds)
    if not drawn:
        return None
    captions = {
        "plot-scores": f"Mean {report.measure.name} over clients.",
        "plot-losses": "Loss terms, mean over the clients that worked in the round.",
    }
    figures = el("div", *(_figure(key, captions[key]) for key in drawn), class_="pair")
    said = [report.rounds_note] if report.rounds_note else []
    if report.rounds[-1].stage == "adapt":
        said.append("After the last round, clients train their own part once more: the last point.")
    body = join(el("p", " ".join(said), class_="about") if said else "", figures)
    return Section("rounds", "Over the rounds", body, drawn)


def _gains(report: Report) -> Section | None:
    found = report.gains
    if found is None or not found.clients:
        return None
    caption = (
        f"Against {found.against}, with 95 % intervals where they are known. "
        "▲\u00a0above zero, ▼\u00a0below zero, ●\u00a0not told apart from zero."
    )
    drawn = {"plot-gains": charts.gains(found, report.measure)}
    return Section("gains", "Gain per client", _figure("plot-gains", caption), drawn)


def _latent(report: Report) -> Section | None:
    view = report.latent
    if view is None or not view.points:
        return None
    labels, clients = latent_charts.latent_labels(view), latent_charts.latent_clients(view)
    legend = el(
        "div",
        _legend(report.group.capitalize(), "label", labels, marks.class_swatch),
        _legend("Client", "client", clients, marks.client_swatch),
        class_="legend",
        data_for="plot-latent",
    )
    said = [f"A row has the colour of its {report.group} and the shape of its client."]
    if view.anchors:
        said.append("Stars are the anchors.")
    if len(clients) > len(marks.SHAPES):
        said.append("Shapes come again; choose a client to see its rows alone.")
    caption = " ".join([*said, view.caption])
    switch = _switch("plot-latent", latent_charts.splits(p.split for p in view.points))
    body = join(switch, legend, _figure("plot-latent", caption.strip()))
    drawn = {"plot-latent": latent_charts.latent(view, report.group)}
    return Section("latent", "The latent space", body, drawn)


def _legend(title: str, kind: str, names: Sequence[str], swatch: Callable[[int], Markup]) -> Markup:
    """Buttons that highlight, or a list to choose from where there are many."""
    if len(names) <= BUTTONS[kind]:
        chosen = [
            el(
                "button",
                swatch(i),
                el("span", name),
                type="button",
                aria_pressed="false",
                **{f"data_{kind}": i},
            )
            for i, name in enumerate(names)
        ]
        return el("div", el("span", title, class_="of"), *chosen, role="group", aria_label=title)
    options = [el("option", name, value=i) for i, name in enumerate(names)]
    everyone = el("option", f"all {len(names)}", value="")
    select = el("select", everyone, *options, **{f"data_{kind}": "choice"})
    return el("div", el("label", el("span", title, class_="of"), select))


def _alignment(report: Report) -> Section | None:
    if not report.alignment:
        return None
    cells: dict[tuple[str, str], dict[Split, AlignmentCell]] = {}
    for cell in report.alignment:
        cells.setdefault((cell.client, cell.label), {})[cell.split] = cell
    which = latent_charts.splits(c.split for c in report.alignment)
    rows = [
        [client, row_name(label), *(_w2sq(found.get(split)) for split in which)]
        for (client, label), found in cells.items()
    ]
    kind = report.group.capitalize()
    columns = ["Client", kind, *(SPLITS[split] for split in which)]
    caption = (
        f"Squared Wasserstein distance between a client's embedded rows of a {report.group} and "
        f"the anchor of the {report.group}: the smaller, the closer."
    )
    if any(cell.low is None for cell in report.alignment):
        caption += (
            f" An interval needs more rows of the {report.group} than latent dimensions; without "
            "one, the distance is that of the sample, which lies above the true one."
        )
    whole = table("W₂² [95 % interval]", columns, rows, words={kind}, noun="row")
    body = join(
        _switch("plot-alignment", which),
        el("div", _figure("plot-alignment", caption), el("div", whole), class_="pair"),
    )
    drawn = {"plot-alignment": latent_charts.alignment(report.alignment, report.group)}
    return Section("alignment", "Alignment with the anchors", body, drawn)


def _w2sq(cell: AlignmentCell | None) -> Markup:
    if cell is None:
        return join(UNKNOWN)
    ends = el("small", f"[{number(cell.low)}, {number(cell.high)}]") if cell.low is not None else ""
    return join(number(cell.w2sq), ends)


def _switch(plot: str, which: Sequence[Split]) -> Markup:
    """Buttons that choose between training and test rows, where there are both."""
    if len(which) < 2:
        return Markup()
    buttons = [
        el(
            "button",
            SPLITS[split],
            type="button",
            aria_pressed="true" if split == which[0] else "false",
            data_split=split,
        )
        for split in which
    ]
    return el("div", *buttons, class_="switch", role="group", aria_label="Rows", data_for=plot)


def _figure(key: str, caption: str) -> Markup:
    return el("figure", el("div", id=key, class_="plot"), el("figcaption", caption))


# ---- traffic, notes and settings ---------------------------------------------------------


def _traffic(report: Report) -> Section | None:
    if not report.traffic and not report.never_left:
        return None
    parts = [el("p", note, class_="about") for note in report.traffic_notes]
    if report.traffic:
        parts.append(traffic_table(report.traffic))
    if report.never_left:
        kept = [el("li", what) for what in report.never_left]
        parts += [el("h3", "What never left"), el("ul", *kept, class_="kept")]
    return Section("traffic", "What left each client", join(*parts))


def _notes(report: Report) -> Section | None:
    if not report.notes:
        return None
    items = [el("li", prose(note)) for note in report.notes]
    first, rest = items[:SHOWN_NOTES], items[SHOWN_NOTES:]
    body = el("ul", *first, class_="notes")
    if rest:
        more = el("summary", f"{len(rest)} more")
        body = join(body, el("details", more, el("ul", *rest, class_="notes")))
    return Section("notes", "Notes", body)


def _settings(report: Report) -> Section | None:
    parts = {"Settings": _flat(report.settings), "Versions": _flat(report.versions)}
    folds = [
        el("details", el("summary", title), table_frame(title, ["Name", "Value"], [_pairs(pairs)]))
        for title, pairs in parts.items()
        if pairs
    ]
    return Section("settings", "Settings and versions", join(*folds)) if folds else None


def _pairs(pairs: Mapping[str, str]) -> Markup:
    rows = [
        el("tr", el("th", el("code", name), scope="row"), el("td", value, class_="words"))
        for name, value in pairs.items()
    ]
    return el("tbody", *rows)


def _flat(nested: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Settings by their dotted names."""
    flat: dict[str, str] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{before}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            flat[f"{before}{name}"] = text
    return flat
