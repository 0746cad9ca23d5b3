#!/usr/bin/env bash
# Fetch what the device machine lacks, as wheels for its Python, into an ignored folder of the checkout.
#
#     bash benchmarks/accelerator/carry.sh [FOLDER]        default: .whl in the current directory, the repository root
#
# Versions are those of envs/constraints.txt. Nothing has its own needs fetched (--no-deps): every
# one is named here. The whole working tree that travels may be 64 MiB.
set -euo pipefail
FOLDER=${1:-.whl}
PYTHON=${PYTHON:-python3}
LIMIT_MIB=${LIMIT_MIB:-56}
# Snakemake and what it imports
WHEELS="snakemake snakemake-interface-common snakemake-interface-executor-plugins
snakemake-interface-logger-plugins snakemake-interface-report-plugins
snakemake-interface-scheduler-plugins snakemake-interface-storage-plugins
snakemake-logger-plugin-rich argparse-dataclass conda-inject ConfigArgParse docutils
dpath fastjsonschema gitdb GitPython humanfriendly immutables jupyter_core nbformat packaging
platformdirs PuLP smart_open smmap SQLAlchemy sqlmodel tenacity throttler traitlets yte"
# Snakemake's own check of a config
WHEELS="$WHEELS jsonschema jsonschema-specifications referencing rpds-py"
# DeepSpeed's needs, and pydantic for it, for the package, the rich logger and sqlmodel
WHEELS="$WHEELS annotated-types hjson pydantic pydantic_core typing-inspection"
# what pyproject.toml's pytest options name
WHEELS="$WHEELS pytest-rerunfailures pytest-random-order"
# Optional. MLX without its GPU is no use there, and its CUDA build does not fit.
WHEELS="$WHEELS ${MORE:-}"

pinned() { # the pin of envs/constraints.txt, else of dev.txt, else none
    local name=${1//[-_.]/[-_.]}
    grep -hiE "^$name==" envs/constraints.txt envs/*.txt | head -1 | grep . || echo "$1"
}

mkdir -p "$FOLDER"
rm -f "$FOLDER"/*.whl
if [ -d .git ] && ! git check-ignore -q "$FOLDER"; then
    echo "/$FOLDER/" >>"$(git rev-parse --git-path info/exclude)"
fi
PINS=()
for name in $WHEELS; do PINS+=("$(pinned "$name")"); done
PLATFORMS=()
for tag in manylinux_2_39 manylinux_2_35 manylinux_2_34 manylinux_2_31 manylinux_2_28 manylinux_2_27 \
    manylinux_2_24 manylinux_2_17 manylinux2014 manylinux2010 manylinux1 manylinux_2_12 manylinux_2_5; do
    PLATFORMS+=(--platform "${tag}_x86_64")
done
"$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp --abi cp312 --abi abi3 --abi none "${PLATFORMS[@]}" -d "$FOLDER" "${PINS[@]}"
# Source packages with nothing compiled in them: their wheels fit every Python.
SOURCES="connection_pool"
[ "${DEEPSPEED:-1}" = 1 ] && SOURCES="$SOURCES deepspeed"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for name in $SOURCES; do
    DS_BUILD_OPS=0 "$PYTHON" -m pip wheel --quiet --no-deps --no-cache-dir -w "$scratch" "$(pinned "$name")"
done
cp "$scratch"/*-none-any.whl "$FOLDER"/
ls -l "$FOLDER"/*.whl | awk '{n = split($NF, part, "/"); printf "%9.2f MiB  %s\n", $5 / 2^20, part[n]}' | sort -rn
total=$(cat "$FOLDER"/*.whl | wc -c)
echo "$(ls "$FOLDER"/*.whl | wc -l) wheels, $((total / 2**20)) MiB; limit here $LIMIT_MIB MiB"
[ "$total" -le $((LIMIT_MIB * 2**20)) ] || { echo "too much: leave something out" >&2; exit 1; }
