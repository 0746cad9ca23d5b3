"""The page in a real browser: two of an axis compared, and files saved from within the page."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from browser import DESK, IN_CHROMIUM, PHONE, WAIT_S, Browser, rows
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait
from siliconprof import formatting
from synthetic_results import CPU, H200, load, make, make_page, matmul, training

pytestmark = IN_CHROMIUM


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
