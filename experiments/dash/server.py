"""The server of the dashboard: this machine alone, GET alone, a handful of paths; the standard library's."""

import hashlib
import json
import threading
from collections.abc import Sequence
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from experiments.dash import markup
from experiments.dash.jobs import Job, Watch
from experiments.dash.report_part import ReportPart
from experiments.dash.roots import NotServedError, Roots

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
ASSETS = Path(__file__).parents[1] / "data" / "dash"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
HTML, JSON, TEXT = "text/html", "application/json", "text/plain"


class Content:
    """What the paths hold; one look at the folders at a time, whoever asks."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._watch = Watch(roots)
        self._report = ReportPart(roots)
        self._lock = threading.Lock()

    def document(self) -> str:
        """The page without its fragments, which its script fetches."""
        places = ", ".join(escape(str(folder)) for folder in self._roots.folders)
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark"><title>specdec dash</title>'
            '<link rel="icon" href="data:,"><link rel="stylesheet" href="/style.css"></head><body>'
            f'<header><h1>Speculative decoding</h1><p>{places}</p><p id="told" role="status">connecting</p></header>'
            '<main><section id="jobs"><h2>Jobs</h2><div id="counts"></div><div id="table"></div></section>'
            '<div id="report"></div></main>'
            "<noscript><p>This page follows the runs with a script.</p></noscript>"
            '<script src="/dash.js"></script></body></html>\n'
        )

    def style(self) -> str:
        return f"{self._report.part.style}\n{(ASSETS / 'dash.css').read_text(encoding='utf-8')}"

    def script(self) -> str:
        return (ASSETS / "dash.js").read_text(encoding="utf-8")

    def report_script(self) -> str:
        """The report's own script; each report that comes in is given to it anew."""
        return f"(() => {{\n{self._report.part.script}\n}})();\n"

    def fragments(self) -> str:
        """Markup by name of the place, each with a hash that changes when it does."""
        with self._lock:
            jobs = self._watch.jobs()
            _, left_out = self._roots.run_paths()
        self._report.look()
        part = self._report.part
        problem = f'<p class="note">{escape(part.problem)}</p>' if part.problem else ""
        found = {
            "counts": markup.counts(jobs, num_left_out=len(left_out)),
            "table": markup.table(jobs, self._roots),
            "report": problem + part.markup,
        }
        return json.dumps({name: {"hash": _hash(text), "markup": text} for name, text in found.items()})

    def look_at_report(self) -> None:
        """Wait until the report shows every run that is done now."""
        self._report.look(wait=True)
        self._report.look(wait=True)  # the first one may have begun before

    def jobs(self) -> str:
        """The jobs as plain values, for scripts."""
        with self._lock:
            return json.dumps([_plain(job) for job in self._watch.jobs()])

    def file(self, number: str, relative: str) -> bytes:
        """A file of a run; raises NotServedError."""
        return self._roots.read(number, relative)


class Handler(BaseHTTPRequestHandler):
    """Answers one request; ``server`` is a Server."""

    timeout = 10
    server: "Server"
    server_version, sys_version = "specdec", ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a page that polls would fill the terminal."""

    def _answer(self, *, with_body: bool) -> None:
        if self._is_foreign():
            self._send(HTTPStatus.FORBIDDEN, TEXT, b"this page is for this machine alone\n", with_body=with_body)
            return
        try:
            kind, body = self._found()
        except NotServedError as error:
            self._send(HTTPStatus.NOT_FOUND, TEXT, f"{error}\n".encode(), with_body=with_body)
        else:
            self._send(HTTPStatus.OK, kind, body, with_body=with_body)

    def _is_foreign(self) -> bool:
        """Whether the request was made for another name: a page elsewhere whose name was pointed at this machine."""
        name, _, port = self.headers.get("Host", "").rpartition(":")
        return name not in NAMES or port != str(self.server.server_port)

    def _found(self) -> tuple[str, bytes]:
        content = self.server.content
        pages = {
            "/": (HTML, content.document),
            "/style.css": ("text/css", content.style),
            "/dash.js": ("text/javascript", content.script),
            "/report.js": ("text/javascript", content.report_script),
            "/fragments.json": (JSON, content.fragments),
            "/jobs.json": (JSON, content.jobs),
        }
        path = self.path.partition("?")[0]
        if path in pages:
            kind, make = pages[path]
            return kind, make().encode("utf-8", errors="replace")
        head, _, rest = path.removeprefix("/files/").partition("/")
        if not path.startswith("/files/"):
            raise NotServedError("there is no such page")
        return TEXT, content.file(head, unquote(rest))

    def _send(self, status: HTTPStatus, kind: str, body: bytes, *, with_body: bool) -> None:
        try:
            self.send_response(status)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # who asked is gone


class Server(ThreadingHTTPServer):
    """A server with its content."""

    daemon_threads = True

    def __init__(self, content: Content, port: int) -> None:
        self.content = content
        super().__init__((HOST, port), Handler)


def make_server(folders: Sequence[Path], *, port: int) -> Server:
    """A server over these folders, bound but not serving yet; port 0 takes any. Raises OSError for a port in use."""
    return Server(Content(Roots(folders)), port)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()[:16]


def _plain(job: Job) -> dict[str, object]:
    return {
        "folder": str(job.path),
        "label": job.label,
        "state": job.state.value,
        "detail": job.detail,
        "num_done": job.num_done,
        "total": job.total,
        "num_steps": job.num_steps,
        "num_bad": job.num_bad,
        "started": job.started,
        **job.figures,
    }
