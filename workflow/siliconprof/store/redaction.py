"""Texts of other programs, checked on their way into a record or host file.

A record is about a device, its drivers and versions; who owns it and what the network around it is
called are not, so no field says it: a node has an id (`hosts.environment`). Only free texts (reasons,
messages, paths) may quote it. Secrets and addresses are found by their form and by the values of
this process's own environment variables, names by being this host's and this user's. What no rule
here can know, such as a colleague's name, is shown by `siliconprof pack` before it leaves.

A URL keeps its host where that is a public hub: any other name may be a company's own. Of a path
stays what is the program's own or a package's. Versions stay: four numbers between dots are an
address unless they stand under a key of versions or after a word of versions. Under such a key a
name stays, too: a user called `ada` does not hide an RTX 6000 Ada.

Standard library only.
"""

from __future__ import annotations

import contextlib
import getpass
import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from siliconprof.store.validation import SCHEMA_DIR

ADDRESS, EMAIL, HOST, IDENTIFIER = "[address]", "[e-mail]", "[host]", "[id]"
PATH, SECRET, USER = "...", "[secret]", "[user]"
LONGEST_CACHED = 1000  # characters of a text
# Names that tell nobody from anybody else: in texts they are left as they are.
EVERYBODYS = frozenset(
    "admin all any auto client computer cpu data debian default desk desktop dev device docker gpu "
    "guest home host laptop linux local localhost mac machine macos main name node none null ok "
    "other pc public root runner server share shared test the this time ubuntu unknown user users "
    "windows work worker".split()
)
USER_VARIABLES = ("LOGNAME", "SUDO_USER", "USER", "USERNAME")
HOST_VARIABLES = ("COMPUTERNAME", "HOSTNAME", "SLURMD_NODENAME", "SLURM_SUBMIT_HOST")
_SECRET_VARIABLE = re.compile(
    r"(?:^|_)(?:TOKEN|PASS(?:WORD|WD)?|SECRET|(?:API|ACCESS|PRIVATE)_?KEY|CREDENTIALS?)(?:_|$)",
    re.I,
)
_END = r"\s\"'<>|,;()\[\]{}"  # what ends a path or URL in a text
# Two parts at least: `tokens /s` is no path. In quotation marks, as in a traceback, with spaces.
_PLACES = re.compile(
    r"(?P<url>(?<![a-z0-9+.-])(?!file:)[a-z][a-z0-9+.-]{0,15}://(?:[^\s/]*@)?(?:\[[^\]\s]*\])?"
    rf"[^{_END}]*)"
    r"|(?P<quoted>(?<=[\"'])/[^\"'/\n]+/[^\"'\n]*(?=[\"']))"
    rf"|(?P<path>(?:file://)?(?<![\w.~-])/[^/:{_END}]+(?:/[^/:{_END}]*)+"
    rf"|(?<![\w/])~[\w.-]*/[^:{_END}]*"
    rf"|\b[A-Za-z]:[\\/]+[^:{_END}]+"
    rf"|(?<![\w\\])\\\\(?:\\\\)?[\w.$-]+(?:\\+[^\\:{_END}]+)+)",
    re.I,
)
_SYSTEM = re.compile(
    r"/(?:proc|sys|dev|usr(?!/home/)|lib|lib64|bin|sbin|etc|run(?!/(?:media|user)/)|System|Library"
    r"|opt/(?:cuda|rocm|homebrew))/"
)
# What a path keeps: from here on it is the program's own, or a package's.
_KEPT = re.compile(
    r"(?:site-packages|dist-packages|workflow/siliconprof|results)[\\/].*|(?<![^\\/])[^\\/]*\Z"
)
_FILE = re.compile(r"[\w.+-]+\.(?:py|pyc|so|dylib|json|jsonl|npy|txt|log|safetensors)(?:\.\d+)*")
_PUBLIC = re.compile(
    r"localhost|127\.0\.0\.1|(?:[\w-]+\.)*(?:huggingface\.co|hf\.co|github\.com|gitlab\.com|"
    r"githubusercontent\.com|python\.org|pytorch\.org|anaconda\.org|"
    r"nvidia\.com|apple\.com|kernel\.org|kaggle\.com|zenodo\.org|arxiv\.org|wikipedia\.org)",
    re.I,
)
_NAMED_HOST = re.compile(
    r"(?P<before>\bhost(?:name)?[\"']?\s*[=:]\s*[\"']?|\b(?:resolve|connect to)(?: host:?)? [\"']?)"
    r"(?P<name>[\w-]{1,63}(?:\.[\w-]{1,63}){0,9})(?=[\"':,;) ]|$)",
    re.I,
)
_LOCAL_NAME = re.compile(
    r"(?<![\w./-])(?:(?:[\w-]{1,63}\.){1,9}(?:lan|intranet|localdomain|corp|home\.arpa|"
    r"(?:ec2|compute)\.internal)|(?=[\w-]{0,62}[\d-])[\w-]{1,63}\.local)(?![\w-])",
    re.I,
)
_EMAIL = re.compile(
    r"(?<![\w.%+-])[\w.%+-]{1,64}@(?:[\w-]{1,63}\.){1,9}[a-z]{2,24}(?!\w)(?::[\w~][\w./~-]*)?", re.I
)
_IDENTIFIERS = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2})"
    r"(?![0-9A-Za-z:])",
    re.I,
)
_QUADS = re.compile(r"(?<![\w.-])(?<![=<>~!]=)\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\w)")
_OF_A_VERSION = re.compile(
    r"(?:version|release|driver|runtime|cu[a-z]+|nccl|torch|mlx|blas|mkl|rocm|hip\w*|\bv)\W{0,3}\Z",
    re.I,
)
_VERSION_KEY = re.compile(
    r"packages|version|device_name|driver|runtime|blas|\Acu[a-z]+\Z|\Apython\Z"
)
# Global, unique local, link-local and multicast ones (RFC 4291, 4193): `a::b` is a name in C++.
_IPV6 = re.compile(r"(?<![\w:.])(?:[23][0-9a-f]{3}|f[cd][0-9a-f]{2}|fe[89ab][0-9a-f]|ff0[0-9a-f])"
                   r":[0-9a-f:.]*[0-9a-f:](?:%\w+)?(?!\w)", re.I)  # fmt: skip
