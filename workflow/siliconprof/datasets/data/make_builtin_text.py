"""Make `builtin_text.txt`: prose of Python's standard library, for training without a download.

Why a committed file and not this script at run time: every host then trains on the same bytes,
whatever Python it has. The script is kept so that anyone can see where each line came from and
make the file again:

    python make_builtin_text.py            # writes builtin_text.txt beside this script
    python make_builtin_text.py --output other.txt

Two sources, both under the PSF licence (LICENSE-PSF.txt, beside this file), are read as text by
`ast`; no module is imported, so nothing is executed and no platform matters:

1. `pydoc_data/topics.py`, the language reference as `help()` shows it;
2. docstrings of public modules, classes and functions, in the order of their names.

The same CPython release gives the same bytes. Which release made the committed file, and its
checksum, stand in README.md.
"""

import argparse
import ast
import hashlib
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Snakemake compares inputs by checksum only up to this size; a larger file would be compared by
# its time stamp, and then a fresh clone would rerun everything.
MAX_BYTES = 1_000_000

# Not documentation of the library: tests, third-party code, applications, generated tables.
# tkinter and distutils are left out because their docstrings are mostly lists of options.
SKIPPED_PARTS = frozenset(
    "__pycache__ distutils encodings ensurepip idlelib lib-dynload lib2to3 pydoc_data site-packages"
    " test tests tkinter turtledemo".split()
)

# A module with a licence of its own is left out, so that LICENSE-PSF.txt covers every line.
OWN_LICENCE = re.compile(
    rb"permission\s+(to\s+use|is)|hereby\s+granted|redistribution\s+and\s+use|apache\s+license"
    rb"|free\s+software|GNU\s+GPL|SPDX-License",
    re.IGNORECASE,
)

# Shorter docstrings ("Return the name.") hold labels rather than prose. The value is the lowest
# multiple of 10 that keeps all of CPython 3.11.7 below MAX_BYTES, so that no module is cut off.
MIN_DOCSTRING_CHARS = 240

# A paragraph shorter than this may repeat ("See also:", "Example:"); a longer repeat is a copy.
MIN_COPY_CHARS = 60

TYPOGRAPHY = str.maketrans(
    {"’": "'", "‘": "'", "“": '"', "”": '"', "…": "...", "—": "--", "–": "-"}
)
EMAIL_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+\.\w")
HOME_FOLDER = re.compile(r"(/home|/Users|/root)/|[A-Z]:\\")


def topics(library: Path) -> Iterator[tuple[str, str]]:
    """Yield (title, text) of every help topic, in the order of their names."""
    tree = ast.parse((library / "pydoc_data" / "topics.py").read_bytes())
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            table: dict[str, str] = ast.literal_eval(statement.value)
            for name in sorted(table):
                yield name, table[name]


def public_modules(library: Path) -> list[tuple[str, Path]]:
    """Return (dotted name, file) of the library's public modules, sorted by name."""
    modules = []
    for file in library.rglob("*.py"):
        parts = file.relative_to(library).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if SKIPPED_PARTS.isdisjoint(parts) and not any(part.startswith("_") for part in parts):
            modules.append((".".join(parts), file))
    return sorted(modules)


def docstrings(name: str, node: ast.Module | ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, docstring) of a module or class and of its public members."""
    yield name, ast.get_docstring(node) or ""
    for member in node.body:
        if isinstance(member, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if member.name.startswith("_"):
                continue
            inner = f"{name}.{member.name}"
            if isinstance(member, ast.ClassDef):
                yield from docstrings(inner, member)
            else:
                yield inner, ast.get_docstring(member) or ""


def is_mostly_session(text: str) -> bool:
    """Tell whether more than half of the lines belong to an interactive session (>>>)."""
    in_session = 0
    inside = False
    lines = text.splitlines()
    for line in lines:
        inside = bool(line.strip()) and (inside or line.lstrip().startswith(">>>"))
        in_session += inside
    return 2 * in_session > len(lines)


def clean_paragraphs(text: str, seen: set[str]) -> str:
    """Return `text` in plain ASCII without copies, addresses and paths of someone's machine.

    `seen` holds every longer paragraph so far, and grows: the topics include each other, and many
    classes inherit their docstrings.
    """
    paragraphs = []
    lines = (line.rstrip() for line in text.expandtabs().translate(TYPOGRAPHY).splitlines())
    for paragraph in re.split(r"\n{2,}", "\n".join(lines).strip("\n")):
        key = " ".join(paragraph.split())
        is_copy = len(key) >= MIN_COPY_CHARS and key in seen
        is_clean = paragraph.isascii() and paragraph.replace("\n", "").isprintable()
        is_private = EMAIL_ADDRESS.search(paragraph) or HOME_FOLDER.search(paragraph)
        if key and is_clean and not is_copy and not is_private:
            seen.add(key)
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def make_text(library: Path) -> str:
    """Return the whole text: topics first, then one section for each documented object."""
    seen: set[str] = set()
    sections = []
    for title, text in topics(library):
        body = clean_paragraphs(text, seen)
        if body:
            sections.append(f"{title}\n\n{body}\n")
    for module, file in public_modules(library):
        source = file.read_bytes()
        if OWN_LICENCE.search(source):
            continue
        for name, text in docstrings(module, ast.parse(source)):
            if len(text) < MIN_DOCSTRING_CHARS or is_mostly_session(text):
                continue
            body = clean_paragraphs(text, seen)
            if body:
                sections.append(f"{name}\n\n{body}\n")
    return "\n\n".join(sections)


def main(argv: list[str] | None = None) -> int:
    """Write the text and print its size and SHA-256; answer the exit code."""
    parser = argparse.ArgumentParser(description="Make the built-in training text.")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("builtin_text.txt"))
    arguments = parser.parse_args(argv)
    data = make_text(Path(sysconfig.get_path("stdlib"))).encode("ascii")
    if len(data) >= MAX_BYTES:
        print(f"the text has {len(data)} bytes, not below {MAX_BYTES}", file=sys.stderr)
        return 1
    arguments.output.write_bytes(data)
    release = ".".join(map(str, sys.version_info[:3]))
    print(f"CPython {release}: {len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
