"""The page in a real browser: Chromium opens that of the golden default run and works with it."""

from __future__ import annotations

import base64
import csv
import json
import re
import shutil
import subprocess
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait
from siliconprof import formatting
from synthetic_results import CPU, H200, load, make, make_page, matmul, training

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
NPM = shutil.which("npm")
AXE = "axe-core@4.14.1"
FLAGS = (
    "headless=new no-sandbox disable-gpu no-first-run hide-scrollbars"
    " disable-background-networking force-prefers-reduced-motion"
)
DESK, PHONE = (1280, 900), (390, 800)
WAIT_S = 600
MAX_BYTES = 3_000_000
FIRST_PAINT_MS = 500
MOST_ANSWER, MOST_STUDY, MOST_SHEETS, MOST_TAB_STOPS = 8, 20, 30, 300  # screens of a desk, paper

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(None in (CHROMIUM, CHROMEDRIVER), reason="no chromium with chromedriver"),
]


class Browser:
    """Chromium without a window."""

    def __init__(self) -> None:
        options = Options()
        options.binary_location = str(CHROMIUM)
        for flag in FLAGS.split():
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, Service(str(CHROMEDRIVER)))
        # On a busy host a script takes longer than Selenium waits for it, or for any answer.
        self.driver.set_script_timeout(WAIT_S)
        self.driver.command_executor.client_config.timeout = WAIT_S

    def open(
        self,
        page: Path,
        place: str = "",
        size: tuple[int, int] = DESK,
        theme: str = "light",
        media: str = "",
    ) -> None:
        """Load the page anew, in CSS pixels, light or dark, for screen or print."""
        width, height = size
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"media": media, "features": [{"name": "prefers-color-scheme", "value": theme}]},
        )
        self.driver.get("about:blank")  # a change of the address's end alone would load nothing
        self.driver.get(page.as_uri() + place)

    def settle(self) -> None:
        """Wait for two frames: what a scroll or a new address sets off is done by then."""
        self.driver.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(() => arguments[0]()))"
        )

    def js(self, script: str, *given: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *given)

    def one(self, selector: str) -> WebElement:
        """The first element, which must be there."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def tick(self, axis: str, value: str) -> None:
        """Choose or drop one value of the filter, as a pointer does."""
        box = self.one(f'#filter input[name="{axis}"][value="{value}"]')
        facet = self.js("return arguments[0].closest('details')", box)
        if not facet.get_property("open"):
            facet.find_element(By.CSS_SELECTOR, "summary").click()
        box.click()

    def said(self) -> list[str]:
        """What stands in the console since the last question."""
        return [line["message"] for line in self.driver.get_log("browser")]

    def asked_for(self) -> set[str]:
        """Addresses asked for since the last question, but for data within the page."""
        messages = [
            json.loads(line["message"])["message"] for line in self.driver.get_log("performance")
        ]
        urls = {
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        }
        return {url.split("#")[0] for url in urls if not url.startswith("data:")} - {"about:blank"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    made = Browser()
    yield made
    made.driver.quit()


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


def rows(browser: Browser, table: str) -> list[list[str]]:
    """The visible rows of a table: what their cells sort by, None for a missing one."""
    found: list[list[str]] = browser.js(
        """return Array.from(document.querySelectorAll(`#${arguments[0]} tbody tr`))
            .filter((row) => row.offsetParent !== null)
            .map((row) => Array.from(row.cells, (cell) => cell.classList.contains("missing")
                ? null : cell.dataset.sort ?? cell.textContent.trim()))""",
        table,
    )
    return found


@pytest.fixture(scope="module")
def three_hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of this host, of a server and of a Mac; one training here was disturbed."""

    def ways(step_s: float, **axes: Any) -> list[dict[str, Any]]:
        return [
            training(step_s * slower * longer, precision=precision, trainer=trainer, **axes)
            for precision, slower in (("fp32", 1.0), ("amp-bf16", 1.3))
            for trainer, longer in (("plain", 1.0), ("hf", 1.1))
        ]

    here = [*ways(0.1), *ways(0.2, backend="mlx"), matmul(), matmul(backend="mlx")]
    here[1]["flags"] = [{"code": "contended", "detail": "2.0 cores by other processes"}]
    server = ways(0.01, host="server", device="h200", backend="torch-cuda", device_kind="gpu")
    mac = [
        made
        for step_s, backend in ((0.05, "torch-mps"), (0.06, "mlx"))
        for made in ways(step_s, host="mac", device="m4", backend=backend, device_kind="gpu")
    ]
    results = make(tmp_path_factory.mktemp("three"), here, [*server, *mac], devices=[CPU, H200])
    make_page(results)
    return results