_TOKENS = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|gh[opsru]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|gl[a-z]{1,4}-[\w-]{16,}|sk-[\w-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}|xox[a-z]-[\w-]{10,}"
    r"|AIza[\w-]{30,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{16,}|(?<![\w-])eyJ[\w-]+\.eyJ[\w-]+\.[\w-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_HEADER = re.compile(
    r"(authorization[\"']?\s*[:=]\s*[\"']?)(?:(?:basic|bearer|digest|token)\s+)?[^\s\"',]+"
    r"|(\bbearer\s+)(?=[\w.~+/=-]{0,200}\d)[\w.~+/=-]{8,}"
    r"|((?<![\w-])--?(?:[a-z-]{1,32}-)?(?:token|password|secret|api-key)[ =])(?!\[)\S+",
    re.I,
)
_KEYED = re.compile(
    r"(?P<kind>token|passw(?:or)?d|pwd|secret|api[_-]?key|access[_-]?key|"
    r"private[_-]?key|credentials?)(?P<sign>[\"']?\s*[=:]\s*)(?P<quote>[\"']?)"
    r"(?P<value>(?<=[\"'])[^\"'\n]+(?=[\"'])|[^\s\"'&;,)}\]<\[{(][^\s\"'&;,)}\]]*)",
    re.I,
)
_NO_SECRET = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?|none|null|true|false|[<\[].*", re.I)
_PLAIN_WORD = re.compile(r"\w+")
# A text that has none of these has only names to hide.
_SUSPECT = re.compile(r"[/\\@~:=]|[._-]\w|--|bearer", re.I)


@dataclass(frozen=True)
class Known:
    """What is hidden because it is this process's own; each the longest first."""

    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()


NOTHING = Known()


# -- a text --------------------------------------------------------------------------------------


def text(text_: str, known_: Known = NOTHING, versions: bool = False) -> str:
    """A text without secrets, addresses, private paths, identifiers of machines, and names.

    Args:
        versions: it is a version, or what has one: four numbers between dots are no address, and no
            word is a user or host.
    """
    redact = _cached if len(text_) <= LONGEST_CACHED else _redacted
    return redact(text_, known_, versions)


def _redacted(text_: str, known_: Known, versions: bool) -> str:
    for secret in known_.secrets:
        text_ = text_.replace(secret, SECRET)
    if versions:
        known_ = NOTHING
    if not _SUSPECT.search(text_):
        return _without_names(text_, known_)
    text_ = _TOKENS.sub(SECRET, text_)
    text_ = _HEADER.sub(lambda m: (m[1] or m[2] or m[3]) + SECRET, text_)
    if re.match(r"/\S", text_) and text_.count("/") > 1 and not re.search(r"\n|: |, ", text_):
        text_ = _path(text_)  # all of it, spaces too
    else:
        text_ = _PLACES.sub(lambda m: _url(m["url"]) if m["url"] else _path(m[0]), text_)
    text_ = _KEYED.sub(_keyed, text_)
    text_ = _without_names(text_, known_)
    text_ = _EMAIL.sub(EMAIL, text_)
    text_ = _NAMED_HOST.sub(_named_host, text_)
    text_ = _LOCAL_NAME.sub(HOST, text_)
    text_ = _IDENTIFIERS.sub(IDENTIFIER, text_)
    if not versions:
        text_ = _QUADS.sub(_quad, text_)
    return _IPV6.sub(_ipv6, text_)


_cached = lru_cache(maxsize=1 << 15)(_redacted)


def _keyed(match: re.Match[str]) -> str:
    value_, sign = match["value"], match["sign"]
    kept = _NO_SECRET.fullmatch(value_) is not None
    if "=" not in sign and not match["quote"] and match["kind"].lower() == "token":
        # `unexpected token: identifier` is a message about a text
        kept = kept or len(value_) < 8 or not re.search(r"\d", value_)
    return match[0] if kept else f"{match['kind']}{sign}{match['quote']}{SECRET}"


def _url(url: str) -> str:
    end = url[len(url.rstrip(".:")) :].removeprefix(PATH)  # what was redacted before stays so
    scheme, _, rest = url.removesuffix(end).partition("://")
    netloc, slash, below = rest.partition("/")
    host = netloc.rpartition("@")[2]
    name = host.partition(":")[0]
    if not _PUBLIC.fullmatch(name):
        return f"{scheme}://{HOST if rest else ''}{f'/{PATH}' if slash else ''}{end}"
    below = re.sub(r"\?.*|#(?![\w.-]+\Z).*", "", below)
    return f"{scheme}://{host}{slash}{below}{end}"


def _path(path: str) -> str:
    if _SYSTEM.match(path.removeprefix("file://")):
        return path
    tail = _KEPT.search(path)
    kept = tail[0] if tail else ""
    if "/" not in kept and "\\" not in kept and not _FILE.fullmatch(kept):
        kept = ""  # a folder's name, which may be anybody's
    return f"{PATH}/{kept}" if kept else PATH


def _named_host(match: re.Match[str]) -> str:
    name = match["name"]
    plain = _PUBLIC.fullmatch(name) or name.casefold() in EVERYBODYS or name.isdigit()
    # after a mere space only what looks like a network name: `connect to the`
    spaced = match["before"].endswith(" ") and "." not in name and "=" not in match["before"]
    return match[0] if plain or spaced else match["before"] + HOST


def _quad(match: re.Match[str]) -> str:
    numbers = [int(number) for number in match[0].split(".")]
    is_address = max(numbers) < 256 and numbers[0] not in (0, 127)
    before = match.string[max(0, match.start() - 24) : match.start()]
    return ADDRESS if is_address and not _OF_A_VERSION.search(before) else match[0]


def _ipv6(match: re.Match[str]) -> str:
    candidate = match[0] if match[0].endswith("::") else match[0].rstrip(":.")
    try:
        ipaddress.IPv6Address(candidate)
    except ValueError:
        return match[0]
    return ADDRESS + match[0][len(candidate) :]


# -- names ---------------------------------------------------------------------------------------


def known(hosts: Iterable[str] = (), label: str = "") -> Known:
    """The names of this process's user and host, and the secrets in its environment variables.

    Args:
        hosts: further network names.
        label: what the host is called in public, which is hidden nowhere.
    """
    users = {os.environ.get(name, "") for name in USER_VARIABLES}
    for ask in (getpass.getuser, lambda: Path.home().name):
        with contextlib.suppress(OSError, KeyError, RuntimeError):
            users.add(ask())  # some containers have neither
    names = {socket.gethostname(), *(os.environ.get(name, "") for name in HOST_VARIABLES), *hosts}
    for name in [*names]:  # the short name, and a domain, are names as well
        short, _, domain = name.partition(".")
        names |= {short, domain if "." in domain else ""}
    values = (value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name))
    secrets = {v for v in values if len(v) >= 8 and not v.startswith("/") and not v.isdigit()}
    hosts = _telling(name for name in names - users if name.casefold() != label.casefold())
    return Known(_telling(users), hosts, _longest_first(secrets))


