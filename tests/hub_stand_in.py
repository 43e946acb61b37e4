"""A stand-in of the Hugging Face hub on the loopback: small Parquet files in the schema of Gigaword, and its faults.

It answers what `huggingface_hub` and `tasks.data.acquire.download` ask: /api/datasets/<repo>/revision/<revision>, and
/datasets/<repo>/resolve/<revision>/<file>, which redirects to another address as the hub does to its storage. It also serves
plain files under /files, with Range.
"""

import hashlib
import http.server
import json
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" * 6 + "beef"
SIZES = {"train": 24, "validation": 8, "test": 8}
WORDS = ["a", "good", "film", "that", "no", "one", "will", "see", "with", "the", "worst", "plot", "in", "years"]


def _text(rng: random.Random, low: int = 4, high: int = 9) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(low, high))) + " ."


# Repository -> where its Parquet files lie.
PATHS = {"Harvard/gigaword": "default/{}/0000.parquet"}


def parquet(repo: str, folder: Path) -> dict[str, bytes]:
    """File name -> bytes of a repository."""
    from datasets import Dataset, Features, Value

    features = Features(document=Value("string"), summary=Value("string"))
    files = {}
    for split, size in SIZES.items():
        rng = random.Random(f"{repo}/{split}")
        path = folder / "one.parquet"
        made = [{"document": f"{i} {_text(rng)}", "summary": _text(rng, 2, 4)} for i in range(size)]
        Dataset.from_list(made, features=features).to_parquet(path)
        files[PATHS[repo].format(split)] = path.read_bytes()
    return files


class Server(http.server.ThreadingHTTPServer):
    """Attributes: repos: repository -> file -> bytes; files: path -> bytes; asked: (path, headers) so far; faults below."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, Mapping[str, str]]] = []
        self.moved: dict[str, str] = {}  # repository -> its new name
        self.gated: set[str] = set()
        self.cut: int | None = None  # bytes of a file after which the connection ends
        self.flip = False  # one byte of every file is another
        self.longer = 0  # bytes that every file has beside those announced by the hub
        self.broken = False  # the API answers 500
        self.partly = True  # parts of a file can be asked for

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append((path, self.headers))
        parts = path.strip("/").split("/")
        if parts[0] == "api":
            return self._api("/".join(parts[2:4]))
        if parts[0] == "datasets":
            repo, name = "/".join(parts[1:3]), path.split("/resolve/")[1].split("/", 1)[1]
            if repo in self.server.gated:
                return self._refuse(403, "GatedRepo")
            return self._redirect(302, f"/storage/{repo}/{name}")
        if parts[0] == "storage":
            return self._file(self.server.repos["/".join(parts[1:3])].get("/".join(parts[3:])))
        return self._file(self.server.files.get("/".join(parts[1:])))

    do_HEAD = do_GET

    def _api(self, repo: str) -> None:
        server = self.server
        if server.broken:
            return self._refuse(500, "")
        if repo in server.moved:
            return self._redirect(307, self.path.replace(repo, server.moved[repo]))
        if repo not in server.repos:
            return self._refuse(404, "RepoNotFound")
        if repo in server.gated:
            return self._refuse(403, "GatedRepo")
        siblings = []
        for name, raw in server.repos[repo].items():
            lfs = {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw), "pointerSize": 130}
            siblings.append({"rfilename": name, "size": len(raw), "blobId": "0" * 40, "lfs": lfs})
        return self._send(json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings, "tags": []}).encode())

    def _file(self, body: bytes | None) -> None:
        if body is None:
            return self._refuse(404, "EntryNotFound")
        server, wanted, start = self.server, self.headers.get("Range"), 0
        body = (body[:-9] + bytes([body[-9] ^ 1]) + body[-8:] if server.flip else body) + b"x" * server.longer
        if wanted and server.partly:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        if start and start >= len(body):
            return self._refuse(416, "")
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        self.wfile.write(body[start : server.cut])

    def _refuse(self, code: int, why: str) -> None:
        self.send_response(code)
        self.send_header("X-Error-Code", why)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _redirect(self, code: int, where: str) -> None:
        self.send_response(code)
        self.send_header("Location", where)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    """A server, until the context ends."""
    server = Server()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
