"""What left each client, tensor by tensor, as a table of the page."""

from collections.abc import Sequence

from flic.engine.traffic import ClientTraffic
from flic.page.figures import count, size
from flic.page.markup import Markup, el, join
from flic.page.names import in_order
from flic.page.tables import SHOWN, row_name, show_all, table_frame


def traffic_table(traffic: Sequence[ClientTraffic]) -> Markup:
    """All clients first, tensor by tensor; then each client, folded unless it is the only one."""
    columns = ["Client", "Tensor", "Shape", "Bytes", "Times sent", "Total"]
    unfolded = len(traffic) == 1
    bodies = [_everyone(traffic)] if len(traffic) > 1 else []
    bodies += [
        _client_rows(own, unfolded=unfolded, more=place >= SHOWN)
        for place, own in enumerate(traffic)
    ]
    words = {"Tensor", "Shape"}
    whole = table_frame("What left each client", columns, bodies, words=words, key="traffic-table")
    return join(whole, show_all("traffic-table", len(traffic), "client"))


def _everyone(traffic: Sequence[ClientTraffic]) -> Markup:
    """Each tensor over all clients that sent it."""
    times: dict[tuple[str, tuple[int, ...], int], int] = {}
    for own in traffic:
        for tensor in own.tensors:
            key = (tensor.name, tuple(tensor.shape), tensor.bytes)
            times[key] = times.get(key, 0) + tensor.times
    order = {name: i for i, name in enumerate(in_order(name for name, *_ in times))}
    tensors = [_tensor_row(*key, times[key]) for key in sorted(times, key=lambda k: order[k[0]])]
    total = sum(own.total for own in traffic)
    return el("tbody", _head_row(el("em", "all clients"), total, len(tensors)), *tensors)


def _client_rows(own: ClientTraffic, *, unfolded: bool, more: bool) -> Markup:
    toggle = el(
        "button", own.client, type="button", class_="fold", aria_expanded=str(unfolded).lower()
    )
    tensors = [_tensor_row(t.name, t.shape, t.bytes, t.times) for t in own.tensors]
    head = _head_row(toggle if tensors else own.client, own.total, len(tensors))
    folded = "" if unfolded else "folded"
    return el("tbody", head, *tensors, class_=f"{folded}{' more' if more else ''}".strip() or None)


def _head_row(name: str, total: int, num: int) -> Markup:
    what = count(num, "tensor") if num else "nothing"
    cells = [el("td", what, class_="words", colspan=4), el("td", size(total), title=f"{total:,} B")]
    return el("tr", el("th", row_name(name), scope="row"), *cells, class_="sum")


def _tensor_row(name: str, shape: Sequence[int], each: int, times: int) -> Markup:
    spelled = " × ".join(map(str, shape)) or "1"
    cells = [
        el("td", el("code", name), class_="words"),
        el("td", spelled, class_="words"),
        el("td", f"{each:,}"),
        el("td", f"{times:,}"),
        el("td", size(each * times)),
    ]
    return el("tr", el("td"), *cells, class_="tensor")
