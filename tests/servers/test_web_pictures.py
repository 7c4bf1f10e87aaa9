"""Pages in a real browser, without any server: pictures, places that stay, addresses of parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.pipelines.run_picture import TERMINAL, draw_terminal
from harness.servers.pictures import PICTURE_BYTES_MAX, compare, path_of, take
from harness.servers.web import CONTRASTS, OUTLINE, Browser, browser, until
from harness.servers.web_scenes import (
    PAGE,
    PHONE,
    SCENES,
    Scene,
    away,
    consuming,
    few,
    many_tables,
    serve_readings,
    shop_reading,
    shop_status,
)
from penstock.control.pipeline.display import human_count
from penstock.web.reading import PipelineWatch, Reading, Speeds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
COMMAND = "run `make screenshots`, look at the picture, and commit it if it is right"
SCREEN = (1000, 860)
# What a page shows where: tiles, tabs, plots, headings, and rows of the list of pipelines.
PLACES = """
const found = {};
for (const e of document.querySelectorAll(
  ".tiles > div, .tabs, .plot svg, section h2, .pipelines tr, .pipelines td:nth-child(4)")) {
  if (!e.checkVisibility()) continue;
  const { x, y, width, height } = e.getBoundingClientRect();
  found[`${e.tagName}.${e.className} ${e.innerText?.split("\\n")[0].slice(0, 9)} `
    + Object.keys(found).length] = [x, y + scrollY, width, height].map(Math.round);
}
return found;
"""


@pytest.fixture(scope="module")
def shared_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all tests of this module."""
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def visit(shared_browser: Browser) -> Iterator[Browser]:
    """The browser with a page of its own; the test fails if it complained about a page."""
    shared_browser.complaints()
    yield shared_browser
    complaints = shared_browser.complaints()
    shared_browser.open("about:blank")  # its stream of events must end before the server
    assert complaints == []


@pytest.mark.parametrize("name", SCENES)
def test_a_page_looks_as_its_picture(name: str, visit: Browser, tmp_path: Path) -> None:
    """The picture is small, of the page as it is now, and its texts have contrast."""
    scene = SCENES[name]
    stored = path_of(name, scene).read_bytes()
    assert len(stored) <= PICTURE_BYTES_MAX
    with serve_readings(tmp_path, scene.readings()) as (address, _):
        picture = take(visit, address, scene)
        assert visit.run(CONTRASTS) == []
        outline = visit.run(OUTLINE)
        assert outline["wide"] <= 0
        assert outline["twice"] == []
        difference = compare(visit, stored, picture)
    if not difference.is_small:
        (tmp_path / f"{name}.png").write_bytes(picture)
    assert difference.is_small, (difference, str(tmp_path / f"{name}.png"), COMMAND)


DEFECTS = {
    "a tile is missing": "document.querySelector('.tiles > div:nth-child(2)').remove()",
    "a badge has the colour of another state": (
        "const e = document.querySelector('.badge'); e.className = 'badge held'"
    ),
    "a number is another": (
        "const e = document.querySelectorAll('.big')[1];"
        "e.textContent = e.textContent.replace('3', '8')"
    ),
    "texts overlap": "document.querySelector('h1').style.marginBottom = '-1.2rem'",
    "text is wider than its place": (
        "document.querySelectorAll('.sub')[1].textContent = 'rows per second of changes'"
    ),
    "a curve is missing": "document.querySelector('#lag-curve').remove()",
    "the curve has another colour": (
        "document.querySelector('#lag-curve').style.stroke = '#0b8a3b'"
    ),
    "everything is a pixel lower": "document.querySelector('main').style.paddingTop = '17px'",
    "the text is a shade too pale": "document.querySelector('.route').style.color = '#8a94a2'",
}


