"""Tables, which show their first rows until the reader asks for all; print shows all."""

from collections.abc import Sequence

from flic.page.figures import count
from flic.page.markup import Markup, el, join

SHOWN = 12  # rows of a table before the reader asks for all


def row_name(name: str) -> Markup:
    """A row's name in a box that is as wide as it needs, up to a limit."""
    return el("div", name, class_="name")


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: set[str] | None = None,
    noun: str = "client",
    before: int = 0,
) -> Markup:
    """A table whose rows beyond the first wait behind a button; `words` align to the left.

    The first `before` rows are sums and do not count.
    """
    key = "table-" + "".join(c if c.isalnum() else "-" for c in caption.lower())
    lines = [
        el(
            "tr",
            el("th", row_name(row[0]), scope="row"),
            *(
                el("td", cell, class_="words" if column in (words or ()) else None)
                for column, cell in zip(columns[1:], row[1:], strict=True)
            ),
            class_="more" if place >= SHOWN + before else None,
        )
        for place, row in enumerate(rows)
    ]
    whole = table_frame(caption, columns, [el("tbody", *lines)], words=words, key=key)
    return join(whole, show_all(key, len(rows) - before, noun))


def table_frame(
    caption: str,
    columns: Sequence[str],
    bodies: Sequence[Markup],
    *,
    words: set[str] | None = None,
    key: str | None = None,
) -> Markup:
    """A table in a box of its own that scrolls sideways where the screen is narrow."""
    left = {columns[0], *(words or ()), "Value"}
    head = [
        el("th", column, scope="col", class_="words" if column in left else None)
        for column in columns
    ]
    inner = [el("caption", caption), el("thead", el("tr", *head)), *bodies]
    whole = el("table", *inner, id=key, class_="short" if key else None)
    return el("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def show_all(key: str, num: int, noun: str) -> Markup:
    """A button for the rows that wait, if any do."""
    if num <= SHOWN:
        return Markup()
    text = f"Show all {count(num, noun)}"
    return el("button", text, type="button", class_="all", aria_expanded="false", aria_controls=key)