# -- the report --------------------------------------------------------------------------------

TAB_STOPS = """
return Array.from(document.querySelectorAll("a[href], button, input, summary, [tabindex='0']"))
    .filter((e) => e.tabIndex === 0 && e.checkVisibility({ visibilityProperty: true })).length
"""


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_the_answer_and_the_study_are_short(
    browser: Browser, page: Path, size: tuple[int, int]
) -> None:
    """Eight screens and twenty at a desk, thirty sheets, nothing sideways; every link arrives."""
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
    links = browser.js("return Array.from(document.querySelectorAll('a[href]'), (a) => a.href)")
    text = page.read_text(encoding="utf-8")
    for link in links:
        place, _, anchor = link.partition("#")
        assert place == page.as_uri() or Path(place.removeprefix("file://")).exists(), link
        assert not anchor or f'id="{anchor}"' in text, link


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


# -- two are compared ----------------------------------------------------------------------------


def texts(browser: Browser, table: str) -> list[list[str]]:
    """The text of a table's cells, the small print left out."""
    found: list[list[str]] = browser.js(
        """return Array.from(document.querySelectorAll(`#${arguments[0]} tbody tr`), (row) =>
            Array.from(row.cells, (cell) => textOf(cell)))""",
        table,
    )
    return found


def test_two_of_an_axis_are_compared(browser: Browser, three_hosts: Path) -> None:
    browser.open(three_hosts / "report.html")
    browser.tick("backend", "mlx")
    browser.tick("backend", "torch-cpu")
    place = browser.js("return location.hash")
    assert place == "#?backend=mlx&backend=torch-cpu"
    own = load(three_hosts).steps.query("host == 'desk'").to_dict("records")
    steps = {(row["backend"], row["precision"], row["trainer"]): row for row in own}
    compared = texts(browser, "compared-steps")
    setups = browser.js(
        "return Array.from(document.querySelectorAll('#compared-steps td:nth-child(2) small'),"
        " (part) => part.textContent.split(' · ').slice(1))"
    )
    assert len(compared) == len(steps) / 2 == 4
    for (trainer, precision), (name, a, b, *speeds, verdict) in zip(setups, compared, strict=True):
        precision = precision.removesuffix(" (manual)")
        mlx, torch = (steps[backend, precision, trainer] for backend in ("mlx", "torch-cpu"))
        disturbed = " [disturbed]" if (precision, trainer) == ("fp32", "hf") else ""
        assert name == "gpt2-nano" and a == formatting.significant(mlx["whole_step_ms"])
        assert b == formatting.significant(torch["whole_step_ms"]) + disturbed
        assert speeds == [formatting.significant(one["samples_per_s"]) for one in (mlx, torch)]
        ratio = formatting.significant(mlx["whole_step_ms"] / torch["whole_step_ms"])
        assert verdict.startswith(f"B is {ratio} × [") and verdict.endswith("] faster than A")
    # From the faster step over what the slower one takes longer for to the slower step.
    first, *parts, last = texts(browser, "compared-why-1")
    assert (first[0], last[0]) == ("step of B", "step of A")
    total = float(first[1]) + sum(float(part[1].replace("−", "-")) for part in parts)
    assert total == pytest.approx(float(last[1]), rel=0.01)
    # The same from the address alone; without ticks it is gone.
    browser.open(three_hosts / "report.html", place)
    assert texts(browser, "compared-steps") == compared
    browser.one("#clear").click()
    assert browser.js("return document.querySelectorAll('#compared, #to-compared').length") == 0
    # Of two devices the fastest backends count, whatever host they are in.
    browser.open(three_hosts / "report.html", "#?device=h200&device=m4&precision=fp32")
    assert [row[-1][:12] for row in texts(browser, "compared-steps")] == ["A is 5.00 × "] * 2
    assert "torch-mps" in browser.one("#compared-steps").text
    browser.one("#clear").click()
    browser.tick("trainer", "none")
    browser.tick("trainer", "hf")
    assert "No two trainings do equal work" in browser.one("#compared").text
    assert "No gap between these two was explained." in browser.one("#compared").text
    assert browser.said() == []


