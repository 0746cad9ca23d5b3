"""Labels of hosts in a bundle, replaced by stable pseudonyms.

A host's label becomes `host-1a2b3c4d`, the ids of its machine and nodes other ids. No record holds
any other name (`store.redaction`). Devices, drivers and versions stay: they are what the numbers
are about.

**Why a salt.** A pseudonym that is the plain hash of a name gives the name away to anybody who
hashes likely names. So it is an HMAC (RFC 2104) with 32 random bytes. They are kept in
`results/anonymous.salt`, readable by its owner alone, so that two bundles of one host have the
same pseudonyms; that file stays on this host and is in no bundle. With another salt for every
bundle nobody can link the two. For the same reason a record is sealed anew and its former SHA-256
is nowhere in the bundle: with it, likely names could be tried in the record until the hash fits.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError, writing
from siliconprof.store import record, redaction, temporary

KEPT, ONCE = "kept", "once"
SALT_FILE = "anonymous.salt"
SALT_BYTES = 32
# What the numbers are about: parts of a host file, and of a record.
OF_HOST = ("devices", "cpu", "driver", "blas", "packages")
OF_CELL = ("backend", "device")
OF_ENVIRONMENT = ("backend", "declared", "packages")


def salt(results: Path, how: str) -> bytes:
    """The key of the pseudonyms, `SALT_BYTES` long.

    Args:
        how: KEPT for the same pseudonyms in every bundle of this checkout, ONCE for new ones.

    Raises:
        UserError: it can be neither read nor written, or is damaged.
    """
    if how == ONCE:
        return secrets.token_bytes(SALT_BYTES)
    path = results / SALT_FILE
    if not path.exists():
        unfinished = temporary.beside(path)
        with writing(path):
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w", encoding="ascii") as stream:
                stream.write(secrets.token_hex(SALT_BYTES) + "\n")
            os.replace(unfinished, path)
    return _stored_salt(path)


def _stored_salt(path: Path) -> bytes:
    try:
        salt_ = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        salt_ = b""
    if len(salt_) != SALT_BYTES:
        raise UserError(f"{path}: damaged; a new one changes all pseudonyms: restore or delete it")
    return salt_


def own_pseudonyms(results: Path, labels: Iterable[str]) -> set[str]:
    """The pseudonyms of hosts in anonymised bundles of this checkout; empty if it made none.

    Raises:
        UserError: the salt is damaged.
    """
    path = results / SALT_FILE
    if not path.exists():
        return set()
    salt_ = _stored_salt(path)
    return {pseudonym(salt_, label) for label in labels}


def pseudonym(salt_: bytes, label: str) -> str:
    """The pseudonym of a host's label: `host-1a2b3c4d`."""
    return f"host-{_hmac(salt_, 'host', label.casefold())[:8]}"


def _hmac(salt_: bytes, kind: str, value: str) -> str:
    return hmac.new(salt_, f"{kind}:{value}".encode(), "sha256").hexdigest()


def _words(document: Mapping[str, Any]) -> Iterator[str]:
    """Every text in a document that stands alone, and the words of which its keys are made."""
    text = json.dumps(document, ensure_ascii=False).casefold()
    for word, colon in re.findall(r'"((?:[^"\\]|\\.)*)"(:?)', text):
        yield word
        if colon:
            yield from word.split("_")


def _whole_words(names: Iterable[str]) -> re.Pattern[str]:
    """Matches any of some names as a whole word."""
    either = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(rf"(?<![^\W_])(?:{either})(?![^\W_])" if either else r"(?!)", re.I)


class Anonymiser:
    """Replaces labels of hosts in the documents of one bundle.

    Attributes:
        replaced: label, as it was -> pseudonym, for the person who packs.
        common: labels that are also words of the documents or of what they are about: a host called
            `mlx` or `epyc` does not make MLX a secret, nor a processor, nor `42` a number. Those
            are replaced where they name the host, and left in texts.
    """

    def __init__(
        self, salt_: bytes, labels: Iterable[str], documents: Iterable[Mapping[str, Any]]
    ) -> None:
        self.salt = salt_
        self.replaced: dict[str, str] = {}
        words, about = set(redaction.EVERYBODYS), []
        for document in documents:
            about += [document.get(part) for part in OF_HOST]
            about += [document.get("cell", {}).get(part) for part in OF_CELL]
            about += [document.get("environment", {}).get(part) for part in OF_ENVIRONMENT]
            named = {"label": None, "cell": {**document.get("cell", {}), "host": None}}
            words.update(_words({**document, **named}))
        self.names: dict[str, str] = {}  # case-folded label, or its part up to a dot -> pseudonym
        for label in sorted(labels, key=len, reverse=True):
            for name in (label.casefold(), label.casefold().partition(".")[0]):
                self.names.setdefault(name, pseudonym(salt_, label))
        text = json.dumps(about, ensure_ascii=False)
        words.update(name for name in self.names if _whole_words([name]).search(text))
        self.common = sorted(
            name for name in self.names if name in words or len(name) < 2 or name.isdigit()
        )
        self.pattern = _whole_words(self.names.keys() - {*self.common})

    def _host(self, label: str) -> str:
        return self.replaced.setdefault(label, pseudonym(self.salt, label))

    def _text(self, text: str) -> str:
        def instead(match: re.Match[str]) -> str:
            return self.replaced.setdefault(match[0], self.names[match[0].casefold()])

        return self.pattern.sub(instead, text)

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._text(key): self._value(entry) for key, entry in value.items()}
        return [self._value(entry) for entry in value] if isinstance(value, list) else value

    def record(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """A record of today's schema without its host's label, sealed anew."""
        anonymised = self._value(dict(data))
        anonymised["cell"]["host"] = self._host(data["cell"]["host"])
        node = data["environment"].get("node")
        if node:
            anonymised["environment"]["node"] = _hmac(self.salt, "node", node)[:12]
        anonymised["sha256"] = record.content_sha256(anonymised)
        return anonymised

    def host_file(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """A host file without label; with the same salt a machine keeps its fingerprint."""
        from siliconprof.hosts import host_file as hosts

        anonymised = self._value(dict(data))
        anonymised["label"] = self._host(str(data["label"]))
        parts = dict(data["fingerprint_parts"])
        if parts.get("machine_id_sha256"):
            parts["machine_id_sha256"] = _hmac(self.salt, "machine", parts["machine_id_sha256"])
            self.replaced["the machine's id"] = parts["machine_id_sha256"]
        anonymised["fingerprint_parts"] = parts
        anonymised["fingerprint"] = hosts.fingerprint(parts)
        # made of paths and times of files, which could be tried against the plain hash
        anonymised["quick_facts_sha256"] = _hmac(self.salt, "facts", data["quick_facts_sha256"])
        return anonymised
