"""Fixtures of several files: about the host, a copy of the project, and a browser for the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REGISTRY = Path(__file__).resolve().parents[1] / "config" / "devices.yaml"


@pytest.fixture(scope="module")
def devices() -> Any:
    """The registry that is shipped."""
    from siliconprof.hosts import registry

    return registry.load(REGISTRY)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What is detected on this machine; asked once."""
    from siliconprof.hosts import detect

    return detect.detect()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A copy of the project for all tests of a file, which measure in it."""
    from conftest import own_project

    return own_project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests of a file."""
    from browser import Browser

    made = Browser()
    yield made
    made.driver.quit()
