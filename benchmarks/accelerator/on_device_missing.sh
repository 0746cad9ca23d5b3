#!/usr/bin/env bash
# The second call, on the same machine if it is still held: what has no record yet, and what failed.
#
#     bash benchmarks/accelerator/on_device_missing.sh                   all of it, by the order of gpu.yaml
#     bash benchmarks/accelerator/on_device_missing.sh gpt2-xl-hf-16 …   these workloads only
set -uo pipefail
BUDGET_S=${BUDGET_S:-200} CONTRACT_S=${CONTRACT_S:-60} COMPILED_S=${COMPILED_S:-95}
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if ! environment >"$LOGS/environment.log" 2>&1; then
    note "environment: failed"; keep; exit 1
fi
import_once
python "$KIT/statuses.py" --clear >"$LOGS/before.log" # a failed record is in results/history as well
RESERVE_S=10
due=(--missing "results/records/$LABEL" --without gpt2-small-compiled)
if [ $# -gt 0 ]; then
    measured again "$BUDGET_S" "$@"
else
    RESERVE_S=$((CONTRACT_S + 10)) measured again "$BUDGET_S" "${due[@]}"
    # The contract that every backend keeps, on this card: the same tests as on a simulated one.
    SILICONPROF_SIMULATED='{}' stage contract "$CONTRACT_S" python -m pytest -q -p no:cacheprovider \
        -o addopts= -n 4 tests/test_plugins.py \
        -k "(torch-cuda and not copy and not bandwidth and not kernel_launch) or does_the_same_training"
    compiled
    measured processor "$BUDGET_S" --all-backends "${due[@]}"
    stage doctor 40 python -m siliconprof.pipeline.cli doctor
fi
finish
