"""Conversion of a report to one HTML file that loads nothing from the network.

The templates define the layout; style.css and behaviour.js are beside this file, and plotly.js is
written into the page once.
"""

from importlib.resources import files

from flic.errors import ConfigError
from flic.notation import counted, json_values
from flic.page import figures, latent_charts, prepared
from flic.page.contents import Report

FILTERS = (
    figures.score,
    figures.difference,
    figures.heading,
    figures.number,
    figures.size,
    counted,
    figures.prose,
    prepared.facts,
    prepared.score_rows,
    prepared.mean_scores,
    prepared.best,
    prepared.by_client_and_class,
    prepared.sent_by_all,
    prepared.dotted,
    latent_charts.splits,
    latent_charts.class_marks,
    latent_charts.client_marks,
)
"""Functions that templates call by their names."""


def render(report: Report) -> str:
    """The whole page."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ConfigError(
            "flic report needs jinja2 and plotly, which are not both installed. "
            "Run: pip install 'flic[report]'"
        ) from None
    templates = Environment(
        loader=PackageLoader("flic.page"),
        autoescape=True,  # no name can become an element
        undefined=StrictUndefined,  # a name that a template misspells is an error
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {function.__name__: function for function in FILTERS}
    # Charts are numbers for the most part: written tightly, they keep the page small.
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return templates.get_template("page.html").render(
        report=report,
        charts=json_values(prepared.drawn(report)),
        style=_part("style.css"),
        behaviour=_part("behaviour.js"),
        plotlyjs=get_plotlyjs,
    )


def _part(name: str) -> str:
    return files("flic.page").joinpath(name).read_text(encoding="utf-8")
