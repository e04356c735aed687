"""From a report to one HTML file that asks the network for nothing.

plotly.js is written into the page once; style.css and behaviour.js lie beside this file.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from flic.errors import ConfigError
from flic.notation import json_values
from flic.page.contents import Report
from flic.page.markup import Markup, el, join
from flic.page.sections import Section, facts, sections

# A second lock on the door: even a page that was tampered with can fetch nothing.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)


def render(report: Report) -> str:
    """The whole page."""
    found = sections(report)
    drawn = {key: chart for section in found for key, chart in section.charts.items()}
    head = el(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Markup('<link rel="icon" href="data:,">'),
        el("title", f"{report.title} – flic report"),
        el("style", _part("style.css")),
    )
    page = el(
        "html", head, el("body", _header(report, found), _main(found), _scripts(drawn)), lang="en"
    )
    return f"<!doctype html>\n{page}\n"


def _header(report: Report, found: list[Section]) -> Markup:
    links = [el("li", el("a", section.title, href=f"#{section.key}")) for section in found]
    return el(
        "header",
        el("p", f"flic report · {report.kind}", class_="kind"),
        el("h1", report.title),
        facts(report),
        el("nav", el("ul", *links), aria_label="Sections") if len(links) > 1 else "",
    )


def _main(found: list[Section]) -> Markup:
    parts = [
        el(
            "section",
            el("h2", section.title, id=f"{section.key}-title"),
            section.body,
            id=section.key,
            aria_labelledby=f"{section.key}-title",
        )
        for section in found
    ]
    return el("main", *parts)


def _scripts(drawn: Mapping[str, Any]) -> Markup:
    data = el("script", _json(drawn), type="application/json", id="charts")
    library = el("script", Markup(_plotly())) if drawn else Markup()
    note = el("noscript", el("p", "The charts and switches of this page need JavaScript."))
    return join(note, data, library, el("script", _part("behaviour.js")))


def _json(value: object) -> Markup:
    """JSON that cannot end its script element, whatever names it holds."""
    text = json.dumps(
        json_values(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False
    )
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028"))


def _part(name: str) -> Markup:
    return Markup(files("flic.page").joinpath(name).read_text(encoding="utf-8"))


def _plotly() -> str:
    """plotly.js as the installed plotly brings it."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ConfigError(
            "flic report draws with plotly, which is not installed. Run: pip install 'flic[report]'"
        ) from None
    return get_plotlyjs()
