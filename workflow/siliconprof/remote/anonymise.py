"""Names of hosts and people in records, replaced by stable pseudonyms.

A host's label and network name become `host-1a2b3c4d`, a user's name `user-…`, the private part of
a path `path-…`, an identifier of a machine `id-…`. Devices, drivers and versions stay: they are
what the numbers are about.

**Why a salt.** A pseudonym that is the plain hash of a name gives the name away to anybody who
hashes likely names. So it is an HMAC (RFC 2104) with 32 random bytes. They are kept in
`results/anonymous.salt`, readable by its owner alone, so that two bundles of one host have the
same pseudonyms; that file stays on this host and is in no bundle. With another salt for every
bundle nobody can link the two. For the same reason a record is sealed anew and its former SHA-256
is nowhere in the bundle: with it, likely names could be tried in the record until the hash fits.
"""

from __future__ import annotations

import contextlib
import getpass
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError, writing
from siliconprof.store import record, temporary

KEPT, ONCE = "kept", "once"
SALT_FILE = "anonymous.salt"
SALT_BYTES = 32
LONG = 4  # letters of a name that is looked for inside other words
# Names that tell nobody from anybody else: in texts they are left as they are.
EVERYBODYS = frozenset(
    "admin all any auto client computer cpu data debian default desk desktop dev device docker gpu "
    "guest home host laptop linux local localhost mac machine main name node none null ok other "
    "pc public root runner server share shared test the this time ubuntu unknown user users "
    "windows work worker".split()
)
_USERS = re.compile(
    r"(?:/home|/Users|/export/home|/var/home)/([^/\s:\"'<>|,;]+)"
    r"|[A-Za-z]:[\\/]+Users[\\/]+([^\\/\s:\"'<>|,;]+)"
    r"|(?<![\w/])~([A-Za-z_][\w.-]*)"
)
# Two parts at least: `tokens /s` is no path. In quotation marks, as in a traceback, with spaces.
_PATHS = re.compile(
    r"(?P<url>\b(?:https?|git|ssh)://\S+)"
    r"|(?P<quoted>(?<=[\"'])/[^\"'/\n]+/[^\"'\n]*(?=[\"']))"
    r"|(?P<path>(?:file://)?(?<![\w.~-])/[^\s/:\"'<>|,;()\[\]{}]+(?:/[^\s/:\"'<>|,;()\[\]{}]*)+"
    r"|\b[A-Za-z]:[\\/]+[^\s:\"'<>|,;()]+)"
)
_SYSTEM = re.compile(
    r"/(?:proc|sys|dev|usr|lib|lib64|bin|sbin|etc|run|System|Library|opt/(?:cuda|rocm|homebrew))/"
)
# What a path keeps: from here on it is the program's own, or a package's.
_KEPT = re.compile(r"(?:site-packages|dist-packages|workflow/siliconprof|results)[\\/].*|[^\\/]*\Z")
_FILE = re.compile(r"[\w.+-]+\.(?:py|pyc|so|dylib|json|jsonl|npy|txt|log|safetensors)(?:\.\d+)*")
_IDENTIFIERS = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|(?:[0-9a-f]{2}:){5}[0-9a-f]{2})"
    r"(?![0-9A-Za-z])",
    re.I,
)


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
    """Replaces the names added to it; `replaced` lists the replacements for the person who packs."""

    salt: bytes
    names: dict[str, str] = field(default_factory=dict)  # case-folded name -> its pseudonym
    common: set[str] = field(default_factory=set)  # names that stand in texts for other things
    replaced: dict[str, str] = field(default_factory=dict)  # as it was -> as it is

    # -- names to replace --------------------------------------------------------------------

    def add_host(self, label: str, *hostnames: str | None) -> None:
        """Add a host's label and network names; all get one pseudonym."""
        host_pseudonym = pseudonym(self.salt, "host", label)
        for name in filter(None, (label, *hostnames)):
            short, _, domain = name.casefold().partition(".")
            self.names[name.casefold()] = host_pseudonym
            self.names.setdefault(short, host_pseudonym)
            if "." in domain:
                self.names.setdefault(domain, pseudonym(self.salt, "domain", domain))

    def add_users(self, texts: Iterable[str] = ()) -> None:
        """Add the user who packs, and the users whose home folders the texts name."""
        users = {os.environ.get(name, "") for name in ("SUDO_USER", "LOGNAME")}
        for ask in (getpass.getuser, lambda: Path.home().name):
            with contextlib.suppress(OSError, KeyError, RuntimeError):
                users.add(ask())  # some containers have neither
        for text in texts:
            users.update(name for match in _USERS.findall(text) for name in match)
        for name in filter(None, users):
            self.names.setdefault(name.casefold(), pseudonym(self.salt, "user", name))

    def add_vocabulary(self, words: Iterable[str]) -> None:
        """Add words that records are written in: a host called `mlx` does not make MLX a secret."""
        self.common |= {word.casefold() for word in words}

    def _secret(self, name: str) -> bool:
        plain = len(name) < 2 or name.isdigit() or name in EVERYBODYS
        return not plain and name not in self.common

    @property
    def not_in_texts(self) -> list[str]:
        """Names replaced in fields that hold a name, and left where they are a word of a text."""
        return sorted(name for name in self.names if not self._secret(name))

    # -- replacing ---------------------------------------------------------------------------

    def host(self, name: str) -> str:
        """The pseudonym of a label or network name."""
        replacement = self.names.get(name.casefold()) or pseudonym(self.salt, "host", name)
        self.replaced[name] = replacement
        return replacement

    def text(self, text: str) -> str:
        """A text without private paths, identifiers and secret names."""
        if text.startswith("/") and text.count("/") > 1 and not re.search(r"\n|: |, ", text):
            text = self._path(text)  # all of it, spaces too
        else:
            text = _PATHS.sub(lambda match: match["url"] or self._path(match[0]), text)
        text = _IDENTIFIERS.sub(lambda match: self._replace(match[0], "id"), text)
        pattern = self._pattern()
        if pattern is None:
            return text
        return pattern.sub(lambda match: self._replace_name(match[0]), text)

    def value(self, value: Any) -> Any:
        """Every text in a JSON value, keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(entry) for key, entry in value.items()}
        return [self.value(entry) for entry in value] if isinstance(value, list) else value

    def _path(self, path: str) -> str:
        if _SYSTEM.match(path.removeprefix("file://")):
            return path
        tail = _KEPT.search(path)
        retained = tail[0] if tail else ""
        if "/" not in retained and "\\" not in retained and not _FILE.fullmatch(retained):
            retained = ""  # a folder's name, which may be anybody's
        private = path[: len(path) - len(retained)].rstrip("/\\")
        replacement = f"/{pseudonym(self.salt, 'path', private)}" + (
            f"/{retained}" if retained else ""
        )
        self.replaced[private] = pseudonym(self.salt, "path", private)
        return replacement

    def _replace_name(self, name: str) -> str:
        replacement = self.names[name.casefold()]
        self.replaced[name] = replacement
        return replacement

    def _replace(self, name: str, kind: str) -> str:
        self.replaced[name] = replacement = pseudonym(self.salt, kind, name)
        return replacement

    def _pattern(self) -> re.Pattern[str] | None:
        secret = tuple(sorted(filter(self._secret, self.names), key=len, reverse=True))
        return _whole_words(secret) if secret else None

    def remaining(self, members: Mapping[str, Any]) -> list[str]:
        """Names that are still part of longer words, with one place each: a person must judge.

        Args:
            members: name -> document, as they are to be packed.
        """
        lines = {}
        long = [name for name in self.names if self._secret(name) and len(name) >= LONG]
        for member, document in members.items():
            for text in (member, *texts(document)):
                folded = text.casefold()
                for name in long:
                    if name in folded and name not in lines:
                        lines[name] = f"'{name}' is still part of {text[:80]!r} in {member}"
        return list(lines.values())

    # -- documents ---------------------------------------------------------------------------

    def record(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """A stored record, of any schema, without names and sealed anew."""
        anonymised = self.value(dict(data))
        anonymised["cell"]["host"] = self.host(data["cell"]["host"])
        hostname = data["environment"].get("hostname")
        if isinstance(hostname, str):
            anonymised["environment"]["hostname"] = self.host(hostname)
        anonymised["sha256"] = record.content_sha256(anonymised)
        return anonymised

    def host_file(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """A host file without names; with the same salt a machine keeps its fingerprint."""
        from siliconprof.hosts import host_file as hosts

        anonymised = self.value(dict(data))
        anonymised["label"] = self.host(str(data["label"]))
        anonymised["hostname"] = self.host(str(data["hostname"]))
        parts = dict(data["fingerprint_parts"])
        if parts.get("machine_id_sha256"):
            parts["machine_id_sha256"] = _hmac(self.salt, "machine", parts["machine_id_sha256"])
            self.replaced["the machine's id"] = parts["machine_id_sha256"]
        anonymised["fingerprint_parts"] = parts
        anonymised["fingerprint"] = hosts.fingerprint(parts)
        # made of paths and times of files, which could be tried against the plain hash
        anonymised["quick_facts_sha256"] = _hmac(self.salt, "facts", data["quick_facts_sha256"])
        return anonymised


def words_of_keys(value: Any) -> Iterator[str]:
    """The words in the keys of a JSON value: `max_iterations` is no secret of a user `max`."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if re.fullmatch(r"[a-z0-9_]+", key):
                yield from key.split("_")
            yield from words_of_keys(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from words_of_keys(entry)


def texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield key
            yield from texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from texts(entry)


@cache
def _whole_words(names: tuple[str, ...]) -> re.Pattern[str]:
    """Matches any of the names as a whole word."""
    either = "|".join(map(re.escape, names))
    return re.compile(rf"(?<![^\W_])(?:{either})(?![^\W_])", re.I)
