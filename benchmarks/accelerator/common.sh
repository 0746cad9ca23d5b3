# What both scripts on the device machine share; the repository root is the current directory.
KIT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
OUT=${OUT:-$PWD/device-out}
WORK=${WORK:-/tmp/siliconprof-kit}
WHEELS=${WHEELS:-.whl}
LABEL=gpu-first # as `host` in the configs
CONFIG=${CONFIG:-$KIT/gpu.yaml}
SMOKE=${SMOKE:-$KIT/smoke.yaml}
LOGS=$WORK/logs
mkdir -p "$OUT" "$LOGS"
export PYTHONUNBUFFERED=1 PYTHONPATH=workflow

left() { echo $((BUDGET_S - SECONDS)); }
note() { echo "[$(printf %4d "$SECONDS") s] $*" | tee -a "$OUT/stages.txt"; }

# stage NAME SECONDS COMMAND...: within its own limit, and the time that is left less RESERVE_S; not
# begun with less than LEAST_S.
stage() {
    local name=$1 limit=$2 began=$SECONDS code=0
    shift 2
    local most=$(($(left) - ${RESERVE_S:-0}))
    [ "$limit" -le "$most" ] || limit=$most
    if [ "$limit" -lt "${LEAST_S:-15}" ]; then
        note "$name: not run, $limit s are left for it"
        return 1
    fi
    # As Ctrl-C: whatever runs ends by itself, and leaves what is finished.
    timeout -s INT -k 12 "$limit" "$@" >"$LOGS/$name.log" 2>&1 || code=$?
    note "$name: exit $code after $((SECONDS - began)) s of $limit"
    tail -n "${LINES_SHOWN:-3}" "$LOGS/$name.log" | cut -c1-240
    return $code
}

# An environment that sees the image's packages, and before them the wheels that came along. Rules
# set PYTHONPATH anew, so a folder named there would be lost.
environment() {
    local bin site parent
    [ -d "$WHEELS" ] || return 0 # the Python of the path has what it takes
    bin=$(dirname "$(python3 -c 'import sys; print(sys.executable)')")
    parent=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    if [ ! -x "$WORK/env/bin/python" ]; then # the first call
        python3 -m venv --without-pip "$WORK/env" || return 1
        site=$("$WORK/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        echo "import site; site.addsitedir('$parent')" >"$site/zz-image.pth"
        python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
            --target "$site" "$WHEELS"/*.whl || return 1
    fi
    export PATH="$WORK/env/bin:$bin:$PATH"
    hash -r
    # Without bytecode imports take twice as long, and some images neither have nor keep any.
    unset PYTHONDONTWRITEBYTECODE
    [ -w "$parent" ] || export PYTHONPYCACHEPREFIX="$WORK/bytecode"
}

# One process that has imported what cells need, with its forks, serves every phase until this ends.
import_once() {
    exec {imported}< <(exec python -c "
import os, signal
from siliconprof.measure import fork_server
address = f'siliconprof-kit-{os.getpid()}'
fork_server.start(address, os.getpid())
print(address, flush=True)
signal.pause()")
    trap "kill $!" EXIT
    read -r SILICONPROF_FORK_SERVER <&"$imported" && export SILICONPROF_FORK_SERVER
}

# The pipeline by a config in place of the default one: records, and no page.
RUN="python -m snakemake --cores 1 --workflow-profile workflow/profiles/default --replace-workflow-config measured --configfile"

# What worked so far comes back, whenever the time ends.
keep() {
    tar -C "$WORK" -czf "$OUT/logs.tgz" logs 2>/dev/null
    tar -czf "$OUT/records.tgz" results/records results/hosts results/logs results/history 2>/dev/null
    [ "$(stat -c %s "$OUT/logs.tgz")" -lt 15000000 ] || rm "$OUT/logs.tgz"
}

statuses() { python "$KIT/statuses.py" | tee -a "$OUT/stages.txt"; }

# measured NAME SECONDS ARGUMENT...: a part of the config, by subset.py
measured() {
    local name=$1 limit=$2
    shift 2
    python "$KIT/subset.py" "$CONFIG" "$WORK/$name.yaml" "$@" >>"$LOGS/subset.log" 2>&1 || {
        note "$name: nothing to do"
        return 0
    }
    stage "$name" "$limit" $RUN "$WORK/$name.yaml"
    keep
}

# With its whole time or not at all: half a compilation leaves nothing.
compiled() { LEAST_S=$COMPILED_S measured compiled "$COMPILED_S" gpt2-small-compiled --missing "results/records/$LABEL"; }

# Everything as one file for `siliconprof import`.
finish() {
    statuses
    keep
    timeout 40 python -m siliconprof.pipeline.cli pack --force --host "$LABEL" --output "$OUT/bundle.zip" \
        >"$LOGS/pack.log" 2>&1 || note "pack: $(tail -n 1 "$LOGS/pack.log")"
    note "end"
}
