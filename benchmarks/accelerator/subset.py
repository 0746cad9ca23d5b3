"""A config with a part of another's workloads, each on the first of its backends alone.

python benchmarks/accelerator/subset.py gpu.yaml part.yaml                all of them
python benchmarks/accelerator/subset.py gpu.yaml part.yaml matmul copy    those named
    --without NAME ...      but not those
    --missing FOLDER        those with a cell that has no record there, or a failed one
    --all-backends          on every backend: the card's processor as well
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import yaml


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--without", nargs="*", default=[])
    parser.add_argument("--missing", type=Path)
    parser.add_argument("--all-backends", action="store_true")
    asked = parser.parse_args()
    config = yaml.safe_load(asked.source.read_text())
    kept = {}
    for name, entry in config["workloads"].items():
        if name in asked.without or (asked.workloads and name not in asked.workloads):
            continue
        backends = entry["backends"] if asked.all_backends else entry["backends"][:1]
        precisions = entry.get("precisions", config["precisions"])
        if asked.missing:  # below it: device/backend/workload/scenario/precision.json
            done = {
                (path.parts[-4], path.stem)
                for path in asked.missing.glob(f"*/*/{name}/*/*.json")
                if json.loads(path.read_text())["status"] in ("ok", "unsupported")
            }
            precisions = [p for p in precisions if any((b, p) not in done for b in backends)]
        if precisions:
            kept[name] = {**entry, "backends": backends, "precisions": precisions}
    if not kept:
        raise SystemExit("no workload is left")
    config["workloads"] = kept
    asked.target.write_text(yaml.safe_dump(config, sort_keys=False))
    print(f"{asked.target}: {', '.join(kept)}")


if __name__ == "__main__":
    main()