@pytest.fixture(scope="module")
def right_picture(shared_browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A picture of the page without a defect."""
    scene = SCENES["web"]
    with serve_readings(tmp_path_factory.mktemp("right"), scene.readings()) as (address, _):
        return take(shared_browser, address, scene)


@pytest.mark.parametrize("defect", ["", *DEFECTS], ids=lambda defect: defect or "none")
def test_a_planted_defect_is_found(
    defect: str, right_picture: bytes, visit: Browser, tmp_path: Path
) -> None:
    """The tolerance is smaller than any of these; the same page again is within it."""
    scene = SCENES["web"]
    with serve_readings(tmp_path, scene.readings()) as (address, _):
        picture = take(visit, address, scene, change=DEFECTS.get(defect, ""))
        difference = compare(visit, right_picture, picture)
    assert difference.is_small == (not defect), difference


def test_the_picture_of_the_terminal_is_that_of_the_view() -> None:
    """The picture is text, so it is compared as text."""
    assert TERMINAL.read_text(encoding="utf-8") == draw_terminal(), "run `make screenshots`"


def changing() -> list[Reading]:
    """Return readings whose numbers have few digits and many, and a lag that is known or not."""
    quick, slow = shop_status(lag_s=0.04), shop_status(lag_s=59_000.0)
    assert slow.lag is not None
    bound = replace(slow, lag=replace(slow.lag, at_most=True))
    large = Speeds(
        extracted_rows=1_234_567.0,
        loaded_rows=1_034_567.0,
        extracted_transactions=98_765.0,
        loaded_transactions=98_765.0,
    )
    return [
        shop_reading(quick),
        shop_reading(slow, speeds=Speeds()),
        shop_reading(bound, speeds=large),
        shop_reading(shop_status(lag_s=12.0), speeds=Speeds(extracted_rows=0.0, loaded_rows=0.0)),
    ]


def show(seen: Browser, watch: PipelineWatch, reading: Reading) -> None:
    """Replace what the page shows, and wait until the browser has it."""
    number = watch.latest.number + 1
    text = f"read {number}"
    status = reading.status
    assert status is not None
    log = replace(status.log, size_bytes=number * 1024)
    watch.latest = replace(reading, number=number, status=replace(status, log=log))
    wanted = f"{number}.0 KiB"
    until(lambda: wanted in seen.text("[data-region=positions]"), text)


@pytest.mark.parametrize("size", [SCREEN, PHONE], ids=["screen", "phone"])
def test_nothing_jumps_while_numbers_change(
    visit: Browser, tmp_path: Path, size: tuple[int, int]
) -> None:
    """Tiles, tabs, plots and headings stay where they are, with the size they have."""
    with serve_readings(tmp_path, {"shop": shop_reading()}) as (address, (watch,)):
        visit.size(*size)
        visit.open(f"{address}{PAGE}#replication")
        places = []
        for reading in changing():
            show(visit, watch, reading)
            places.append(visit.run(PLACES))
        assert len(places[0]) >= 8
        for before, after in itertools.pairwise(places):
            assert list(before.values()) == list(after.values())
        visit.open("about:blank")


def test_rows_of_the_list_stay_while_their_figures_change(visit: Browser, tmp_path: Path) -> None:
    """A row moves only if its pipeline's state changes; columns keep their width."""
    with serve_readings(tmp_path, few()) as (address, watches):
        visit.size(*SCREEN)
        visit.open(address)
        before = visit.run(PLACES)
        order = visit.run(
            "return [...document.querySelectorAll('tbody a[id^=to-]')].map(e => e.id)"
        )
        shop = next(watch for watch in watches if watch.config.pipeline.name == "shop")
        for reading in changing()[:1] + changing()[2:]:
            shop.latest = replace(reading, number=shop.latest.number + 1, errors=shop.latest.errors)
            wanted = shop.latest.speeds.extracted_rows
            assert wanted is not None
            text = human_count(wanted)
            until(
                lambda text=text: text in visit.text("[data-region=pipelines]"),
                f"the list shows {text}",
            )
            assert list(visit.run(PLACES).values()) == list(before.values())
        now = visit.run("return [...document.querySelectorAll('tbody a[id^=to-]')].map(e => e.id)")
        assert now == order
        visit.open("about:blank")


def test_what_is_read_stays_when_an_error_appears_above(visit: Browser, tmp_path: Path) -> None:
    """The error is seen at once at the top of the page; further down the text does not move."""
    top = "return document.querySelector('[data-region=positions]').getBoundingClientRect().top"
    with serve_readings(tmp_path, {"shop": shop_reading()}) as (address, (watch,)):
        visit.size(1000, 500)
        visit.open(f"{address}{PAGE}#replication")
        visit.run("scrollTo(0, 700)")
        before = visit.run(top)
        broken = away()
        watch.latest = replace(broken, number=watch.latest.number + 1)
        until(lambda: visit.text("[data-region=troubles]"), "the error is there")
        assert abs(visit.run(top) - before) <= 1
        visit.run("scrollTo(0, 0)")
        watch.latest = shop_reading(number=watch.latest.number + 1)
        until(lambda: not visit.text("[data-region=troubles]"), "the error is gone")
        watch.latest = replace(broken, number=watch.latest.number + 1)
        until(lambda: visit.text("[data-region=troubles]"), "the error is there again")
        assert visit.run("return scrollY") == 0
        visit.open("about:blank")


@pytest.mark.parametrize("size", [SCREEN, PHONE], ids=["screen", "phone"])
@pytest.mark.parametrize(
    ("fragment", "panel", "named"),
    [
        ("errors", "errors", "#errors"),
        ("verify", "verify", "#verify"),
        ("lag-plot", "replication", "#lag-plot"),
        ("lag-plot-search", "consumers", "#lag-plot-search"),
        ("values", "replication", "#values"),
        ("nowhere", "replication", "#replication"),
        ("", "replication", "#replication"),
    ],
)
def test_an_address_leads_to_its_part(
    visit: Browser, tmp_path: Path, fragment: str, panel: str, named: str, size: tuple[int, int]
) -> None:
    """The panel is shown, and the part is in the window, whether the page is loaded or not."""
    reading = replace(consuming(), errors=away().errors)
    with serve_readings(tmp_path, {"shop": reading}) as (address, _):
        visit.size(*size)
        for is_loaded in (False, True):
            visit.open(address + PAGE + ("#bulk" if is_loaded else f"#{fragment}"))
            if is_loaded and fragment in ("", "nowhere"):
                continue
            if is_loaded:
                visit.run("location.hash = arguments[0]", fragment)
            until(
                lambda: visit.run("return !document.getElementById(arguments[0]).hidden", panel),
                f"{panel} is shown",
            )
            until(
                lambda: in_window(visit, named, has_fragment=fragment not in ("", "nowhere")), named
            )
        if fragment == "values":
            assert visit.run("return document.getElementById('values').open")
        visit.open("about:blank")


def in_window(seen: Browser, selector: str, *, has_fragment: bool) -> bool:
    """Return whether an element begins in the upper part of the window, unless nothing named it."""
    top = seen.run(
        "return document.querySelector(arguments[0]).getBoundingClientRect().top / innerHeight",
        selector,
    )
    bottom = seen.run("return document.documentElement.scrollHeight - scrollY - innerHeight")
    return not has_fragment or -0.05 <= top <= 0.6 or bottom <= 1


def test_a_long_list_of_tables_is_filtered(visit: Browser, tmp_path: Path) -> None:
    """The filter holds while the list is updated; errors are above the list."""
    with serve_readings(tmp_path, {"shop": many_tables()}) as (address, (watch,)):
        visit.size(*SCREEN)
        visit.open(f"{address}{PAGE}#tables")
        assert visit.text("[data-region=tables]").index("has no primary key") < 300
        visit.one("#filter").send_keys("stock_1")
        shown = (
            "return [...document.querySelectorAll('[data-filtered] > tr')]"
            ".filter((e) => !e.hidden).length"
        )
        assert visit.run(shown) == 10
        assert visit.text("#filter-count").startswith("10 of ")
        watch.latest = replace(watch.latest, number=watch.latest.number + 1)
        visit.one("#filter").send_keys("2")
        assert visit.run(shown) == 1
        visit.open("about:blank")
    with serve_readings(tmp_path, {"shop": shop_reading()}) as (address, _):
        visit.open(f"{address}{PAGE}#tables")
        assert not visit.one("#filter").is_displayed()
        visit.open("about:blank")


def test_every_scene_of_a_page_is_shown_by_one() -> None:
    """A picture in docs/images is of a scene, and a page of the documentation shows it."""
    shown = {path_of(name, scene).name for name, scene in SCENES.items() if scene.is_shown}
    folder = path_of("web", Scene(readings=dict, is_shown=True)).parent
    assert {path.name for path in folder.glob("web*.png")} == shown
    pages = "".join(path.read_text(encoding="utf-8") for path in folder.parent.glob("*.md"))
    assert [name for name in sorted(shown) if f"images/{name}" not in pages] == []
