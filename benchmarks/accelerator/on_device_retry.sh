#!/usr/bin/env bash
# The second call, on the same machine if it is still held: what has no record yet, and what failed.
#
#     bash benchmarks/accelerator/on_device_retry.sh                   all of it, by the order of gpu.yaml
#     bash benchmarks/accelerator/on_device_retry.sh gpt2-xl-hf-16 …   these workloads only
set -uo pipefail
BUDGET_S=${BUDGET_S:-200}
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
: >"$OUT/stages.txt"
if ! environment >"$LOGS/environment.log" 2>&1; then
    note "environment: failed"; keep; exit 1
fi
# Failed records go, so that the same command measures them again; they are in results/history.
python - <<'P'
import json, pathlib
for path in pathlib.Path("results/records").rglob("*.json"):
    if json.loads(path.read_text())["status"] not in ("ok", "unsupported"):
        path.unlink()
P
RESERVE_S=45
if [ $# -gt 0 ]; then
    measured again 600 "$@"
else
    # The contract that every backend keeps, on this card: the same tests as on a simulated one.
    SILICONPROF_SIMULATED='{}' stage contract "${CONTRACT_S:-60}" python -m pytest -q -p no:cacheprovider \
        -o addopts= -n 4 tests/test_plugins.py \
        -k "(torch-cuda and not copy and not bandwidth and not kernel_launch) or does_the_same_training"
    measured again 600 --missing "results/records/$LABEL" --failed
    stage doctor 40 python -m siliconprof.pipeline.cli doctor
fi
statuses | tee -a "$OUT/stages.txt"
RESERVE_S=5 report "${REPORT_S:-45}"
note "end"
