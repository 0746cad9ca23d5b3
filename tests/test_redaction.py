"""What tells people and machines apart is in no record, host file or bundle."""

from __future__ import annotations

import random
import socket
import time
import zipfile

import pytest
from conftest import Checkout, cpu_cell
from siliconprof.store import redaction

KNOWN = redaction.Known(("ada.l",), ("desk-7.lab.example.org", "lab.example.org", "desk-7"))
HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

REDACTED = {
    # URLs: the host of a public hub stays, any other may be a company's own
    "git clone https://ada:s3cr3t@git.corp.example/team/x.git": "git clone https://[host]/...",
    "https://huggingface.co/api/models/gpt2?token=abc123": "https://huggingface.co/api/models/gpt2",
    "https://x-token:q@github.com/pytorch/pytorch: 404": "https://github.com/pytorch/pytorch: 404",
    "postgres://ada:pa/ss@10.0.0.5/db refused": "postgres://[host]/... refused",
    "s3://our-bucket/data, then": "s3://[host]/..., then",
    "http://git.corp.example/team/x: refused": "http://[host]/...: refused",
    "/ C:\\Users\\Bob\\f.txt is missing": "/ .../f.txt is missing",
    "http://[fd00::1]:8080/x": "http://[host]/...",
    "proxy http://user:p,w@10.1.1.1:3128": "proxy http://[host]",
    "git@github.com:ada/thesis.git": "[e-mail]",
    # secrets
    "401 for hf_AbCdEfGhIjKlMnOpQrStUvWx": "401 for [secret]",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345.": "[secret].",
    "github_pat_11ABCDEFG0abcdefghijkl_mnop": "[secret]",
    "glpat-abcdefghij0123456789 sk-proj-abcdefghij0123456789": "[secret] [secret]",
    "AKIAIOSFODNN7EXAMPLE and xoxb-1234567890-abcdef": "[secret] and [secret]",
    "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567": "WANDB_API_KEY=[secret]",
    "{'password': 'hunter 2', 'n': 3}": "{'password': '[secret]', 'n': 3}",
    "password=hunter2; token: 8f3a-77ab01": "password=[secret]; token: [secret]",
    "Authorization: Bearer abcdef": "Authorization: [secret]",
    "'Authorization': 'Basic YWRhOng='": "'Authorization': '[secret]'",
    "run --token s3cr3t-x now": "run --token [secret] now",
    "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM is a JWT": "[secret] is a JWT",
    # people and machines
    "mail ada@example.org, or bob+x@mail.example.co.uk": "mail [e-mail], or [e-mail]",
    "ada.l@DESK-7: no": "[user]@[host]: no",
    "DESK-7.lab.example.org and ns.lab.example.org": "[host] and ns.[host]",
    "bob@desk-7 says": "[user]@[host] says",
    "by ADA.L, on desk-7": "by [user], on [host]",
    "HTTPSConnectionPool(host='git.corp.example', port=443)": (
        "HTTPSConnectionPool(host='[host]', port=443)"
    ),
    "ssh: connect to host box-9.corp.example port 22": "ssh: connect to host [host] port 22",
    "Failed to resolve 'nas' ([Errno -2])": "Failed to resolve '[host]' ([Errno -2])",
    "nas-2.local and db.lan are down": "[host] and [host] are down",
    # addresses
    "192.168.1.17:8080, (10.0.0.5) and 10.0.0.6.": "[address]:8080, ([address]) and [address].",
    "fe80::1%eth0, 2001:db8::8a2e:370:7334 and fd00::2: no route": (
        "[address], [address] and [address]: no route"
    ),
    "::ffff:10.0.0.1": "::ffff:[address]",
    "2001:0db8:0000:0000:0000:ff00:0042:8329": "[address]",
    "link 00:1A:2b:3c:4d:5e, id 0a1b2c3d-0000-4000-8000-0123456789ab": "link [id], id [id]",
    # paths
    'File "/srv/Secret Project/of ours/run.py", line 5': 'File ".../run.py", line 5',
    "/opt/env/lib/python3.11/site-packages/torch/nn/functional.py: x": (
        ".../site-packages/torch/nn/functional.py: x"
    ),
    "in /scratch/ada/siliconprof/workflow/siliconprof/x.py": "in .../workflow/siliconprof/x.py",
    "no /data/ada/results/records/desk/a.json": "no .../results/records/desk/a.json",
    "/srv/a folder/with spaces": "...",
    "/home/ada/thesis": "...",
    "C:\\Users\\ada\\x.py and D:/data/ada": ".../x.py and ...",
    "\\\\server\\share\\ada\\notes.txt; '\\\\\\\\nas\\\\home'": ".../notes.txt; '...'",
    "~ada/x/y.py, ~/models/gpt2": ".../y.py, ...",
    "file:///Users/ada/notes.txt": ".../notes.txt",
    "in /run/user/1000/x.log, /run/media/ada/USB": "in .../x.log, ...",
}
KEPT = """torch 2.13.0+cpu, mlx 0.32.4, nvidia 535.104.5, numpy 1.26.4
cuBLAS 12.8.4.1 and libcublas.so.12.8.4.1; nvidia-cublas-cu12==12.8.4.1; driver version 31.0.15.4
scipy-openblas 0.3.31.188.0; build v1.2.3.4; OpenBLAS 0.3.21 (libopenblasp-r0.3.21.so)
step_s (batch=1 m=64 k=64 n=64) changes by +17% after 124 repeats; a ratio of 3/4
1200 tokens/s, 3 tokens /s, 12.5 GB/s, 1/2/3, m/s/s, and/or, kernels 1x1x1x1
std::bad_alloc in at::native::foo, a::b, c10::Error, c10::d, std::vector<float>::at, dead::beef
CUDA error: out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.99 GiB total capacity)
CUDA out of memory; see https://pytorch.org/docs/stable/notes/cuda.html#environment-variables
at 12:34:56, 2026-11-22T11:37:09+00:00, 07:00:00:00
/proc/self/statm, /sys/class/powercap, /usr/lib/x86_64-linux-gnu/libcuda.so.1, /dev/nvidia0
ValueError: unexpected token: identifier; max_tokens=128, token: 5, pad_token=<pad>, tokenizer: gpt2
module 'torch.nn.functional' has no attribute 'x'; threading.local; model@main; @property
n_token=64 secret=None; weights of openai/whisper-tiny; results/data/python-docs-512
127.0.0.1:29500 and http://localhost:8080/x and ::1 and [::]:29500
host: auto; hostname is missing; the host's memory; host memory: 3 GiB; connect to the device
RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory
mx.eval(a @ b); x = y[:, ::2]; f(a: int) -> b; C++ 17; `--expect`; a:b:c; 0x7f3c:0x10
Linux-6.18.44-fc-v657-x86_64-with-glibc2.36; libopenblas.so.0; main.cpp:12:34; sm_90; 1e-3/step"""


