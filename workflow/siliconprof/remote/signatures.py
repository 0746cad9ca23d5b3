"""Signatures of bundles, by OpenSSH: `ssh-keygen -Y sign` and `-Y verify` (ssh-keygen(1), 8.2 on).

A signature lies beside the bundle as `{bundle}.sig` and is made for the namespace `siliconprof`,
so that a signature made for another purpose is not accepted. A file of allowed signers lists who
may sign: one line `identity ssh-ed25519 AAAA…` each.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from siliconprof.errors import UserError

NAMESPACE = "siliconprof"
LIMIT_S = 120  # a person may have to touch a key or type a passphrase


def path_of(bundle: Path) -> Path:
    """The path of a bundle's signature."""
    return bundle.with_name(f"{bundle.name}.sig")


def sign(content: bytes, key: Path) -> bytes:
    """The signature of a bundle's bytes.

    Args:
        key: a private key, or a public one whose private half an agent holds.

    Raises:
        UserError: there is no such key, or ssh-keygen refused it; one line.
    """
    if not key.is_file():
        raise UserError(f"{key}: no such key")
    result = _keygen(["sign", "-f", str(key.absolute()), "-n", NAMESPACE], content)
    if result.returncode or not result.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        raise UserError(f"{key}: cannot sign: {_message(result)}")
    return result.stdout


def signer(content: bytes, bundle: Path, allowed: Path, identity: str | None = None) -> str:
    """Who signed a bundle's bytes, as the file of allowed signers calls them.

    Args:
        identity: the only identity to accept.

    Raises:
        UserError: it is not signed, or not by an allowed signer; one line.
    """
    signature = path_of(bundle)
    if not signature.is_file():
        raise UserError(f"{bundle}: not signed: there is no {signature.name} beside it")
    if not allowed.is_file():
        raise UserError(f"{allowed}: no such file of allowed signers")
    options = ["-f", str(allowed.absolute()), "-s", str(signature.absolute())]
    if identity is None:
        principals = _keygen(["find-principals", *options], b"")
        lines = principals.stdout.decode("utf-8", "replace").splitlines()
        names = [name for name in lines if not name.startswith("!")]  # those excluded there
        if principals.returncode or not names:
            raise UserError(f"{bundle}: not signed by any of {allowed}: {_message(principals)}")
        identity = names[0]
    result = _keygen(["verify", *options, "-I", identity, "-n", NAMESPACE], content)
    if result.returncode:
        raise UserError(
            f"{bundle}: {signature.name} is not a signature of it by '{identity}': "
            f"{_message(result)}"
        )
    return identity


def _keygen(arguments: Sequence[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    """`ssh-keygen -Y …` with something on its standard input.

    Raises:
        UserError: it is not installed, or waited too long for a passphrase or a touch.
    """
    try:
        command = ["ssh-keygen", "-Y", *arguments]
        return subprocess.run(
            command, input=content, capture_output=True, timeout=LIMIT_S, check=False
        )
    except FileNotFoundError:
        raise UserError(
            "signatures need ssh-keygen of OpenSSH 8.2 or newer, which is not installed here"
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(f"ssh-keygen gave no answer within {LIMIT_S} s") from None


def _message(result: subprocess.CompletedProcess[bytes]) -> str:
    """The first line of ssh-keygen's output, or its exit status."""
    output = (result.stderr + b"\n" + result.stdout).decode("utf-8", "replace").split("\n")
    lines = [" ".join(line.split()) for line in output if line.strip()]
    return (lines or [f"status {result.returncode}"])[0][:300]
