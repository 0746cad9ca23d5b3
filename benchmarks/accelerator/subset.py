"""A config with a part of another's workloads: those named, or those that have records.

python benchmarks/accelerator/subset.py gpu.yaml part.yaml matmul gpt2-small-plain
python benchmarks/accelerator/subset.py gpu.yaml done.yaml --recorded results/records/gpu-first
python benchmarks/accelerator/subset.py gpu.yaml again.yaml --missing results/records/gpu-first [--failed]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import yaml


def found(folder: Path, name: str) -> dict[tuple[str, str], str]:
    """(backend, precision) -> status of a workload's records, whatever device and scenario."""
    return {
        (path.parts[-4], path.stem): json.loads(path.read_text())["status"]
        for path in folder.glob(f"*/*/{name}/*/*.json")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--missing", type=Path)
    parser.add_argument("--failed", action="store_true", help="with --missing: those as well")
    asked = parser.parse_args()
    config = yaml.safe_load(asked.source.read_text())
    kept = {}
    for name, entry in config["workloads"].items():
        precisions = entry.get("precisions", config["precisions"])
        if asked.recorded:
            records = found(asked.recorded, name)
            backends = [b for b in entry["backends"] if any(b == one for one, _ in records)]
            precisions = [p for p in precisions if all((b, p) in records for b in backends)]
            if backends and precisions:
                kept[name] = {**entry, "backends": backends, "precisions": precisions}
        elif asked.missing:
            records = found(asked.missing, name)
            good = ("ok", "unsupported") if asked.failed else tuple(set(records.values()))
            due = [
                p
                for p in precisions
                if any(records.get((b, p)) not in good for b in entry["backends"])
            ]
            if due:
                kept[name] = {**entry, "precisions": due}
        elif name in asked.workloads:
            kept[name] = entry
    if not kept:
        raise SystemExit("no workload is left")
    config["workloads"] = kept
    asked.target.write_text(yaml.safe_dump(config, sort_keys=False))
    print(f"{asked.target}: {', '.join(kept)}")


if __name__ == "__main__":
    main()
