"""A small stand-in for the hub: an HTTP server here that answers the hub's own requests.

Resolve, tree and revision are answered as the hub's client (huggingface_hub 2.4) asks for them and
reads them, so the real client and the real loading code run against it.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from measuring import python

COMMIT = "5" * 40  # of a repository's main branch
OTHER_COMMIT = "6" * 40  # of its other branch

# repository ("datasets/owner/name", or "owner/name" of a model) -> branch -> its files
Repositories = Mapping[str, Mapping[str, Path]]


def commit_of(branch: str) -> str:
    """The commit at the tip of a branch."""
    return COMMIT if branch == "main" else OTHER_COMMIT


def entry(root: Path, path: Path) -> dict[str, Any]:
    """A line of the hub's listing of files."""
    name = path.relative_to(root).as_posix()
    if path.is_dir():
        return {"type": "directory", "path": name, "size": 0, "oid": "0" * 40}
    data = path.read_bytes()
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


def make_handler(repositories: Repositories) -> type[http.server.BaseHTTPRequestHandler]:
    """A handler for these repositories."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def file(self, path: Path, commit: str) -> None:
            if not path.is_file():
                self.reply(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
                return
            data = path.read_bytes()
            headers = {"X_Repo_Commit": commit, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if not asked:
                self.reply(200, data, **headers)
                return
            start, end = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            headers["Content_Range"] = f"bytes {start}-{end}/{len(data)}"
            self.reply(206, data[start : end + 1], **headers)

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if re.fullmatch(r"/api/(datasets|models)/[^/]+/[^/]+", path):
                path += "/revision/main"
            asked = re.fullmatch(
                r"/(?:api/)?((?:datasets/)?[^/]+/[^/]+)/(resolve|revision|tree)/([^/]+)(?:/(.*))?",
                path.replace("/api/models/", "/api/"),
            )
            branches = repositories.get(asked[1]) if asked else None
            if asked is None or branches is None:
                self.reply(404, X_Error_Code="RepoNotFound")
                return
            revision, name = unquote(asked[3]), unquote(asked[4] or "")
            branch = next((b for b in branches if revision in (b, commit_of(b))), None)
            if branch is None:
                self.reply(404, X_Error_Code="RevisionNotFound")
                return
            root, commit = branches[branch], commit_of(branch)
            if asked[2] == "resolve":
                self.file(root / name, commit)
            elif asked[2] == "revision":
                info = {"id": asked[1].removeprefix("datasets/"), "sha": commit, "tags": []}
                self.reply(200, json.dumps(info).encode())
            elif not (root / name).is_dir():
                self.reply(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
            else:
                deep = "recursive=true" in self.path.lower()
                paths = (root / name).rglob("*") if deep else (root / name).iterdir()
                self.reply(200, json.dumps([entry(root, path) for path in sorted(paths)]).encode())

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            """Keep the test's output clean."""

    return Handler


@contextlib.contextmanager
def serving(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address at which a handler answers."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def served(repositories: Repositories) -> contextlib.AbstractContextManager[str]:
    """The address of a hub that has these repositories."""
    return serving(make_handler(repositories))


def download(endpoint: str, home: Path, name: str, kind: str, revision: str | None = None) -> Path:
    """Fill the hub's cache below `home` by its own client, as `hf download` does; the snapshot."""
    script = (
        "import sys, huggingface_hub as h\n"
        "name, kind, revision = sys.argv[1:]\n"
        "print(h.snapshot_download(name, repo_type=kind, revision=revision or None))"
    )
    online = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0"}
    said = python(script, name, kind, revision or "", **online)
    return Path(said.strip().splitlines()[-1])
