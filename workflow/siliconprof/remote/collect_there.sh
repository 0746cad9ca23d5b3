# The host's side of `siliconprof collect`. POSIX shell: nothing has to be installed for it.
#
#     sh -s prepare FOLDER ENVIRONMENT          guards the folder, before the project is sent
#     sh THIS_FILE measure FOLDER ENVIRONMENT LABEL    measures; the bundle goes to standard output
#
# Paths that are not absolute lie below the home folder; ENVIRONMENT may be `make`. A line on
# standard error that begins with `collect: ` is shown to the person who collects. Status 3: the
# last line says why not; any other is that of the run.
set -eu
step=$1 folder=$2 environment=$3 label=${4-}
own=.siliconprof-collect # its presence makes a folder one of collect's

# A shell that is not a login shell often lacks the folders where a Mac's python3.11 lies.
PATH="$PATH:/usr/local/bin:/opt/homebrew/bin:/opt/local/bin"
export PATH

refuse() {
    echo "$1" >&2
    exit 3
}

cd
case $environment in
    make) python=$(command -v python3.11 || echo python3.11) ;;
    /*) python=$environment/bin/python ;;
    *) python=$PWD/$environment/bin/python ;;
esac

prepare() {
    command -v "$python" >/dev/null ||
        refuse "no Python on the host: $python; install it, or name another \`environment\`"
    "$python" -c 'import sys
if sys.version_info < (3, 11):
    version = ".".join(str(number) for number in sys.version_info[:3])
    sys.exit("%s: is Python %s; expected 3.11 or later" % (sys.executable, version))' </dev/null
    mkdir -p "$folder"
    cd "$folder"
    here=$(pwd -P) home=$(cd && pwd -P)
    case $home/ in
        "${here%/}"/*) refuse "$here: contains the home folder; name a folder for collect alone" ;;
    esac
    [ -n "$(ls -A)" ] || mkdir $own
    [ -d $own ] ||
        refuse "$here: is not empty and was not made by collect; name a new or empty folder"
    # A run here holds this file; Python has `flock` on every system.
    "$python" -c 'import fcntl, sys
lock = open(sys.argv[1], "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.stderr.write("collect: waiting: another run is active on the host\n")
    sys.stderr.flush()
    fcntl.flock(lock, fcntl.LOCK_EX)' $own/lock </dev/null
}

measure() {
    cd "$folder"
    # Standard input ends with the connection. Then nobody is left to fetch the records, so what
    # runs here ends, and the host is free; cells end with the process that this variable names.
    exec 3<&0
    (
        trap '' TERM
        cat <&3
        kill -TERM 0
        sleep 10
        kill -KILL 0
    ) >/dev/null 2>&1 &
    watcher=$!
    SILICONPROF_PIPELINE_PID=$$ PYTHONPATH=workflow PYTHONDONTWRITEBYTECODE=1
    export SILICONPROF_PIPELINE_PID PYTHONPATH PYTHONDONTWRITEBYTECODE
    # A login over ssh does not keep a Mac from falling asleep; this does until the process ends.
    if [ "$(uname)" = Darwin ]; then
        caffeinate -i -w $$ >/dev/null 2>&1 &
    fi
    if [ "$environment" = make ]; then
        echo "collect: make env" >&2
        make env "PYTHON=$python" </dev/null >&2 || refuse "make env: exit status $?"
        python=$PWD/.venv/bin/python
    fi
    PATH=$(dirname "$python"):$PATH
    # Held by all that runs here, to its end. Then a lock of Snakemake's is one that was killed.
    exec 9>>$own/lock
    "$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
    "$python" -m snakemake --unlock --configfile $own/experiment.json --replace-workflow-config \
        </dev/null >/dev/null 2>&1 || true
    status=0
    echo "collect: measuring" >&2
    "$python" -m snakemake --cores 1 measured --configfile $own/experiment.json \
        --replace-workflow-config </dev/null >&2 || status=$?
    if [ -n "$(find "results/records/$label" -name '*.json' 2>/dev/null)" ]; then
        echo "collect: packing" >&2
        "$python" -m siliconprof.pipeline.cli pack --host "$label" --force \
            --output $own/bundle.zip </dev/null >&2 ||
            refuse "the host's records cannot be packed; the log says why"
        cat $own/bundle.zip
    fi
    kill -KILL $watcher
    exit $status
}

$step
