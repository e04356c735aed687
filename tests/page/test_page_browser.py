"""The page in a real browser: it draws, switches, prints, and asks for nothing."""

from dataclasses import replace

import pytest
from playwright.sync_api import expect

from flic.page.contents import Report

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
PLOTS = ("scores", "losses", "gains", "latent", "alignment")
HOSTILE = (
    "<script>window.broken = 1</script>",
    '"><img src=x onerror="window.broken = 1">',
    "</script><script>window.broken = 1</script>",
    "Ünïcödé 病院 🏥 \u202e right to left \u2028",
    "a" * 300,
    "<b>bold</b> & <a href='https://example.org'>link</a> %{x}",
)


def width_beyond_screen(page) -> int:
    return page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


def marks_in_sight(page) -> int:
    return page.locator("#plot-latent .scatterlayer path.point").count()


@pytest.fixture(scope="module")
def crowded(show, crowd):
    """The page of 200 clients, opened once: it takes seconds."""
    return show(crowd, color_scheme="dark")


@pytest.fixture(scope="module")
def laptop(show, hospitals):
    """The page of four hospitals, opened once: each test leaves it as it was."""
    return show(hospitals)


@pytest.fixture(scope="module")
def phone(show, hospitals):
    """The same on a phone, opened once."""
    return show(hospitals, **PHONE)


@pytest.fixture(scope="module")
def dark(show, hospitals):
    """The same on a dark screen."""
    return show(hospitals, color_scheme="dark")


@pytest.mark.browser
@pytest.mark.parametrize("screen", ["laptop", "phone", "dark"])
def test_every_plot_is_drawn_without_complaint_or_request(request, screen):
    assert_drawn(request.getfixturevalue(screen))


def test_200_clients_are_drawn_and_stay_usable(crowded):
    assert_drawn(crowded)
    assert crowded.page.locator("#plot-alignment").bounding_box()["height"] <= 600
    assert crowded.page.evaluate("document.documentElement.scrollHeight") < 9000


def assert_drawn(opened) -> None:
    for name in PLOTS:
        plot = opened.page.locator(f"#plot-{name}")
        assert plot.locator("svg.main-svg").first.bounding_box()["height"] > 100
        kind = "image" if name == "alignment" else "path.point, path.js-line"
        assert plot.locator(kind).count() > 0, name
    assert opened.complaints == []
    assert opened.requests == []
    assert width_beyond_screen(opened.page) == 0


def test_a_request_would_be_noticed(show, tmp_path):
    (tmp_path / "bad.html").write_text("<img src='https://example.org/x.png'>")
    assert show(tmp_path / "bad.html").requests == ["https://example.org/x.png"]


@pytest.mark.parametrize("plot", ["latent", "alignment"])
def test_the_switch_between_training_and_test_rows(laptop, hospitals, plot):
    page = laptop.page
    switch = page.locator(f'[data-for="plot-{plot}"].switch button')
    train, test = switch.nth(0), switch.nth(1)
    before = page.locator(f"#plot-{plot} .cartesianlayer").inner_html()
    test.click()
    assert (train.get_attribute("aria-pressed"), test.get_attribute("aria-pressed")) == (
        "false",
        "true",
    )
    assert page.locator(f"#plot-{plot} .cartesianlayer").inner_html() != before
    train.click()
    assert train.get_attribute("aria-pressed") == "true"
    if plot == "latent":
        own = sum(point.split == "train" for point in hospitals.latent.points)
        assert marks_in_sight(page) == own + len(hospitals.latent.anchors)


@pytest.mark.parametrize(
    ("button", "fits"),
    [
        ("ill", lambda point: point.label == "ill"),
        ("Hungary", lambda point: point.client == "Hungary"),
    ],
)
def test_the_legend_highlights(laptop, hospitals, button, fits):
    page = laptop.page
    chosen = page.locator(".legend").get_by_role("button", name=button, exact=True)
    chosen.click()
    assert chosen.get_attribute("aria-pressed") == "true"
    faint = page.locator("#plot-latent path.point[style*='opacity: 0.06']").count()
    shown = [point for point in hospitals.latent.points if point.split == "train"]
    assert faint == sum(not fits(point) for point in shown)
    chosen.click()
    assert page.locator("#plot-latent path.point[style*='opacity: 0.06']").count() == 0


def test_one_of_many_clients_is_chosen_from_a_list(crowded, crowd):
    page = crowded.page
    page.locator("select[data-client]").select_option(label="client-007")
    bright = page.locator("#plot-latent path.point[style*='opacity: 0.85']").count()
    own = [p for p in crowd.latent.points if (p.client, p.split) == ("client-007", "train")]
    assert bright == len(own) > 0


def test_long_tables_open_on_demand(crowded):
    page = crowded.page
    rows = page.locator("#verdict tbody tr:visible")
    assert rows.count() == 12
    button = page.get_by_role("button", name="Show all 200 clients").first
    button.click()
    assert rows.count() == 200
    page.get_by_role("button", name="Show fewer").click()
    assert rows.count() == 12


