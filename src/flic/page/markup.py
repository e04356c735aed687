"""HTML as values: whatever is not `Markup` is escaped, so no name can become an element."""

from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def el(tag: str, *children: str, **attributes: str | float | bool | None) -> Markup:
    """An element. `class_` means class, `aria_label` means aria-label; False and None are left out.

    Children that are not Markup are text.
    """
    named = "".join(_attribute(name, value) for name, value in attributes.items())
    return Markup(f"<{tag}{named}>{join(*children)}</{tag}>")


def join(*children: str) -> Markup:
    """Children one after the other, text escaped."""
    return Markup("".join(c if isinstance(c, Markup) else escape(c) for c in children))


def _attribute(name: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    spelled = name.rstrip("_").replace("_", "-")
    return f" {spelled}" if value is True else f' {spelled}="{escape(str(value))}"'
