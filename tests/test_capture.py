"""Deep captures: what a tool leaves of a few training steps, and what becomes of the cell.

`torch-profiler` and `perf-stat` are real. `xctrace` and `nsys` are stand-ins on PATH that note
how they were called and do what xctrace(1) and the Nsight Systems user guide say of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import NANO, QUICK, Checkout, own_project
from measuring import own_environment
from siliconprof import plugins
from siliconprof.captures import base, nsight, perf_stat
from siliconprof.cells import config
from siliconprof.store import validation

DATA = {"words": {"source": "builtin", "vocab_size": 300, "max_bytes": 100_000}}


def perf_works() -> str:
    """Why perf cannot count here, or nothing."""
    if shutil.which("perf") is None:
        return "perf is not on PATH"
    probe = ["perf", "stat", "--event", "task-clock", "--", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


PERF = perf_works()
needs_perf = pytest.mark.skipif(bool(PERF), reason=PERF)

NSYS = """\
#!{python}
import json, pathlib, subprocess, sys
number = next(i for i, a in enumerate(sys.argv) if i > 1 and not a.startswith("-"))
options, command = sys.argv[1:number], sys.argv[number:]
pathlib.Path({log!r}).write_text(json.dumps([options, command]))
code = subprocess.call(command)
(output,) = [o.split("=", 1)[1] for o in options if o.startswith("--output=")]
pathlib.Path(output + ".nsys-rep").write_bytes(b"a report")
sys.exit(code)
"""
XCTRACE = """\
#!{python}
import json, pathlib, signal, sys
arguments = sys.argv[1:]
pid = arguments[arguments.index("--attach") + 1]
attached = pathlib.Path("/proc", pid, "cmdline").read_text().split(chr(0))
pathlib.Path({log!r}).write_text(json.dumps([arguments, attached]))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("Starting recording with the Time Profiler template. Attaching to: python3.")
print("Ctrl-C to stop the recording", flush=True)
signal.sigwait([signal.SIGINT])
output = pathlib.Path(arguments[arguments.index("--output") + 1])
(output / "Trace1.run").mkdir(parents=True)
(output / "form.template").write_bytes(b"a template")
print("Recording completed. Saving output file...")
print("Output file saved as:", output)
"""


def put_on_path(folder: Path, **scripts: str) -> None:
    """Stand-ins, each of which notes its call in `{name}.json` beside it."""
    folder.mkdir()
    for name, text in scripts.items():
        script = folder / name
        script.write_text(text.format(python=sys.executable, log=str(folder / f"{name}.json")))
        script.chmod(0o755)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Cells with and without captures, run by the pipeline; nobody may change it."""
    folder = tmp_path_factory.mktemp("capture")
    put_on_path(folder / "tools", nsys=NSYS, xctrace=XCTRACE)
    copy = own_project(folder, shared=False)
    paths = (folder / "tools", Path(sys.executable).parent, os.environ["PATH"])
    copy.environment["PATH"] = os.pathsep.join(map(str, paths))
    torch = NANO | {"backends": ["torch-cpu"], "trainer": "hf"}
    mlx = NANO | {"backends": ["mlx"], "device_kinds": ["cpu"]}
    copy.configure(
        # torch's second step is slow as well
        timing=QUICK | {"warmup_iterations": 3, "time_limit_s": 600},
        datasets=DATA,
        workloads={
            "real": torch | {"capture": ["torch-profiler", "perf-stat"]},
            "others": mlx | {"capture": ["torch-profiler", "metal-capture", "xctrace", "nsight"]},
            "off": mlx,
        },
    )
    copy.snakemake("report", "--until", "measure")
    return copy


def of(project: Checkout, workload: str) -> dict[str, Any]:
    """The record of a workload's only cell."""
    (found,) = [r for r in project.records().values() if r["cell"]["workload"] == workload]
    return found


def note(project: Checkout, tool: str) -> Any:
    """How a stand-in was called."""
    return json.loads((project.path.parent / "tools" / f"{tool}.json").read_text())


# -- real tools --------------------------------------------------------------------------------


@pytest.mark.slow
def test_torch_profiler_leaves_a_chrome_trace_of_the_steps(project: Checkout) -> None:
    record = of(project, "real")
    assert (record["status"], record["reason"]) == ("ok", None)
    found = record["captures"]["torch-profiler"]
    assert (found["reason"], found["steps"]) == (None, base.STEPS)
    (file,) = found["files"]
    trace = json.loads((project.path / "results" / "captures" / file["path"]).read_text())
    names = [event.get("name", "") for event in trace["traceEvents"]]
    # GPT-2's linear layers forward, their gradients, and the optimizer; its own first step is
    # not among those recorded.
    assert sum(name.startswith("ProfilerStep#") for name in names) == base.STEPS
    assert {"aten::addmm", "aten::mm", "AddmmBackward0"} <= set(names)
    assert any(name.startswith("Optimizer.step#") for name in names)


