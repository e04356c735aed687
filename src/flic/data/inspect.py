"""Checks of the clients' data before any training starts.

All problems are reported at once, each as a sentence that names the client, what it got, what is
expected and what to do.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from flic.data.client_data import ClientData, FederatedData, Split
from flic.data.findings import Finding
from flic.data.task import Classification, Regression, Task
from flic.errors import DataError
from flic.notation import counted, listed, quoted


def refuse_unusable(data: FederatedData) -> list[Finding]:
    """Check data, and return the notices about them.

    Raises:
        DataError: listing every fatal finding, one per line.
    """
    findings = inspect(data)
    fatal = [finding.message for finding in findings if finding.fatal]
    if fatal:
        heading = f"Data '{data.name}' cannot be used; problems: {len(fatal)}."
        raise DataError("\n".join([heading, *fatal]))
    return findings


def inspect(data: FederatedData) -> list[Finding]:
    """All problems of the federation, then of each client in turn."""
    findings = list(_about_federation(data))
    for client in data.clients:
        findings += _about_client(client, data.task)
    return findings


def _about_federation(data: FederatedData) -> Iterator[Finding]:
    if not data.clients:
        message = f"Data '{data.name}' has no clients; expected at least one. Add a client."
        yield Finding(None, True, message)
    elif not any(len(client.test) for client in data.clients):
        message = (
            f"No client of '{data.name}' has test rows; expected some, or nothing can be measured. "
            "Keep part of each client's rows for testing."
        )
        yield Finding(None, True, message)
    elif isinstance(data.task, Regression) and not any(map(_test_differs, data.clients)):
        message = (
            f"No client of '{data.name}' has test rows with different responses; expected some, "
            "or no R² can be computed. Keep more of each client's rows for testing."
        )
        yield Finding(None, True, message)
    for name in _repeated(client.name for client in data.clients):
        message = (
            f"Client name '{name}' is used more than once; expected one name per client, since "
            "results and random draws go by name. Rename all but one."
        )
        yield Finding(name, True, message)


def _test_differs(client: ClientData) -> bool:
    y = client.test.y
    return bool((y != y[:1]).any())


def _about_client(client: ClientData, task: Task) -> Iterator[Finding]:
    yield from _about_schema(client)
    splits = {"training": client.train, "validation": client.validation, "test": client.test}
    for which, split in splits.items():
        if len(split.x) != len(split.y):
            yield _fatal(
                client,
                f"has {counted(len(split.x), f'{which} row')} and "
                f"{counted(len(split.y), 'label')}; expected one label per row. Rebuild the split.",
            )
        yield from _about_columns(client, which, split)
        yield from _about_values(client, which, split)
        yield from _about_labels(client, which, split, task)
    yield from _about_sizes(client, task)
    yield from _about_idle_features(client)


def _about_schema(client: ClientData) -> Iterator[Finding]:
    if not client.schema.features:
        yield _fatal(client, "has no features; expected at least one. Add a column or drop it.")
    repeated = _repeated(client.schema.features)
    if repeated:
        yield _fatal(
            client,
            f"declares more than once: {quoted(repeated)}; expected each feature name once. "
            "Rename or drop the repeats.",
        )


def _about_columns(client: ClientData, which: str, split: Split) -> Iterator[Finding]:
    columns, dim = split.x.shape[1], client.schema.dim
    if columns != dim:
        yield _fatal(
            client,
            f"has {counted(columns, 'column')} in its {which} rows; expected {dim}, as its schema "
            "declares. Re-export the rows or correct the schema.",
        )


def _about_values(client: ClientData, which: str, split: Split) -> Iterator[Finding]:
    is_bad = ~split.x.isfinite()
    if is_bad.any():
        yield _fatal(
            client,
            f"has {counted(int(is_bad.sum()), 'NaN or infinite value')} in its {which} rows, in "
            f"{_features(client, is_bad.any(dim=0))}; expected finite numbers. "
            "Fill them in, or drop those rows or features.",
        )


def _about_labels(client: ClientData, which: str, split: Split, task: Task) -> Iterator[Finding]:
    wrong = unusable_labels(which, split.y, task)
    if wrong is not None:
        yield _fatal(client, wrong)
    if isinstance(task, Classification) and not split.y.is_floating_point():
        yield from _about_untrained_classes(client, which, split)
    elif isinstance(task, Regression) and wrong is None and len(split):
        yield from _about_responses(client, which, split, task)


def unusable_labels(which: str, y: Tensor, task: Task) -> str | None:
    """The reason why no loss can take a split's labels, in words after the client's name."""
    if not len(y):  # an empty split has labels of any type
        return None
    kinds = {"classification": "int64", "regression": "float"}
    if kinds[task.name] not in str(y.dtype):
        return (
            f"has {which} labels of type {y.dtype}; expected {kinds[task.name]}, since the task is "
            f"{task.name}. Convert the labels or declare another task."
        )
    if isinstance(task, Classification):
        return _labels_outside(which, y, task.num_classes)
    return _responses_not_finite(which, y)


def _labels_outside(which: str, y: Tensor, num_classes: int) -> str | None:
    outside = y[(y < 0) | (y >= num_classes)].unique().tolist()
    if not outside:
        return None
    return (
        f"has {which} labels {listed(outside)}; expected 0 to {num_classes - 1}. "
        "Correct the labels or the number of classes."
    )


def _responses_not_finite(which: str, y: Tensor) -> str | None:
    is_bad = ~y.isfinite()
    if not is_bad.any():
        return None
    return (
        f"has {counted(int(is_bad.sum()), 'NaN or infinite response')} in its {which} rows; "
        "expected finite numbers. Fill them in or drop those rows."
    )


def _about_responses(
    client: ClientData, which: str, split: Split, task: Regression
) -> Iterator[Finding]:
    beyond = (split.y - task.high).maximum(task.low - split.y)
    is_outside = beyond > 0
    if is_outside.any():
        found = (
            f"has {counted(int(is_outside.sum()), f'{which} response')} outside the declared range "
            f"{task.low:g} to {task.high:g}, between {split.y.min():g} and {split.y.max():g}"
        )
        # That far out, it is rather another unit than an outlier.
        if beyond.max() > task.width:
            text = f"{found}; expected all within. Correct the responses or the range."
            yield _fatal(client, text)
        else:
            yield _notice(
                client, f"{found}. flic keeps such responses; widen the range if they are common."
            )
    if which == "test" and not _test_differs(client):
        yield _notice(
            client,
            f"has the same response, {split.y[0]:g}, in all test rows, so that it has no R²; it "
            "counts in errors only. Add test rows if there are any.",
        )


def _about_untrained_classes(client: ClientData, which: str, split: Split) -> Iterator[Finding]:
    untrained = sorted(set(split.y.tolist()) - set(client.classes))
    if untrained:
        yield _fatal(
            client,
            f"has {which} rows of classes it has no training row of: {listed(untrained)}; "
            f"expected only {listed(client.classes)}. Add training rows or drop these.",
        )


def _about_sizes(client: ClientData, task: Task) -> Iterator[Finding]:
    """Findings about the number of training rows, in all and per class."""
    if isinstance(task, Regression):
        yield from _about_different_responses(client)
        return
    counts = client.class_counts
    single = [label for label, count in counts.items() if count == 1]
    if len(client.train) < 2:
        yield _fatal(
            client,
            f"has {_few(len(client.train))}; expected two classes with a row each "
            "at least. Give it more rows or leave it out.",
        )
    elif len(counts) == 1:
        yield _fatal(
            client,
            f"has training rows of class {client.classes[0]} only; expected at least two classes, "
            "or there is nothing to tell apart. Give it another class or leave it out.",
        )
    elif single:
        yield _notice(
            client,
            f"has a single training row of {_classes(single)}; a covariance needs two, so "
            "alignment there is by the mean alone. Add rows if there are any.",
        )


def _about_different_responses(client: ClientData) -> Iterator[Finding]:
    y = client.train.y
    if len(y) < 2:
        yield _fatal(
            client,
            f"has {_few(len(y))}; expected two with different responses at least. "
            "Give it more rows or leave it out.",
        )
    elif (y == y[0]).all():
        yield _fatal(
            client,
            f"has the same response, {y[0]:g}, in all training rows; expected different ones, or "
            "there is nothing to learn. Give it other rows or leave it out.",
        )


def _about_idle_features(client: ClientData) -> Iterator[Finding]:
    """Notices about features that do not help to tell training rows apart."""
    x = client.train.x
    if len(x) < 2 or client.schema.shape is not None:  # images have a margin
        return
    is_constant = (x == x[0]).all(dim=0)
    if is_constant.any():
        yield _notice(
            client,
            f"has {counted(int(is_constant.sum()), 'feature')} of one value in all training rows: "
            f"{_features(client, is_constant)}. flic keeps such features; dropping them changes "
            "little.",
        )
    is_copy = _equals_earlier_column(x) & ~is_constant
    if is_copy.any():
        yield _notice(
            client,
            f"has {counted(int(is_copy.sum()), 'feature')} equal to an earlier one in all training "
            f"rows: {_features(client, is_copy)}. flic keeps such features; dropping them changes "
            "little.",
        )


def _equals_earlier_column(x: Tensor) -> Tensor:
    """Boolean mask of the columns that equal an earlier one."""
    group = x.unique(dim=1, return_inverse=True)[1]
    position = torch.arange(len(group))
    first = position.new_full((len(group),), len(group)).scatter_reduce(0, group, position, "amin")
    return first[group] < position


def _few(rows: int) -> str:
    """Fewer than two training rows, in words."""
    return "one training row" if rows else "no training rows"


def _classes(labels: Sequence[int]) -> str:
    return f"{'class' if len(labels) == 1 else 'classes'} {listed(labels)}"


def _fatal(client: ClientData, text: str) -> Finding:
    return Finding(client.name, True, f"Client '{client.name}' {text}")


def _notice(client: ClientData, text: str) -> Finding:
    return Finding(client.name, False, f"Client '{client.name}' {text}")


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _features(client: ClientData, is_chosen: Tensor) -> str:
    """Names of the chosen columns, or their numbers where the schema is too short."""
    names = client.schema.features
    columns = is_chosen.nonzero().flatten().tolist()
    return quoted(names[j] if j < len(names) else f"column {j}" for j in columns)