@pytest.mark.parametrize("text", REDACTED)
def test_secrets_names_and_addresses_go(text: str) -> None:
    assert redaction.text(text, KNOWN) == REDACTED[text]
    assert redaction.text(REDACTED[text], KNOWN) == REDACTED[text]


@pytest.mark.parametrize("text", [*KEPT.splitlines(), HEX, HEX[:40], HEX[:40] + "+changes"])
def test_what_a_measurement_says_stays(text: str) -> None:
    assert redaction.text(text, KNOWN) == text


def test_devices_and_versions_stay_whatever_a_user_is_called() -> None:
    """What a cell depends on is compared with the host: hidden, it would be measured for ever."""
    driver = {"driver": {"macos": "macOS 26.1"}, "blas": "oneMKL 2024.2 (in torch)"}
    environment = {"device_name": "NVIDIA RTX 6000 Ada Generation", "declared": driver}
    known = redaction.Known(("ada",), ("onemkl", "macos"))
    assert redaction.value(environment, known) == environment


def test_any_text_is_redacted_once_and_soon() -> None:
    """Texts of other hosts come in with bundles: no length or repetition makes one expensive."""
    chance = random.Random(9)
    parts = [*REDACTED, *KEPT.splitlines(), *"/ \\ : @ . - ~ = ' \" [ ] ( \n é \u202e".split(" ")]
    for _ in range(300):
        text = "".join(chance.choice(parts)[chance.randrange(9) :] for _ in range(6))
        redaction.text(text, KNOWN)
    began = time.process_time()
    for part in "a a. a@ 1. :: /a '/a -- ~ \\\\a http:// f1.token".split():
        redaction.text(part * 20_000, KNOWN)
        redaction.text("/" + part * 20_000, KNOWN)
    assert time.process_time() - began < 10


