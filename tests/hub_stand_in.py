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


def _text(rng: random.Random, low: int, high: int) -> str:
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
        made = [{"document": f"{i} {_text(rng, 4, 9)}", "summary": _text(rng, 2, 4)} for i in range(size)]
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
        server, path = self.server, unquote(urlsplit(self.path).path)
        server.asked.append((path, self.headers))
        parts = path.strip("/").split("/")
        if parts[0] == "api":
            self._api("/".join(parts[2:4]))
        elif parts[0] == "datasets":
            self._send(302, Location=f"/storage/{'/'.join(parts[1:3])}/{'/'.join(parts[5:])}")
        elif parts[0] == "storage":
            self._file(server.repos["/".join(parts[1:3])].get("/".join(parts[3:])))
        else:
            self._file(server.files.get("/".join(parts[1:])))

    do_HEAD = do_GET

    def _api(self, repo: str) -> None:
        server = self.server
        if server.broken:
            return self._send(500)
        if repo in server.moved:
            return self._send(307, Location=self.path.replace(repo, server.moved[repo]))
        if repo not in server.repos:
            return self._send(404, X_Error_Code="RepoNotFound")
        if repo in server.gated:
            return self._send(403, X_Error_Code="GatedRepo")
        siblings = []
        for name, raw in server.repos[repo].items():
            lfs = {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw), "pointerSize": 130}
            siblings.append({"rfilename": name, "size": len(raw), "blobId": "0" * 40, "lfs": lfs})
        told = {"id": repo, "sha": COMMIT, "siblings": siblings, "tags": []}
        return self._send(200, body=json.dumps(told).encode(), Content_Type="application/json")

    def _file(self, body: bytes | None) -> None:
        if body is None:
            return self._send(404, X_Error_Code="EntryNotFound")
        server, wanted, start = self.server, self.headers.get("Range"), 0
        body = (body[:-9] + bytes([body[-9] ^ 1]) + body[-8:] if server.flip else body) + b"x" * server.longer
        if wanted and server.partly:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        if start and start >= len(body):
            return self._send(416)
        more = {"Content_Range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if start else {}
        return self._send(206 if start else 200, body=body[start:], **more)

    def _send(self, code: int, body: bytes = b"", **headers: str) -> None:
        """An answer with these headers; their dashes are written as `_`."""
        self.send_response(code)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body[: self.server.cut])

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