def test_the_tensors_of_a_client_unfold(crowded, crowd):
    page = crowded.page
    one = page.locator("#traffic tbody", has=page.get_by_role("button", name="client-003"))
    assert one.locator(".tensor:visible").count() == 0
    one.get_by_role("button").click()
    assert one.locator(".tensor:visible").count() == len(crowd.traffic[3].tensors)


def test_wide_tables_scroll_in_their_own_box(phone):
    box = phone.page.locator("#verdict .scroll")
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")
    assert box.get_attribute("tabindex") == "0"


@pytest.mark.parametrize("width", [1000, 1280])
def test_the_verdict_fits_a_laptop(show, hospitals, width):
    kept = "flic (shared anchors, private embeddings)"
    said = "No difference shown for Long Beach: +14.0 points (95 % interval −12.0 to +20.0 points)."
    rows = [replace(row, kept=kept, sentence=said) for row in hospitals.verdict]
    report = replace(hospitals, verdict=rows)
    page = show(report, viewport={"width": width, "height": 900}).page
    assert page.locator("#verdict .scroll").evaluate("box => box.scrollWidth <= box.clientWidth")


def test_a_phone_shows_the_difference_and_that_there_is_more(phone):
    page = phone.page
    cell = page.locator("#verdict tbody tr").first.locator("td").first.bounding_box()
    assert cell["x"] + cell["width"] < PHONE["viewport"]["width"]
    shades = page.locator("#verdict .scroll").evaluate("box => getComputedStyle(box).background")
    assert shades.count("linear-gradient") == 4


def test_print_opens_what_is_folded_in_black_on_white(crowded):
    page = crowded.page
    details = page.locator("details")
    assert page.locator("details[open]").count() == 0
    page.emulate_media(media="print")
    # Charts of 200 clients are drawn anew for paper first, which a busy machine takes its time for.
    expect(page.locator("details:not([open])")).to_have_count(0, timeout=30_000)
    assert details.first.locator("table").is_visible()
    assert page.locator("#verdict tbody tr:visible").count() == 200
    assert not page.locator(".switch").first.is_visible()
    ink = "getComputedStyle(document.body)"
    assert page.evaluate(f"[{ink}.color, {ink}.backgroundColor]") == [
        "rgb(0, 0, 0)",
        "rgb(255, 255, 255)",
    ]
    page.emulate_media(media="screen")
    expect(page.locator("details[open]")).to_have_count(0)


def test_printed_sections_begin_on_pages_of_their_own(laptop):
    pdf = laptop.page.pdf(format="A4")
    assert pdf.count(b"/Type /Page\n") >= 8


def renamed(report: Report) -> Report:
    """The report with hostile text in the place of every name."""
    names = [*HOSTILE[:4]]
    new = dict(zip([v.client for v in report.verdict], names, strict=True))
    label = {"healthy": HOSTILE[4], "ill": HOSTILE[5]}
    view, gains = report.latent, report.gains
    return replace(
        report,
        title=HOSTILE[0],
        verdict=[
            replace(v, client=new[v.client], sentence=HOSTILE[1], kept=HOSTILE[5])
            for v in report.verdict
        ],
        rounds=[replace(r, losses={HOSTILE[2]: 1.0, HOSTILE[5]: 2.0}) for r in report.rounds],
        gains=replace(
            gains,
            against=HOSTILE[1],
            clients=[replace(g, client=new[g.client]) for g in gains.clients],
        ),
        latent=replace(
            view,
            points=[replace(p, client=new[p.client], label=label[p.label]) for p in view.points],
            anchors=[replace(a, label=label[a.label]) for a in view.anchors],
        ),
        alignment=[
            replace(c, client=new[c.client], label=label[c.label]) for c in report.alignment
        ],
        traffic=[replace(t, client=new[t.client]) for t in report.traffic],
        never_left=list(HOSTILE),
        candidates={HOSTILE[2]: {HOSTILE[0]: 0.5}, HOSTILE[4]: {HOSTILE[1]: 0.5}},
        settings={HOSTILE[2]: {HOSTILE[4]: HOSTILE[0]}},
        notes=list(HOSTILE),
    )


@pytest.mark.parametrize("options", [{}, PHONE], ids=str)
def test_hostile_names_are_text(show, hospitals, options):
    opened = show(renamed(hospitals), **options)
    page = opened.page
    assert page.evaluate("window.broken") is None
    assert page.locator("h1").inner_text() == HOSTILE[0]
    assert page.locator("img").count() == 0
    assert page.locator("a:not([href^='#'])").count() == 0
    # In charts too: a tick of the axis is the name, cut, and no element of it.
    ticks = page.locator("#plot-gains .ytick text").all_text_contents()
    assert any(tick.startswith("<script>") for tick in ticks), ticks
    assert opened.complaints == []
    assert opened.requests == []
    assert width_beyond_screen(page) == 0