# -- through the front door --------------------------------------------------------------------

SECRETS = {
    "HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "LAB_API_KEY": "no-form-that-a-rule-knows",
    "LOGNAME": "mgarcia",
    "HOSTNAME": "marias-laptop.lab.example.org",
}
MESSAGE = (
    "mgarcia@marias-laptop.lab.example.org: no https://bob:hunter2@git.corp.example/x?token=q1w2e3, "
    "hf_AbCdEfGhIjKlMnOpQrStUvWx, no-form-that-a-rule-knows, \\\\\\\\vault\\\\share, 10.20.30.40, "
    "2001:db8::77, 00:1a:2b:3c:4d:5e, carol@mail.example, /home/mgarcia/thesis/x.py; 3/4 of 1x1x1"
)
LEAKED = """mgarcia marias-laptop lab.example hunter2 bob git.corp q1w2e3 hf_abc no-form-that vault
10.20.30 db8:: 4d:5e carol /home thesis""".split()
LEAKY = f'''"""A workload whose failure tells everything."""

import sys

from siliconprof.workloads.base import KernelWorkload


class Plugin(KernelWorkload):
    """leaky"""

    frameworks = ("torch", "mlx")
    REQUIRED = ()
    PARAMETERS = {{"weights": {{"type": "string", "default": "", "description": "a folder"}}}}

    def measure(self, session):
        """Fail."""
        print({MESSAGE!r}, file=sys.stderr)
        raise RuntimeError({MESSAGE!r})
'''


def test_no_secret_leaves_the_host(checkout: Checkout) -> None:
    """Neither in a record, nor in the host's file, nor in a bundle."""
    checkout.environment |= SECRETS
    plugin = checkout.path / "workflow" / "siliconprof" / "workloads" / "leaky.py"
    plugin.write_text(LEAKY, encoding="utf-8")
    cell = cpu_cell(
        **dict(host="desk", device="cpu", backend="mlx", workload="leaky", module="leaky"),
        device_memory_bytes=10**13,
        threads=1,
        parameters={"weights": "/home/mgarcia/thesis/gpt2", "probes": []},
    )
    output = f"results/records/{cell.path}.json"
    keep = ["--history", "results/history", "--keep", "results/kept"]
    said = checkout.stage("measure", "--cell", cell.to_json(), "--output", output, *keep).stderr
    assert "hunter2" in said  # the log stays on this host
    (made,) = checkout.records().values()
    assert made["status"] == "failed" and "; 3/4 of 1x1x1;" in made["reason"], made["reason"]
    assert "hostname" not in made["environment"] and len(made["environment"]["node"]) == 12
    host = "results/hosts/desk.json"
    arguments = ["--label", "desk", "--registry", "config/devices.yaml", "--output", host]
    checkout.stage("hosts.cluster_host", *arguments)
    packed = checkout.stage("remote.bundle", "pack", "-o", "desk.zip")
    with zipfile.ZipFile(checkout.path / "desk.zip") as archive:
        members = [archive.read(name).decode() for name in archive.namelist()]
    places = [*members, packed.stdout, (checkout.path / output).read_text()]
    for place in (text.casefold() for text in [*places, (checkout.path / host).read_text()]):
        assert [secret for secret in LEAKED if secret in place] == []
        assert f'"{socket.gethostname().casefold()}"' not in place
