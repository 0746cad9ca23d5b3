"""The page in a real browser: Chromium opens that of the golden default run and works with it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from browser import DESK, IN_CHROMIUM, PHONE, Browser, rows
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

NPM = shutil.which("npm")
AXE = "axe-core@4.14.1"
MAX_BYTES = 3_000_000
FIRST_PAINT_MS = 500
MOST_ANSWER, MOST_STUDY, MOST_SHEETS, MOST_TAB_STOPS = 8, 20, 30, 300  # screens of a desk, paper

pytestmark = IN_CHROMIUM


@pytest.fixture(scope="module")
def page(golden_run: Path) -> Path:
    """The golden default run's page."""
    return golden_run / "results/report.html"


@pytest.fixture(scope="module")
def axe(pytestconfig: pytest.Config) -> str:
    """The source of axe-core, fetched once into pytest's cache."""
    if NPM is None:
        pytest.skip("no npm, which fetches axe-core")
    name, _, version = AXE.partition("@")
    assert pytestconfig.cache
    folder = pytestconfig.cache.mkdir(name)
    archive = folder / f"{name}-{version}.tgz"
    if not archive.exists():
        done = subprocess.run(
            [NPM, "pack", "--silent", AXE], cwd=folder, capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            pytest.skip(f"npm could not fetch {AXE}: {done.stderr.strip()[-200:]}")
    with tarfile.open(archive) as packed:
        source = packed.extractfile("package/axe.min.js")
        assert source is not None
        return source.read().decode()


# -- the report --------------------------------------------------------------------------------

TAB_STOPS = """
return Array.from(document.querySelectorAll("a[href], button, input, summary, [tabindex='0']"))
    .filter((e) => e.tabIndex === 0 && e.checkVisibility({ visibilityProperty: true })).length
"""


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_the_answer_and_the_study_are_short(
    browser: Browser, page: Path, size: tuple[int, int]
) -> None:
    """Eight screens and twenty at a desk, thirty sheets, nothing sideways."""
    browser.open(page, size=size)
    root = "document.documentElement"
    assert browser.js(f"return {root}.scrollWidth") <= size[0]
    if size == DESK:
        study = browser.js("return document.getElementById('study').offsetTop")
        assert study <= MOST_ANSWER * DESK[1]
        assert browser.js(f"return {root}.scrollHeight") - study <= MOST_STUDY * DESK[1]
        assert browser.js(TAB_STOPS) <= MOST_TAB_STOPS
        paper = browser.driver.execute_cdp_cmd("Page.printToPDF", {"paperHeight": 11.7})
        sheets = re.findall(rb"/Type */Page\b", base64.b64decode(paper["data"]))
        assert 1 < len(sheets) <= MOST_SHEETS


def test_it_is_one_small_silent_file(browser: Browser, page: Path) -> None:
    assert page.stat().st_size < MAX_BYTES
    browser.asked_for(), browser.said()
    browser.open(page)
    browser.one("#theme").click()
    assert browser.js("return document.documentElement.dataset.theme") == "dark"
    browser.one("#theme").click()
    browser.js("localStorage.clear()")
    browser.one("#filter summary").click()
    assert browser.said() == []
    assert browser.asked_for() == {page.as_uri()}
    painted = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
    assert browser.js(painted) < FIRST_PAINT_MS


@pytest.mark.parametrize(
    ("size", "theme"),
    [(DESK, "light"), (DESK, "dark"), (PHONE, "light")],
    ids=["desk-light", "desk-dark", "phone"],
)
def test_nobody_is_shut_out(
    browser: Browser, page: Path, axe: str, size: tuple[int, int], theme: str
) -> None:
    browser.open(page, size=size, theme=theme)
    browser.js("document.querySelectorAll('main details').forEach((part) => (part.open = true))")
    # With the filter on and open; the only device hides nothing.
    browser.tick("device", browser.one("#filter [name=device]").get_property("value"))
    assert browser.js("return document.documentElement.scrollWidth") <= size[0]
    # axe takes minutes over forty thousand elements. A chart is an image to it, whose inside has
    # a test of its own; of a long table the rows of each kind are alike.
    browser.js(
        """document.querySelectorAll("main svg").forEach((svg) => svg.replaceChildren());
        document.querySelectorAll("main tbody").forEach((body) => {
            const kinds = new Map();
            for (const row of Array.from(body.rows)) {
                const kind = Array.from(row.cells, (cell) => cell.className).join() + row.className;
                kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
                if (kinds.get(kind) > 2) row.remove();
            }
        })"""
    )
    browser.js(axe)
    violations = browser.driver.execute_async_script(
        """const done = arguments[arguments.length - 1];
        axe.run({ resultTypes: ["violations"], preload: false })
            .then((result) => done(result.violations), (error) => done(String(error)))"""
    )
    assert isinstance(violations, list), violations
    grave = [rule for rule in violations if rule["impact"] in ("serious", "critical")]
    assert [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in grave] == []


# -- the filter ----------------------------------------------------------------------------------

STATE = """
const shown = (e) => e.getClientRects().length > 0;
const marks = Array.from(document.querySelectorAll("main svg [data-of]"));
const table = Array.from(document.querySelectorAll("main tr[data-of]"));
return {
  rows: table.filter((row) => !row.hidden).map((row) => row.dataset.of),
  marks: marks.filter((mark) => !mark.classList.contains("out")).map((mark) => mark.dataset.of),
  faint: marks.filter((mark) => Number(getComputedStyle(mark).opacity) < 0.2).length,
  gone: Array.from(document.querySelectorAll("figure.gone"), (figure) => figure.innerText),
  drawings: Array.from(document.querySelectorAll("main figure svg")).filter(shown).length,
  findings: document.querySelector(".findings").innerText,
  status: document.getElementById("shown").value,
  place: location.hash,
};
"""


def cells_of(browser: Browser, axis: str, value: str) -> set[int]:
    """Numbers of the cells that have a value."""
    axes = ["device", "backend", "workload", "precision"]
    cells = json.loads(browser.one("#cells").get_property("textContent"))
    values = browser.js(
        "return Array.from(document.querySelectorAll(`#filter [name=${arguments[0]}]`),"
        " (box) => box.value)",
        axis,
    )
    return {i for i, cell in enumerate(cells) if values[cell[axes.index(axis)]] == value}


def holds(shown: set[int], listed: list[str]) -> bool:
    """Whether every row or mark, and there is one, shows one of these cells."""
    return bool(listed) and all(shown & set(map(int, of.split())) for of in listed)


def test_one_filter_acts_on_tables_and_charts(browser: Browser, page: Path) -> None:
    browser.open(page)
    before = browser.js(STATE)
    mlx = cells_of(browser, "backend", "mlx")
    total = len(json.loads(browser.one("#cells").get_property("textContent")))
    assert 0 < len(mlx) < total and before["status"] == f"{total} cells" and not before["faint"]
    browser.tick("backend", "mlx")
    after = browser.js(STATE)
    assert len(after["rows"]) < len(before["rows"]) and holds(mlx, after["rows"])
    assert len(after["marks"]) < len(before["marks"]) and holds(mlx, after["marks"])
    assert after["faint"] == len(before["marks"]) - len(after["marks"])
    assert after["status"] == f"{len(mlx)} of {total} cells shown"
    assert after["findings"] == before["findings"]
    # A second value of one axis adds, a value of another axis narrows.
    browser.tick("precision", "fp32")
    both = mlx & cells_of(browser, "precision", "fp32")
    narrower = browser.js(STATE)
    assert holds(both, narrower["rows"]) and holds(both, narrower["marks"])
    assert narrower["status"] == f"{len(both)} of {total} cells shown"
    browser.tick("backend", "torch-cpu")
    assert browser.js(STATE)["status"] == (
        f"{len(cells_of(browser, 'precision', 'fp32'))} of {total} cells shown"
    )
    browser.one("#clear").click()
    assert browser.js(STATE) == before
    assert browser.js("return document.activeElement.tagName") == "SUMMARY"
    # What is left empty says so.
    browser.tick("workload", browser.one("#filter [name=workload]").get_property("value"))
    after = browser.js(STATE)
    assert after["gone"] and after["drawings"] < before["drawings"]
    assert all(text.endswith(": nothing of the chosen cells.") for text in after["gone"])


def test_a_filtered_view_can_be_linked(browser: Browser, page: Path) -> None:
    browser.open(page, "#beyond?backend=mlx&precision=fp32")
    wanted = cells_of(browser, "backend", "mlx") & cells_of(browser, "precision", "fp32")
    state = browser.js(STATE)
    assert state["status"].startswith(f"{len(wanted)} of ")
    top = "return document.getElementById(arguments[0]).getBoundingClientRect().top"
    assert 0 <= browser.js(top, "beyond") < 100
    # A link of the contents moves on and keeps the filter; so does the address.
    browser.one('nav a[href="#trust"]').click()
    browser.settle()
    assert 0 <= browser.js(top, "trust") < 100
    after = browser.js(STATE)
    assert after["place"] == "#trust?backend=mlx&precision=fp32"
    assert {**after, "place": ""} == {**state, "place": ""}
    browser.open(page, "#beyond?backend=nothing-of-that-name&colour=red&%")
    assert browser.js(STATE)["status"].endswith(" cells")
    assert browser.said() == []


def test_the_filter_obeys_the_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    keys = browser.driver
    for _ in range(200):
        ActionChains(keys).send_keys(Keys.TAB).perform()
        if browser.js("return document.activeElement.closest('#filter') !== null"):
            break
    summary = keys.switch_to.active_element
    assert summary.tag_name == "summary"
    outline = browser.js("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    ActionChains(keys).send_keys(Keys.ENTER, Keys.TAB, Keys.SPACE).perform()
    box = keys.switch_to.active_element
    assert box.get_attribute("type") == "checkbox" and box.is_selected()
    assert " of " in browser.js(STATE)["status"]
    ActionChains(keys).send_keys(Keys.ESCAPE).perform()
    assert keys.switch_to.active_element == summary
    assert browser.js("return document.querySelector('#filter details[open]')") is None


def test_paper_gets_every_open_row_and_no_control(browser: Browser, page: Path) -> None:
    browser.open(page, "#answer?backend=mlx", media="print")
    visible = browser.js(
        """return arguments[0].filter((selector) =>
            Array.from(document.querySelectorAll(selector)).some((e) => e.getClientRects().length))""",
        ["nav", "#filter", ".skip", ".find", ".save", "#theme"],
    )
    assert visible == []
    assert "A filter was on: backend mlx." in browser.one("#filtered").text
    cut = browser.js(
        """return Array.from(document.querySelectorAll("main tbody tr:not([hidden])"))
            .filter((row) => !row.closest(".gone, details:not([open])"))
            .filter((row) => !row.getClientRects().length).length"""
    )
    clipped = browser.js(
        """return Array.from(document.querySelectorAll(".scroll"))
            .filter((e) => e.scrollHeight > e.clientHeight + 1).length"""
    )
    assert (cut, clipped) == (0, 0)
    browser.open(page, media="print")
    assert browser.one("#filtered").text == ""


# -- tables and hover ----------------------------------------------------------------------------


def test_sorting_sorts(browser: Browser, page: Path) -> None:
    browser.open(page)
    table, column = "memory-energy", 3  # of which some are missing
    written = rows(browser, table)
    button = browser.one(f"#{table} thead th:nth-child({column + 1}) button")
    head = "return arguments[0].closest('th').getAttribute('aria-sort')"
    for order, falling in (("ascending", False), ("descending", True)):
        button.send_keys(Keys.ENTER)
        assert browser.js(head, button) == order
        now = rows(browser, table)
        assert sorted(map(str, now)) == sorted(map(str, written))
        values = [row[column] for row in now]
        dashes = values.count(None)  # type: ignore[arg-type]
        assert dashes and values[-dashes:] == [None] * dashes
        numbers = [float(value) for value in values[:-dashes]]
        assert numbers == sorted(numbers, reverse=falling) and numbers[0] != numbers[-1]
    button.send_keys(Keys.ENTER)
    assert browser.js(head, button) is None
    assert rows(browser, table) == written
    browser.one(f"#{table} thead button").send_keys(Keys.ARROW_RIGHT)
    second = "return document.querySelectorAll(`#${arguments[0]} thead button`)[1]"
    assert browser.js(f"{second} === document.activeElement", table)


def test_words_are_found_in_a_table_also_beside_the_filter(browser: Browser, page: Path) -> None:
    browser.open(page)
    table = "memory-energy"
    written = rows(browser, table)
    field = browser.one(f"#{table} .find input")
    assert field.accessible_name.startswith("Find in ")
    field.send_keys("  FP32 mlx")
    wanted = [
        r for r in written if all(w in " ".join(map(str, r)).lower() for w in ("fp32", "mlx"))
    ]
    assert 0 < len(wanted) < len(written)
    assert rows(browser, table) == wanted
    status = browser.one(f"#{table} .find output")
    assert status.text == f"{len(wanted)} of {len(written)} rows"
    browser.tick("backend", "torch-cpu")
    assert all("torch-cpu" in " ".join(map(str, row)) for row in rows(browser, table))
    browser.one("#clear").click()
    assert rows(browser, table) == wanted
    field.send_keys(Keys.CONTROL, "a", Keys.DELETE)
    assert rows(browser, table) == written and status.text == ""


@pytest.mark.parametrize(
    ("size", "event", "pointer"),
    [(DESK, "pointermove", "mouse"), (PHONE, "pointerdown", "touch")],
    ids=["mouse", "finger"],
)
def test_marks_tell_their_values(
    browser: Browser, page: Path, size: tuple[int, int], event: str, pointer: str
) -> None:
    browser.open(page, size=size)
    said, wanted, left, right = browser.js(
        """for (const shape of document.querySelectorAll("figure svg .mark:has(> title) > path")) {
          shape.scrollIntoView({ block: "center" });
          const { x, y, width, height } = shape.getBoundingClientRect();
          const [clientX, clientY] = [x + width / 2, y + height / 2];
          // Where two overlap, the upper one tells.
          if (document.elementFromPoint(clientX, clientY) !== shape) continue;
          const wanted = shape.parentElement.querySelector("title").textContent;
          const how = { clientX, clientY, bubbles: true, pointerType: arguments[1] };
          shape.dispatchEvent(new PointerEvent(arguments[0], how));
          const tip = document.getElementById("tip");
          const { left, right } = tip.getBoundingClientRect();
          return [tip.textContent, wanted, left, right];
        }""",
        event,
        pointer,
    )
    assert said == wanted and any(c.isdigit() for c in said)
    assert 0 <= left < right <= size[0]
    browser.settle()
    browser.js("scrollBy(0, 50)")
    browser.settle()
    assert not browser.one("#tip").is_displayed()