@pytest.mark.slow
@needs_perf
def test_perf_counts_the_steps(project: Checkout) -> None:
    found = of(project, "real")["captures"]["perf-stat"]
    assert (found["reason"], found["steps"]) == (None, base.STEPS)
    counters, reasons = found["counters"], found["counter_reasons"]
    assert 0 < counters["task_clock_s"] <= (found["window_s"] + 0.1) * (os.cpu_count() or 1)
    assert counters["minor_faults"] + counters["major_faults"] == counters["page_faults"] >= 0
    assert {"cycles", "instructions", "context_switches"} <= counters.keys()
    for name, value in counters.items():
        assert (value is None) == (name in reasons), name
    # Three small steps are far less than the start of the process and its imports.
    assert counters["task_clock_s"] < found["wall_s"] / 2


@needs_perf
def test_a_kernel_that_refuses_perf_is_a_reason_with_its_mend(tmp_path: Path) -> None:
    """A process that may not be looked at (not dumpable) is refused as by a strict setting."""
    code = """
import ctypes, pathlib, sys
from siliconprof.captures import perf_stat
from siliconprof.errors import UserError
ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE, linux/prctl.h
tool = perf_stat.Plugin(None, "cpu", pathlib.Path(sys.argv[1]))
try:
    tool.begin()
except UserError as error:
    print(error)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    if os.geteuid() == 0:  # root may look at everything: do without these rights
        command = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", *command]
    environment = own_environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "the kernel does not let perf count" in done.stdout
    assert "sysctl kernel.perf_event_paranoid=2" in done.stdout


def test_what_perf_prints_is_read_with_its_gaps() -> None:
    """Lines as perf 6.1 printed them here, for root and for a user; one that took turns."""
    lines = [
        "# started on Sat Nov 21 06:40:22 2026",
        "",
        "392.89,msec,task-clock:u,392887363,100.00,0.435,CPUs utilized",
        "0,,context-switches:u,392901775,100.00,0.000,/sec",
        "10004,,page-faults:u,392927893,100.00,25.463,K/sec",
        "<not supported>,,cycles:u,0,100.00,,",
        "1200,,instructions:u,196443681,50.00,,",
        "<not counted>,,cache-misses:u,0,0.00,,",
    ]
    found = perf_stat.counters(lines)
    assert found["counters"] == {
        "task_clock_s": pytest.approx(0.39289),
        "context_switches": None,  # perf's 0 is no count: they happen in the kernel
        "page_faults": 10004,
        "cycles": None,
        "instructions": 1200,
        "cache_misses": None,
    }
    assert found["counter_reasons"].keys() == {"context_switches", "cycles", "cache_misses"}
    assert "has no such counter" in found["counter_reasons"]["cycles"]
    assert "never ran" in found["counter_reasons"]["cache_misses"]
    assert found["counter_running_shares"] == {"instructions": 0.5}
    assert found["counter_scope"] == "user space"


# -- every tool --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", plugins.names("captures"))
def test_a_tool_says_whether_it_is_here_and_what_it_looks_at(name: str) -> None:
    """`available` and `supports` answer with a reason on every host, and raise on none."""
    tool = plugins.load("captures", name)
    can, found = tool.available()
    assert isinstance(can, bool)
    assert found and tool.means
    for backend in plugins.names("backends"):
        plugin = plugins.load("backends", backend)
        for kind in ("cpu", "gpu"):
            reason = tool.supports(plugin, kind)
            assert reason is None or reason
            assert all(isinstance(word, str) for word in tool.command(plugin, Path("folder")))
    schema = validation.load_schema("config")["properties"]["workloads"]["additionalProperties"]
    assert name in schema["properties"]["capture"]["items"]["enum"]


# -- tools that cannot be here -----------------------------------------------------------------


@pytest.mark.slow
def test_tools_that_attach_or_start_the_process(project: Checkout) -> None:
    record = of(project, "others")
    assert (record["status"], record["reason"]) == ("ok", None)
    found = record["captures"]
    arguments, attached = note(project, "xctrace")
    assert arguments[:3] == ["record", "--template", "Time Profiler"]
    assert "siliconprof.measure.worker" in attached and "xctrace" in attached
    (file,) = found["xctrace"]["files"]
    assert file["path"].endswith("others/auto/fp32/xctrace/xctrace.trace.zip")

    options, command = note(project, "nsys")
    assert options[0] == "profile"
    assert not any(option.startswith("--capture-range") for option in options)
    assert command[1:3] == ["-m", "siliconprof.measure.worker"]
    assert found["nsight"]["reason"] is None
    assert found["nsight"]["scope"] == "whole process"
    assert [f["path"].split("/")[-1] for f in found["nsight"]["files"]] == ["nsight.nsys-rep"]

    assert "torch only" in found["torch-profiler"]["reason"]
    assert "does not use" in found["metal-capture"]["reason"]
    for name in ("torch-profiler", "metal-capture"):
        assert (found[name]["files"], found[name]["steps"]) == ([], None)


def test_nsys_is_told_the_steps_where_cuda_can_tell_it(tmp_path: Path) -> None:
    command = nsight.Plugin.command(plugins.load("backends", "torch-cuda"), tmp_path)
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop"} <= set(command)


# -- what becomes of the cell ------------------------------------------------------------------


@pytest.mark.slow
def test_every_file_is_listed_with_its_size_and_hash(project: Checkout) -> None:
    folder = project.path / "results" / "captures"
    listed = {}
    for record in project.records().values():
        for name, found in record.get("captures", {}).items():
            for file in found["files"]:
                place = "/".join(record["cell"][axis] for axis in ("workload", "scenario"))
                assert f"/{place}/fp32/{name}/" in f"/{file['path']}"
                listed[file["path"]] = (file["bytes"], file["sha256"])
    there = {
        path.relative_to(folder).as_posix(): (
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert listed == there
    assert len(there) >= 3


@pytest.mark.slow
def test_a_capture_is_apart_from_the_measurement(project: Checkout) -> None:
    """Its steps are no steps of the record; and where none is asked for, there is no sign of it."""
    for workload in ("real", "others", "off"):
        record = of(project, workload)
        assert "capture" not in record["points"][0]["steps"]["kind"]
        loaded = {name for name in record["modules_loaded"] if name.startswith("captures.")}
        assert loaded <= {"captures.base"}
    off = of(project, "off")
    assert "captures" not in off
    assert "captures" not in off["method"]
    assert "capture" not in off["cell"]["parameters"]
    folder = project.path / "results" / "captures"
    assert not [path for path in folder.rglob("*") if path.name == "off"]
    code = of(project, "real")["code"]["modules"].keys() - off["code"]["modules"].keys()
    assert code >= {"captures.torch_profiler", "captures.perf_stat"}


@pytest.mark.slow
def test_a_missing_or_failing_tool_is_a_reason(project: Checkout, tmp_path: Path) -> None:
    """Without perf and xctrace on PATH, and an nsys that ends at once, the cell is as good."""
    put_on_path(tmp_path / "tools", nsys="#!{python}\nprint('no licence')\nraise SystemExit(3)\n")
    cell = of(project, "others")["cell"]
    cell["parameters"]["capture"] = ["perf-stat", "xctrace", "nsight"]
    output = tmp_path / "record.json"
    arguments = ("--cell", json.dumps(cell), "--output", str(output))
    project.stage(
        "measure", *arguments, "--captures", str(tmp_path), env={"PATH": str(tmp_path / "tools")}
    )
    record = json.loads(output.read_text())
    assert (record["status"], record["reason"]) == ("ok", None)
    assert validation.problems(record, validation.load_schema("record")) == []
    reasons = {name: found["reason"] for name, found in record["captures"].items()}
    assert "perf is not on PATH" in reasons["perf-stat"]
    assert "xctrace is not on PATH" in reasons["xctrace"]
    assert "exit status 3" in reasons["nsight"] and "no licence" in reasons["nsight"]
    assert all(found["files"] == [] for found in record["captures"].values())


def test_a_wrong_list_of_tools_is_told_in_one_line() -> None:
    wrong = {
        "datasets": DATA,
        "workloads": {
            "one": NANO | {"capture": ["perfstat"]},
            "two": {"module": "matmul", "shapes": [[1, 2, 2, 2]], "capture": ["perf-stat"]},
        },
    }
    one, two = config.check(wrong)
    assert one.startswith("workloads.one.capture.0: is 'perfstat'; expected one of: ")
    assert one.endswith("; did you mean 'perf-stat'?")
    assert two == "workloads.two.capture: only training steps are captured, leave it out"
