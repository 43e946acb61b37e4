"""Headless Chromium over its debugging pipe, without a driver or a package: enough to open a page, look at it and ask it."""

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --no-first-run".split()


class Chromium:
    """`with Chromium(folder) as browser: page = browser.open(path, width, dark)`; `folder` is for its profile."""

    def __init__(self, folder: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs_in, theirs_out)]

        def wire() -> None:
            for at, fd in zip((3, 4), fds):
                os.dup2(fd, at, inheritable=True)

        command = [BINARY, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, close_fds=False, preexec_fn=wire, **quiet)
        for fd in (theirs_in, theirs_out, *fds):
            os.close(fd)
        self.to, self.source = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
        self.number, self.rest, self.session = 0, b"", None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> "Chromium":
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *error: Any) -> None:
        self.process.kill()
        self.process.wait()
        self.to.close()
        self.source.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer of the browser; what it says meanwhile is kept in `events`."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        self.to.write(json.dumps(message | ({"sessionId": self.session} if self.session else {})).encode() + b"\0")
        self.to.flush()
        while (found := self._next()).get("id") != self.number:
            self.events.append(found)
        assert "error" not in found, f"{method}: {found['error']}"
        return found["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            read = self.source.read1(1 << 20)
            assert read, "the browser has ended"
            self.rest += read
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def wait(self, method: str) -> None:
        while not any(e.get("method") == method for e in self.events):
            self.events.append(self._next())

    def open(self, path: Path, width: int, dark: bool = False) -> list[str]:
        """Load a file at a width in CSS pixels; returns the addresses that the page asked for, its own left out."""
        scheme, mobile = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}, width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=mobile)
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait("Page.loadEventFired")
        asked = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in asked if url != path.as_uri() and not url.startswith("data:")]

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")
