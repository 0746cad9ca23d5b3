"""The remote side of `siliconprof collect`: guards the folder, runs the pipeline, ends with ssh.

Sent as text over ssh and run by the host's Python before any of the project is there, so it imports
the standard library only. Requests and answers are JSON, one a line, on standard input and output;
the pipeline's output goes to standard error.

The collecting side sends an empty line every few seconds. When standard input closes, or nothing
comes for too long, the pipeline here is ended: nobody is left to fetch its records, and the host
should be free. Its records stay, and the next collect goes on from there.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

OURS = Path(".siliconprof-collect")  # its presence makes a folder ours
README = """\
This folder is filled by `siliconprof collect`: what is sent is made the same as on the host that
collects, so edits here are lost. results/ holds what was measured here and is left alone.
"""
PRESENCE = Path(".snakemake/siliconprof.lock")  # which every pipeline in a checkout holds, shared
# Names the process without which Snakemake and its cells end by themselves (`lifetime.py`).
PIPELINE_VARIABLE = "SILICONPROF_PIPELINE_PID"
NEEDED = (3, 11)  # version of Python
END_S = 20.0  # seconds that a pipeline gets to end by itself
POLL_S = 0.1


class Gone(Exception):
    """The connection to the collecting host has ended."""


class Refused(Exception):
    """The request cannot be carried out; the line says why."""


class Link:
    """The connection to the collecting host."""

    def __init__(self) -> None:
        self.requests: queue.Queue = queue.Queue()
        self.gone = threading.Event()
        self.last_heard_s = time.monotonic()
        self.silence_s = 60.0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in iter(sys.stdin.buffer.readline, b""):
            self.last_heard_s = time.monotonic()
            if line.strip():
                self.requests.put(json.loads(line))
        self.gone.set()

    def check(self) -> None:
        """Check the connection.

        Raises:
            Gone: it is closed, or silent for longer than `silence_s` seconds.
        """
        if self.gone.is_set() or time.monotonic() - self.last_heard_s > self.silence_s:
            raise Gone

    def request(self) -> dict:
        """The next request."""
        while True:
            self.check()
            try:
                return self.requests.get(timeout=POLL_S)
            except queue.Empty:
                continue

    def send(self, **answer: object) -> None:
        """Send one answer."""
        try:
            sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
            sys.stdout.buffer.flush()
        except OSError:
            raise Gone from None


# -- the folder --------------------------------------------------------------------------------


def enter(folder: str) -> None:
    """Make the folder the current one.

    Raises:
        Refused: it has other content, which must not be overwritten or removed, or is unusable.
    """
    path, home = Path(folder).resolve(), Path.home().resolve()
    if path == home or path in home.parents:
        raise Refused(f"{path}: contains the home folder; name a folder for collect alone")
    try:
        path.mkdir(parents=True, exist_ok=True)
        os.chdir(path)
        if not any(path.iterdir()):
            OURS.mkdir()
        ours = OURS.is_dir()
        if ours:
            (OURS / "README").write_text(README, encoding="utf-8")
    except OSError as error:
        raise Refused(f"{path}: cannot be used: {error.strerror}") from None
    if not ours:
        raise Refused(
            f"{path}: is not empty and was not made by collect; name a new or empty folder"
        )


def _locked(path: Path) -> int | None:
    """The file, opened and locked; None while another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def lock(link: Link) -> int:
    """Lock the folder for as long as this process lives; the lock file's descriptor.

    An earlier collect whose connection broke needs some time to notice, so it is waited for.

    Raises:
        Refused: another run is active here.
    """
    end = time.monotonic() + link.silence_s + END_S
    announced = False
    while True:
        own = _locked(OURS / "lock")
        if own is not None:
            pipeline = _locked(PRESENCE) if PRESENCE.exists() else own
            if pipeline is not None:
                if pipeline != own:
                    os.close(pipeline)
                return own
            os.close(own)
        if time.monotonic() > end:
            raise Refused(f"{Path.cwd()}: another run is active; collect again when it ends")
        if not announced:
            link.send(event="waiting")
            announced = True
        link.check()
        time.sleep(POLL_S)


# -- the pipeline ------------------------------------------------------------------------------


def run(link: Link, command: list, environment: dict) -> int:
    """Run a command to its end; its exit status.

    Raises:
        Gone: the connection has ended; the command and all it started have been ended.
        Refused: there is no such command.
    """
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise Refused(f"{command[0]}: not installed on the host") from None
    try:
        while process.poll() is None:
            link.check()
            time.sleep(POLL_S)
    finally:
        end(process)
    return process.returncode


