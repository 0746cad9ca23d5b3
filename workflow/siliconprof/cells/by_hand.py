"""The chosen cells as a shell script, for a host that has a framework and nothing of the pipeline.

    there:  PYTHONPATH=workflow python3 -m siliconprof.hosts.detect --json >box.json
    here:   siliconprof plan --commands --facts box.json --label box >box.sh
    there:  sh box.sh && PYTHONPATH=workflow python3 -m siliconprof.remote.bundle_pack --output box.zip
    here:   siliconprof import box.zip

Carry there the script, `workflow/`, and the folders of data that the script names. Without
`--facts` the script is for this host.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from siliconprof.cells import matrix
from siliconprof.errors import UserError, in_one_line
from siliconprof.hosts import host_file, registry
from siliconprof.store import documents, names, validation
from siliconprof.store.cell import canonical_json

# A record that lies there is not measured again; Ctrl-C ends the script and not the cell alone.
HEAD = """\
set -eu
export PYTHONPATH=workflow
python=${PYTHON:-python3}
[ -f workflow/siliconprof/measure/__main__.py ] || {
    echo "$0: run it beside the folder workflow" >&2; exit 2; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "$0: $python is no Python 3.11 or later; set PYTHON" >&2; exit 2; }
measure() {  # RECORD CELL ENVIRONMENT
    [ -e "$1" ] || "$python" -m siliconprof.measure \\
        --output "$1" --cell "$2" --environment "$3" --checkpoints results/checkpoints
}
"""
END_OF_FILE = "END OF THE HOST FILE"


def host_from(path: Path, label: str, devices: registry.Registry) -> dict[str, Any]:
    """The host file of a machine, from what `siliconprof.hosts.detect --json` printed there.

    Raises:
        UserError: the file holds no facts of a host, or the label is none.
    """
    if not re.fullmatch(names.LABEL, label) or label.lower() == "auto":
        raise UserError(f"--label: {label!r} is no label; use {names.RULE}")
    remedy = f"make it there with `python -m siliconprof.hosts.detect --json >{path.name}`"
    try:
        facts = documents.read(path)
        quick_sha256 = host_file.fingerprint(facts["fingerprint_parts"])
        host = host_file.assemble(facts, label, quick_sha256, devices)
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}; {remedy}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: no facts of a host ({in_one_line(error)}); {remedy}") from None
    problems = validation.problems(host, validation.load_schema("host"), f"{path}: ")
    if problems:
        raise UserError("\n".join([*problems, f"{path}: {remedy}"]))
    return host


def _comment(lines: Iterable[str]) -> list[str]:
    return [f"# {' '.join(line.split())}" for line in lines]


def script(plan: matrix.Matrix, host: Mapping[str, Any]) -> str:
    """A POSIX shell script that measures a plan's cells, each with the ready command.

    Cells that the host cannot run, or lacks a package for, are named in a comment instead.
    """
    commands, left_out, inputs = [], [], set()
    for planned in plan.cells:
        cell = planned.cell
        refusal = planned.trial.refusal()
        missing = [name for name in planned.trial.packages if not host["packages"].get(name)]
        if refusal:
            left_out.append(f"{cell.path}: {refusal[0]}: {refusal[1]}")
        elif missing:
            left_out.append(f"{cell.path}: needs {', '.join(missing)}, which the host has not")
        else:
            environment = canonical_json(planned.environment)
            words = ("measure", matrix.record_path(cell), cell.to_json(), environment)
            commands.append(shlex.join(words))
            inputs |= {Path(path).parent.as_posix() for path in planned.data}
            inputs |= {Path(path).as_posix() for path in planned.weights}
    label = host["label"]
    header = [
        f"{len(commands)} cells of host '{label}'; left out, with reasons at the "
        f"end: {len(left_out)}",
        f"carry to one folder there, and run it in that folder: this script, "
        f"{', '.join(['workflow/', *sorted(inputs)])}",
    ]
    content = json.dumps(host, indent=1, sort_keys=True)  # has no line but JSON's
    return "\n".join(
        [
            "#!/bin/sh",
            *_comment(header),
            HEAD,
            "mkdir -p results/hosts",
            f"cat >results/hosts/{shlex.quote(label)}.json <<'{END_OF_FILE}'",
            content,
            END_OF_FILE,
            *commands,
            *_comment([f"left out: {line}" for line in left_out]),
            'echo "measured; now: PYTHONPATH=workflow $python -m siliconprof.remote.bundle_pack --output '
            f'{label}.zip"',
        ]
    )
