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
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError, writing
from siliconprof.store import record, redaction, temporary

KEPT, ONCE = "kept", "once"
SALT_FILE = "anonymous.salt"
SALT_BYTES = 32
LONG = 4  # letters of a name that is looked for inside other words


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
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: damaged ({error}); a new one changes all pseudonyms: restore or delete it"
        ) from None
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
    return {pseudonym(salt_, "host", label) for label in labels}


def pseudonym(salt_: bytes, kind: str, name: str) -> str:
    """The pseudonym of a name: `host-1a2b3c4d`."""
    return f"{kind}-{_hmac(salt_, kind, name.casefold())[:8]}"


def _hmac(salt_: bytes, kind: str, value: str) -> str:
    return hmac.new(salt_, f"{kind}:{value}".encode(), "sha256").hexdigest()


@dataclass
class Anonymiser:
    """Replaces labels of hosts; `replaced` lists the replacements for the person who packs."""

    salt: bytes
    names: dict[str, str] = field(default_factory=dict)  # case-folded name -> its pseudonym
    common: set[str] = field(default_factory=set)  # names that stand in texts for other things
    replaced: dict[str, str] = field(default_factory=dict)  # as it was -> as it is

    def add_host(self, label: str) -> None:
        """Add a host's label; what it begins with, up to a dot, is a name too."""
        for name in (label.casefold(), label.casefold().partition(".")[0]):
            self.names.setdefault(name, pseudonym(self.salt, "host", label))

    def add_vocabulary(self, words: Iterable[str]) -> None:
        """Add words that records are written in: a host called `mlx` does not make MLX a secret."""
        self.common |= {word.casefold() for word in words}

    def _secret(self, name: str) -> bool:
        return not redaction.is_common(name, self.common)

    @property
    def not_in_texts(self) -> list[str]:
        """Names replaced in fields that hold a name, and left where they are a word of a text."""
        return sorted(name for name in self.names if not self._secret(name))

    def host(self, name: str) -> str:
        """The pseudonym of a label."""
        replacement = self.names.get(name.casefold()) or pseudonym(self.salt, "host", name)
        self.replaced[name] = replacement
        return replacement

    def value(self, value: Any) -> Any:
        """A JSON value without labels in its texts, keys too."""
        secret = filter(self._secret, self.names)
        names = tuple(sorted(((n, self.names[n]) for n in secret), key=lambda n: -len(n[0])))
        if names:
            for text in set().union(*redaction.contents(value)):
                for match in redaction.whole_words(tuple(name for name, _ in names)).finditer(text):
                    self.replaced[match["name"]] = self.names[match["name"].casefold()]
        return redaction.renamed(value, names)

    def remaining(self, members: Mapping[str, Any]) -> list[str]:
        """Names that are still part of longer words, with one place each: a person must judge.

        Args:
            members: name -> document, as they are to be packed.
        """
        lines = {}
        long = [name for name in self.names if self._secret(name) and len(name) >= LONG]
        for member, document in members.items():
            for text in sorted({member}.union(*redaction.contents(document))):
                folded = text.casefold()
                for name in long:
                    if name in folded and name not in lines:
                        lines[name] = f"'{name}' is still part of {text[:80]!r} in {member}"
        return list(lines.values())

    def record(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """A redacted record, of any schema, without its host's label and sealed anew."""
        anonymised = self.value(dict(data))
        anonymised["cell"]["host"] = self.host(data["cell"]["host"])
        environment = anonymised["environment"]
        if "hostname" in environment:  # of an older schema, where the label stands
            environment["hostname"] = anonymised["cell"]["host"]
        if environment.get("node"):
            environment["node"] = _hmac(self.salt, "node", environment["node"])[:12]
        anonymised["sha256"] = record.content_sha256(anonymised)
        return anonymised

    def host_file(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """A redacted host file without label; with the same salt a machine keeps its fingerprint."""
        from siliconprof.hosts import host_file as hosts

        anonymised = self.value(dict(data))
        anonymised["label"] = self.host(str(data["label"]))
        parts = dict(data["fingerprint_parts"])
        if parts.get("machine_id_sha256"):
            parts["machine_id_sha256"] = _hmac(self.salt, "machine", parts["machine_id_sha256"])
            self.replaced["the machine's id"] = parts["machine_id_sha256"]
        anonymised["fingerprint_parts"] = parts
        anonymised["fingerprint"] = hosts.fingerprint(parts)
        # made of paths and times of files, which could be tried against the plain hash
        anonymised["quick_facts_sha256"] = _hmac(self.salt, "facts", data["quick_facts_sha256"])
        return anonymised