def end(process: subprocess.Popen) -> None:
    """End a command and its process group; do nothing when it has ended."""
    for number, wait_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue


def environment(link: Link, request: dict) -> dict:
    """The environment variables in which `python` is the one to measure with.

    Raises:
        Refused: it could not be set up.
    """
    variables = dict(os.environ) | {
        "PYTHONPATH": "workflow",
        "PYTHONDONTWRITEBYTECODE": "1",
        PIPELINE_VARIABLE: str(os.getpid()),
    }
    folder = Path(sys.executable).parent
    if request["environment"] == "make":
        link.send(event="stage", stage="make env")
        status = run(link, ["make", "env", f"PYTHON={sys.executable}"], variables)
        if status:
            raise Refused(f"make env: exit status {status}")
        folder = Path(".venv/bin").absolute()
    return variables | {"PATH": str(folder) + os.pathsep + variables["PATH"]}


def measure(link: Link, request: dict, variables: dict) -> int:
    """Run the pipeline on the experiment; Snakemake's exit status."""
    experiment = OURS / "experiment.json"  # JSON is YAML; the label in it is text, whatever it is
    experiment.write_text(json.dumps(request["experiment"]), encoding="utf-8")
    (OURS / "commit").write_text(request["commit"] or "", encoding="utf-8")
    link.send(event="stage", stage="measuring")
    arguments = ["--cores", "1", "measured", "--configfile", str(experiment)]
    python = shutil.which("python", path=variables["PATH"]) or sys.executable
    return run(link, [python, "-m", "snakemake", *arguments], variables)


def seals(label: str) -> list:
    """The SHA-256 that each record of this host carries."""
    hashes = []
    for path in sorted(Path("results/records", label).rglob("*.json")):
        try:
            hashes.append(str(json.loads(path.read_text(encoding="utf-8"))["sha256"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # damaged: `pack` says so
    return hashes


def bundle(link: Link, request: dict, variables: dict) -> Path | None:
    """A bundle of the records that the other side does not have; None when it has all.

    Raises:
        Refused: it cannot be packed.
    """
    label, without = request["label"], set(request["without"])
    if set(seals(label)) <= without:
        return None
    listed, packed = OURS / "without", OURS / "bundle.zip"
    listed.write_text("".join(f"{seal}\n" for seal in sorted(without)), encoding="utf-8")
    link.send(event="stage", stage="packing")
    python = shutil.which("python", path=variables["PATH"]) or sys.executable
    command = [python, "-m", "siliconprof.pipeline.cli", "pack", "--host", label]
    command += ["--without", str(listed), "--force", "--output", str(packed)]
    if run(link, command, variables):
        raise Refused("the host's records cannot be packed; the log says why")
    return packed


def stay_awake() -> None:
    """Keep a Mac from falling asleep as long as this process lives: a login over ssh does not."""
    if sys.platform == "darwin":
        none = subprocess.DEVNULL
        command = ["caffeinate", "-i", "-w", str(os.getpid())]
        subprocess.Popen(command, stdin=none, stdout=none, stderr=none)


def serve(link: Link) -> None:
    """Answer one collect from its first request to its last."""
    request = link.request()
    link.silence_s = float(request["silence_s"])
    if sys.version_info[:2] < NEEDED:
        version, needed = (".".join(map(str, v)) for v in (sys.version_info[:3], NEEDED))
        raise Refused(f"{sys.executable}: is Python {version}; expected {needed} or later")
    enter(request["folder"])
    lock_descriptor = lock(link)
    stay_awake()
    link.send(event="ready")
    request = link.request()
    variables = environment(link, request)
    status = measure(link, request, variables)
    packed = bundle(link, request, variables)
    content = packed.read_bytes() if packed else b""
    without = set(request["without"])
    present = sum(seal in without for seal in seals(request["label"]))
    link.send(event="done", status=status, present=present, bytes=len(content))
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except OSError:
        raise Gone from None
    if packed:
        packed.unlink()
    os.close(lock_descriptor)


def hang_up(signum: int, frame: object) -> None:
    """A signal counts as the end of the link."""
    raise Gone


def main() -> int:
    """Serve one collect; 0 when it came to its end."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, hang_up)
    link = Link()
    try:
        try:
            serve(link)
        except Refused as error:
            link.send(event="refused", line=str(error))
            return 1
    except Gone:
        print("lost the collecting host: the run is ended", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    # The thread that listens holds standard input; the usual end would wait for its lock.
    os._exit(status)