def test_every_device_is_in_the_first_screen(browser: Browser, three_hosts: Path) -> None:
    browser.open(three_hosts / "report.html")
    figure = browser.one("#all-devices svg")
    names = browser.js("return arguments[0].querySelector('g').getBoundingClientRect().top", figure)
    assert names < DESK[1] - 150
    said = browser.js("return arguments[0].textContent", figure)
    assert all(name in said for name in ("Example CPU", "m4", "H200"))
    browser.open(three_hosts / "report.html", "#?backend=mlx&backend=torch-cpu", size=PHONE)
    edges = browser.js(
        "return Array.from(document.querySelectorAll('.cards td, .cards td *'),"
        " (cell) => cell.getBoundingClientRect().right)"
    )
    assert max(edges) <= PHONE[0]


# -- files from within the page ------------------------------------------------------------------


def saved(browser: Browser, folder: Path, exhibit: str, kind: str, suffix: str) -> bytes:
    """What a click in an exhibit's menu leaves in the downloads."""
    browser.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)}
    )
    menu = browser.one(f"#{exhibit} .save")
    browser.js("arguments[0].scrollIntoView({ block: 'center' })", menu)
    if not menu.get_property("open"):
        menu.find_element(By.CSS_SELECTOR, "summary").click()
    menu.find_element(By.XPATH, f".//button[text()='{kind}']").click()
    path = folder / f"{exhibit}.{suffix}"
    WebDriverWait(browser.driver, WAIT_S).until(lambda _: path.exists() and path.stat().st_size)
    return path.read_bytes()


def test_tables_and_figures_are_saved_from_the_page_alone(
    browser: Browser, three_hosts: Path, tmp_path: Path
) -> None:
    browser.open(three_hosts / "report.html", "#?device=cpu-x&device=h200")
    text = saved(browser, tmp_path, "fastest", "CSV", "csv").decode()
    head, *lines = csv.reader(text.splitlines())
    shown = rows(browser, "fastest")
    assert head[0] == "Training" and len(lines) == len(shown)
    whole = (three_hosts / "figures/fastest.csv").read_text(encoding="utf-8")
    files = {row["whole_step_ms"] for row in csv.DictReader(whole.splitlines())}
    step = head.index("Time per step (ms)")
    assert {float(line[step]) for line in lines} <= {float(f"{float(v):.6g}") for v in files}
    markdown = saved(browser, tmp_path, "fastest", "Markdown", "md").decode()
    assert markdown.startswith("Fastest setup") and markdown.count("\n| gpt2-nano") == len(lines)
    drawing = saved(browser, tmp_path, "all-devices", "SVG", "svg").decode()
    assert ET.fromstring(drawing).tag.endswith("svg") and "gpt2-nano" in drawing
    assert "class=" not in drawing and "var(" not in drawing
    image = saved(browser, tmp_path, "all-devices", "PNG", "png")
    assert image.startswith(b"\x89PNG") and len(image) > 5000
    latex = saved(browser, tmp_path, "compared-steps", "LaTeX", "tex").decode()
    assert latex.count(r" \\") == 5 and r"95 \% intervals" in latex
    assert browser.said() == []


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