def _telling(names: Iterable[str]) -> tuple[str, ...]:
    """Names that are no plain words, of English or of records, case-folded."""
    common = EVERYBODYS | _words_of_the_schema()
    folded = {name.casefold() for name in names}
    return _longest_first({n for n in folded if len(n) > 1 and not n.isdigit() and n not in common})


def _longest_first(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(texts, key=lambda text_: (-len(text_), text_)))


@cache
def _words_of_the_schema() -> frozenset[str]:
    """The words of the record's schema: what its fields may say, and plain English."""
    with contextlib.suppress(OSError):
        schema = (SCHEMA_DIR / "record.schema.yaml").read_text(encoding="utf-8")
        return frozenset(re.findall(r"[a-z0-9]+", schema.casefold()))
    return frozenset()


def _without_names(text_: str, known_: Known) -> str:
    """The text without names as whole words; on a host whoever is addressed goes, too."""
    if _PLAIN_WORD.fullmatch(text_):  # a value from a list, such as a backend
        return text_
    if known_.hosts:
        text_ = _whole_words(known_.hosts).sub(
            lambda m: f"{USER}@{HOST}" if m["at"] else HOST, text_
        )
    if known_.users:
        text_ = _whole_words(known_.users).sub(lambda m: (m["at"] or "") + USER, text_)
    return text_


