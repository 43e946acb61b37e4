"""A stand-in for a wandb server on the loopback, as much of it as wandb asks for: GraphQL, file stream, uploads."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """`runs`: id -> what was said of it; `views`: workspaces and reports as saved; `files`: what was uploaded."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.runs: dict[str, dict[str, Any]] = {}
        self.views: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        """The data of a GraphQL answer."""
        name = (re.search(r"(?:query|mutation)\s+(\w+)", query) or ["", "?"])[1]
        project = {"id": "cA==", "internalId": "1", "name": "sparse-attention", "entityName": "me"}
        project |= {"entity": {"id": "e", "name": "me"}}
        if "upsertBucket" in query:
            run = self.runs.setdefault(given["name"], {"history": [], "summary": {}, "lines": 0})
            told = {"config": json.loads(given["config"])} if given.get("config") else {}
            run |= {k: given[k] for k in ("displayName", "groupName", "jobType", "tags", "host") if given.get(k)} | told
            bucket = {"id": "cnVu", "name": given["name"], "displayName": run.get("displayName")}
            bucket |= {"config": "{}", "project": project, "historyLineCount": 0}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "createRunFiles" in query:
            files = [{"name": f, "uploadUrl": f"{self.url}/upload/{f}"} for f in given["files"]]
            return {"createRunFiles": {"runID": "cnVu", "uploadHeaders": [], "files": files}}
        if name == "ArtifactType":
            return {"project": {"artifact": None}}
        if "createArtifact(" in query:
            sequence = {"id": "s", "name": "s", "latestArtifact": None}
            return {"createArtifact": {"artifact": {"id": "QQ==", "state": "COMMITTED", "artifactSequence": sequence}}}
        if "upsertView" in query:
            self.views.append(given)
            view = {"id": f"view{len(self.views)}", "type": given["type"], "name": given["name"]}
            view |= {"displayName": given["displayName"], "description": "", "project": project}
            view |= {"spec": given["spec"], "updatedAt": "2026-01-01T00:00:00"}
            return {"upsertView": {"view": view, "inserted": True}}
        if "RunResumeStatus" in name:
            run = self.runs.get(given["name"])
            bucket = run
            if run:
                rows = run["history"]
                bucket = {"name": given["name"], "id": "cnVu", "displayName": run.get("displayName")}
                bucket |= {"summaryMetrics": json.dumps(run["summary"]), "historyLineCount": len(rows)}
                bucket |= {"historyTail": json.dumps([json.dumps(row) for row in rows[-1:]])}
                bucket |= {"eventsLineCount": 0, "logLineCount": 0, "eventsTail": "[]", "tags": run.get("tags") or []}
                bucket |= {"config": json.dumps(run.get("config", {})), "wandbConfig": '{"t": 1}'}
            return {"model": {k: project[k] for k in ("name", "entity")} | {"id": "p", "bucket": bucket}}
        viewer = {"id": "u", "username": "me", "entity": "me", "flags": "{}", "email": "", "admin": False}
        viewer |= {"name": "me", "teams": {"edges": []}, "apiKeys": {"edges": []}}
        listed = {"edges": [{"node": project | {"createdAt": "", "isBenchmark": False, "user": None}, "cursor": "c"}]}
        listed |= {"pageInfo": {"endCursor": None, "hasNextPage": False}}
        server = {"cliVersionInfo": {"max_cli_version": "9"}, "features": []}
        lists = {"models": listed, "projects": listed, "project": project, "model": project}
        return {"viewer": viewer, "serverInfo": server, **lists}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def _reply(self, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_POST(self) -> None:
        raw = self._body()
        if not self.path.startswith("/graphql") and not self.path.endswith("/file_stream"):
            return self._reply({})  # telemetry
        body = json.loads(raw)
        if self.path.startswith("/graphql"):
            return self._reply({"data": self.server.answer(body["query"], body.get("variables") or {})})
        run = self.server.runs[self.path.split("/")[-2]]  # /files/<entity>/<project>/<run>/file_stream
        run["complete"] = body.get("complete", run.get("complete"))
        for name, part in (body.get("files") or {}).items():
            if name == "wandb-history.jsonl":
                run["history"] += [json.loads(line) for line in part["content"]]
            elif name == "wandb-summary.json":
                run["summary"] = json.loads(part["content"][-1])
        self._reply({"limits": {}})

    def do_PUT(self) -> None:
        self.server.files[self.path.removeprefix("/upload/")] = self._body()
        self._reply({})

    def do_GET(self) -> None:
        self.send_error(self.server.status) if hasattr(self.server, "status") else self._reply({})

    def log_message(self, *_: Any) -> None:
        """Nothing on the terminal of the tests."""
