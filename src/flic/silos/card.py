"""The model card: contents, purpose, performance and limits of a fitted federation."""

from flic.data.task import Regression
from flic.notation import counted
from flic.silos.candidates import CANDIDATES
from flic.silos.fitted import FittedFederation
from flic.silos.verdict import with_interval


def model_card(fitted: FittedFederation) -> str:
    """Markdown for the folder of a fitted federation."""
    return "\n".join([*_head(fitted), "", *_table(fitted), "", *_tail(fitted), ""])


def _head(fitted: FittedFederation) -> list[str]:
    verdict, task = fitted.verdict, fitted.task
    what = (
        f"responses between {task.low:g} and {task.high:g}"
        if isinstance(task, Regression)
        else f"the classes {', '.join(fitted.labels)}"
    )
    every = verdict.all_clients
    return [
        "# Model card",
        "",
        f"Models of {counted(len(fitted.clients), 'client')}, each with its own columns, that "
        f"predict {what}. Fitted with flic; each client's folder below `clients/` holds the model "
        "that it keeps.",
        "",
        "## Verdict",
        "",
        f"Held-out {verdict.metric}, {verdict.splits} splits. Federation against alone, mean over "
        f"the clients of the fit: {with_interval(verdict.metric, every)}.",
    ]


def _table(fitted: FittedFederation) -> list[str]:
    lines = [
        "| client | rows | alone | federation | difference | keeps |",
        "|---|---|---|---|---|---|",
    ]
    metric = fitted.verdict.metric
    for line in fitted.verdict.clients:
        gain = line.difference
        lines.append(
            f"| {_cell(line.client)} | {line.rows} | {line.alone_score:.3f} ({line.alone}) "
            f"| {line.federation_score:.3f} ({line.federation or '–'}) "
            f"| {with_interval(metric, gain)}, {gain.word} "
            f"| {CANDIDATES[line.kept].title} |"
        )
    return lines


def _tail(fitted: FittedFederation) -> list[str]:
    tensors = sorted(fitted.shared.items())  # a file gives them in an order of its own
    sent = ", ".join(f"`{name}` {list(tensor.shape)}" for name, tensor in tensors) or "nothing"
    linked = " For linked columns: counts of rows, and sums of features and of their products."
    return [
        "## What leaves a client",
        "",
        f"In flic's rounds: {sent}, and counts of rows.{linked if fitted.linked else ''} Rows, "
        "encoders, embeddings and heads stay at the client.",
        "",
        "## Limits",
        "",
        "- Scores hold for rows like those of the fit. At another time or place, test again with "
        "`flic evaluate`.",
        "- A client's model predicts only classes that the client has.",
        "- The folder of a client describes its columns and their usual values: keep it private.",
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
