"""What pyproject.toml cannot say: a wheel has a copy of what the package reads of its checkout."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = (
    "config/devices.yaml",
    "config/claims.yaml",
    "config/published/*",
    "config/measured/*.zip",
    "report/*.*",
)


class BuildWithShipped(build_py):
    """Writes siliconprof/shipped/ beside the modules; an editable install reads the checkout."""

    def run(self) -> None:
        """Copy the modules, then the files."""
        super().run()
        for path in (
            [] if self.editable_mode else sorted(p for s in SHIPPED for p in Path().glob(s))
        ):
            target = Path(self.build_lib, "siliconprof", "shipped", path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


setup(cmdclass={"build_py": BuildWithShipped})