@cache
def _whole_words(names: tuple[str, ...]) -> re.Pattern[str]:
    """Matches any of the names (`name`) as a whole word, with a user before it (`at`)."""
    either = "|".join(map(re.escape, names))
    return re.compile(
        rf"(?P<at>(?<![\w.+-])[\w.+-]{{1,64}}@)?(?<![^\W_])(?P<name>{either})(?![^\W_])", re.I
    )


# -- documents -----------------------------------------------------------------------------------


def value(value_: Any, known_: Known = NOTHING, versions: bool = False) -> Any:
    """Every text in a JSON value redacted as by `text`; keys, which are words of ours, stay."""
    if isinstance(value_, str):
        return text(value_, known_, versions)
    if isinstance(value_, dict):
        return {
            key: value(entry, known_, versions or _VERSION_KEY.search(key) is not None)
            for key, entry in value_.items()
        }
    if isinstance(value_, list | tuple):
        return [
            entry if isinstance(entry, float | int) else value(entry, known_, versions)
            for entry in value_
        ]
    return value_


def cell(data: Mapping[str, Any]) -> dict[str, Any]:
    """A cell, or its identity, whose parameters hold no private path or secret."""
    return {**data, "parameters": value(data["parameters"])}


def record(data: Mapping[str, Any], hosts: Iterable[str] = ()) -> dict[str, Any]:
    """A record whose texts are redacted; not sealed.

    Args:
        hosts: further network names of the host that it was measured on.
    """
    apart = {"cell": cell(data["cell"]), **{k: data[k] for k in ("code", "sha256") if k in data}}
    rest = {name: entry for name, entry in data.items() if name not in apart}
    return value(rest, known(hosts, data["cell"]["host"])) | apart
