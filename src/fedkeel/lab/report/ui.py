"""The live page: the report of runs in progress, served on this machine only.

The stop button leaves a file `stop` in the directories of unfinished runs; `run/log.py` sees it after the round, and
the run ends as if interrupted: checkpointed, to be resumed.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

from ...errors import FedkeelError, InputError
from ...run.folder import STOP
from .page import Document, as_html, as_json, document
from .runs import Ran, Reader, all_runs, not_started

HOST = "127.0.0.1"
FRESH = 5.0  # seconds without a request after which no page is open; a page sends one every two


class Ui:
    """A server of the page about these folders; use it in a `with`.

    replays: also show what is replayed from configurations, once every run has ended. It takes seconds of computing, so
    a process that is training leaves it out.

    >>> with Ui([Path("runs")]) as ui:
    ...     ui.url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, folders: Sequence[Path], port: int = 0, replays: bool = True) -> None:
        self.folders, self.replays = list(folders), replays
        self.token = secrets.token_urlsafe(16)
        self.reader, self.lock = Reader(), threading.Lock()
        self.finished: tuple[list[Ran], Document] | None = None
        self.asked_at = -FRESH
        if not 0 <= port < 2**16:
            raise InputError(f"--port must be in 0..65535. Got {port} instead.")
        try:
            self.server = ThreadingHTTPServer((HOST, port), _handler(self))
        except OSError as error:
            raise InputError(f"Port {port} cannot be used: {error.strerror}.") from error
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.1,), daemon=True)

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/{self.token}/"

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def wait(self) -> None:
        """Until Ctrl-C."""
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)

    def linger(self) -> None:
        """Let a page that is watching ask once more, so that it shows how the runs ended."""
        end = time.monotonic()
        while self.asked_at < end < self.asked_at + FRESH and time.monotonic() < end + FRESH / 2:
            time.sleep(0.05)

    def document(self) -> Document:
        """What the page shows now; an error about the folders is shown on the page."""
        error = ""
        with self.lock:  # two pages at once would read everything twice
            self.asked_at = time.monotonic()
            try:
                folders = [folder for folder in self.folders if folder.is_dir()]
                groups, waiting = self.reader.read(folders), not_started(folders)
                runs = all_runs(groups)
                ended = not waiting and all(run.complete for run in runs)
                if runs and not (self.replays and ended):
                    return document(groups, replays=False, waiting=waiting)
                if runs:
                    if (
                        self.finished is None or self.finished[0] != runs
                    ):  # the reader gives the same while none changes
                        self.finished = runs, document(groups)
                    return self.finished[1]
            except Exception as found:  # shown on the page, which would otherwise get an empty reply
                error = str(found) if isinstance(found, FedkeelError | OSError) else f"{type(found).__name__}: {found}"
        return {"title": "fedkeel", "task": "", "arms": [], "runs": [], "error": error}

    def stop(self) -> int:
        """Ask every unfinished run to stop after its round; gives how many there are."""
        with self.lock:
            groups = self.reader.read([folder for folder in self.folders if folder.is_dir()])
            left = [run for run in all_runs(groups) if not run.complete]
        for run in left:
            (run.folder / STOP).touch()
        return len(left)


def _handler(ui: Ui) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            path = self._path()
            if path == "":
                self._answer(as_html(ui.document(), live=True), "text/html")
            elif path == "data":
                self._answer(as_json({**ui.document(), "live": True}), "application/json")
            else:
                self.send_error(403 if path is None else 404)

        def do_POST(self) -> None:
            path, origin = self._path(), self.headers.get("Origin")
            known = (None, f"http://{HOST}:{ui.port}", f"http://localhost:{ui.port}")
            if path is None or origin not in known:
                self.send_error(403)
            elif path == "stop":
                self._answer(as_json({"asked": ui.stop()}), "application/json")
            else:
                self.send_error(404)

        def _path(self) -> str | None:
            """What is asked for, None where it must not be answered.

            The token guards against other programs, the Host header against pages that rebind their name.
            """
            named = self.headers.get("Host") in (f"{HOST}:{ui.port}", f"localhost:{ui.port}")
            token, _, path = self.path.partition("?")[0].removeprefix("/").partition("/")
            return path if named and secrets.compare_digest(token.encode(), ui.token.encode()) else None

        def _answer(self, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(200)
            for name, value in (
                ("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(body))),
                ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"),
                ("Referrer-Policy", "no-referrer"), ("X-Frame-Options", "DENY"),
            ):  # fmt: skip
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *words: object) -> None:
            """The terminal belongs to the run."""

    return Handler
