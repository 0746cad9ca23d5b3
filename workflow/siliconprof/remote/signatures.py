"""Signatures of bundles, by OpenSSH: `ssh-keygen -Y sign` and `-Y verify` (ssh-keygen(1), 8.2 on).

A signature lies beside the bundle as `{bundle}.sig` and is made for the namespace `siliconprof`,
so that nothing that somebody signed for another purpose passes for one. Who may sign stands in a
file of allowed signers: one line `identity ssh-ed25519 AAAA…` each.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from siliconprof.errors import UserError

NAMESPACE = "siliconprof"
LIMIT_BYTES = 64 * 2**10  # of a signature; one by a long RSA key has 3 KiB
LIMIT_S = 120  # a person may have to touch a key or type a passphrase


def path_of(bundle: Path) -> Path:
    """Where a bundle's signature lies."""
    return bundle.with_name(f"{bundle.name}.sig")


def sign(content: bytes, key: Path) -> bytes:
    """The signature of a bundle's bytes.

    Args:
        key: a private key, or a public one whose private half an agent holds.

    Raises:
        UserError: no such key, or ssh-keygen refused it.
    """
    if not key.is_file():
        raise UserError(f"{key}: no such key")
    done = _keygen(["sign", "-f", str(key.absolute()), "-n", NAMESPACE], content)
    if done.returncode or not done.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        raise UserError(f"{key}: cannot sign: {_said(done)}")
    return done.stdout


def signer(content: bytes, bundle: Path, allowed: Path, wanted: str | None = None) -> str:
    """Who signed a bundle's bytes, as the file of allowed signers calls them.

    Args:
        wanted: the only identity that will do.

    Raises:
        UserError: not signed, or not by one of them; one line.
    """
    lies = path_of(bundle)
    try:
        if lies.stat().st_size > LIMIT_BYTES:
            raise UserError(f"{lies}: no signature: over {LIMIT_BYTES} bytes")
        signature = lies.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{bundle}: not signed: there is no {lies.name} beside it") from None
    except OSError as error:
        raise UserError(f"{lies}: {error.strerror or error}") from None
    if not allowed.is_file():
        raise UserError(f"{allowed}: no such file of allowed signers")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "signature")  # what is looked at twice may not change in between
        copy.write_bytes(signature)
        who = ["-f", str(allowed.absolute()), "-s", str(copy)]
        if wanted is None:
            found = _keygen(["find-principals", *who], b"")
            lines = found.stdout.decode("utf-8", "replace").splitlines()
            names = [name for name in lines if not name.startswith("!")]  # who is excepted there
            if found.returncode or not names:
                raise UserError(f"{bundle}: not signed by any of {allowed}: {_said(found)}")
            wanted = names[0]
        done = _keygen(["verify", *who, "-I", wanted, "-n", NAMESPACE], content)
        if done.returncode:
            raise UserError(
                f"{bundle}: {lies.name} is no signature of it by '{wanted}': {_said(done)}"
            )
    return wanted


def _keygen(arguments: Sequence[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    """`ssh-keygen -Y …` with something on its standard input.

    Raises:
        UserError: it is not installed, or waits for somebody who is not there.
    """
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", *arguments],
            input=content,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise UserError(
            "signatures need ssh-keygen of OpenSSH 8.2 or newer, which is not installed here"
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(f"ssh-keygen gave no answer within {LIMIT_S} s") from None


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    """The end of what ssh-keygen said, in one line."""
    said = (done.stderr + b"\n" + done.stdout).decode("utf-8", "replace").split("\n")
    lines = [" ".join(line.split()) for line in said if line.strip()]
    return (lines or [f"status {done.returncode}"])[0][:300]
