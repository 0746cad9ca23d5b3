"""siliconprof: how fast does this machine train models, and why is it slower than that one?"""

import importlib
from typing import Any

__version__ = "1.0.0"


def load(folder: str = "results") -> Any:
    """The results of a run as pandas frames, see docs/notebook.md and `store.results.Results`.

    Raises:
        UserError: the folder has no results; one line.
    """
    # By its name, so that what measures does not depend on what reads results.
    return importlib.import_module("siliconprof.store.results").load(folder)
