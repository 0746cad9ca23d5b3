#!/usr/bin/env bash
# The first run on a real NVIDIA GPU; the current directory is the repository root. See docs/bare.md.
set -uo pipefail
BUDGET_S=${BUDGET_S:-440} SMOKE_S=${SMOKE_S:-75} CHECKS_S=${CHECKS_S:-75} COMPILED_S=${COMPILED_S:-95}
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
: >"$OUT/stages.txt"

{
    nvidia-smi
    nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.sm,persistence_mode,compute_mode --format=csv
    nproc; free -g | head -2; df -h / /tmp | tail -2; uname -a
} >"$LOGS/machine.log" 2>&1
grep -m 3 -iE 'NVIDIA-SMI|H100|H200' "$LOGS/machine.log"

if ! environment >"$LOGS/environment.log" 2>&1; then
    note "environment: failed"; tail -n 5 "$LOGS/environment.log"; keep; exit 1
fi
note "environment: ready, $(python -c 'from importlib.metadata import version as v; print(*[f"{n} {v(n)}" for n in ("torch", "transformers", "snakemake")])')"
import_once
# DeepSpeed's Adam compiles beside what is not timed.
timeout "$SMOKE_S" python -m siliconprof.hosts.offload_ops >"$LOGS/offload-ops.log" 2>&1 &
ops=$!
stage smoke "$SMOKE_S" $RUN "$SMOKE"
# What has not compiled by then is not waited for: offloading then updates by torch's own AdamW.
kill "$ops" 2>/dev/null
wait "$ops"; note "offload-ops: exit $?"
statuses
keep
if ! grep -rqE '^ "status": "ok"' "results/records/$LABEL"; then
    note "smoke: no cell is ok; the rest would only spend the time"; exit 1
fi

# Checks and the compiled training have their time; the cells, by worth, have what is left. What they
# do not reach the second call takes.
RESERVE_S=$((CHECKS_S + COMPILED_S + 20)) measured cells "$BUDGET_S" --without gpt2-small-compiled
RESERVE_S=$((COMPILED_S + 20)) LINES_SHOWN=70 \
    stage checks "$CHECKS_S" python "$KIT/checks.py" ${CHECKS:-}
cp "$LOGS/checks.log" "$OUT/checks.txt"
RESERVE_S=8 compiled
finish
