"""Detects a cluster's node on the node itself: the checkpoint `host_{label}`.

    python -m siliconprof.hosts.cluster_host --label L --registry config/devices.yaml --output F

It writes the host file that any host has, but does not check that the machine is the same as last
time: a label stands for a kind of node, and the scheduler may assign another one every time.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from siliconprof import options
from siliconprof.errors import stage
from siliconprof.hosts import host_file, registry


def main(argv: Sequence[str] | None = None) -> int:
    """Detect this machine and write its host file under a label."""
    parser = options.parser("siliconprof.hosts.cluster_host", __doc__)
    parser.add_argument("--label", required=True)
    parser.add_argument("--registry", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args(argv)
    host = host_file.detected(arguments.label, registry.load(arguments.registry))
    host_file.store(arguments.output, host)
    devices = ", ".join(device["id"] for device in host["devices"])
    print(f"{arguments.label}: node {socket.gethostname()}: {devices}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
