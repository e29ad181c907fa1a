"""The dashboard over a real socket: what it shows of jobs in every state, and what it refuses."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments import run
from experiments.dash.server import Server, make_server
from experiments.run_folder import HOST, write_json
from experiments.sweep_plan import write_plan

SECRET = "the secret of another folder"
ROW = {
    "schema_version": 1, "request_id": "a", "turn": 0, "category": "", "round": 0, "num_live": 1, "step": 0,
    "seq_len": 4, "proposed": 2, "depth": 2, "verified": 2, "accepted": 1, "emitted": 2, "bonus": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run and its baseline."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    toy = ("target=toy", "drafter=nextn", "drafter.num_draft_tokens=2", "+experiment=smoke", "engine.repeats=1")
    assert run.main([*toy, f"hydra.run.dir={folder}", "engine.threads=1"]) == 0
    return folder


@dataclass
class Client:
    """Asks a server; ``host`` replaces the name that a browser would send."""

    server: Server

    def ask(self, path: str, *, host: str | None = None, method: str = "GET") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=20)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{self.server.server_port}")
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read().decode("utf-8", errors="replace")
        connection.close()
        return answer.status, body

    def jobs(self) -> dict[str, dict]:
        status, body = self.ask("/jobs.json")
        assert status == 200
        return {Path(job["folder"]).name: job for job in json.loads(body)}

    def markup(self, *, after_report: bool = False) -> dict[str, str]:
        if after_report:
            self.server.content.look_at_report()
        status, body = self.ask("/fragments.json")
        assert status == 200
        return {name: part["markup"] for name, part in json.loads(body).items()}


@pytest.fixture
def sweep(tmp_path: Path, finished: Path) -> Path:
    """A sweep with a job in every state; beside it something that nobody may see."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "status.json").write_text(SECRET, encoding="utf-8")
    sweep = tmp_path / "sweep"
    shutil.copytree(finished, sweep / "done")
    shutil.rmtree(sweep / "done" / "baseline")
    for name, status in (("running", "running"), ("failed", "failed"), ("cut", "running")):
        (sweep / name).mkdir()
        (sweep / name / "config.resolved.yaml").write_text("drafter: {}\n", encoding="utf-8")
        content = {"status": status, "pid": os.getpid(), "host": HOST, "error": "no <b>drafts</b> today"}
        write_json(sweep / name / "status.json", content)
    ended = subprocess.Popen(["true"])
    ended.wait()
    write_json(sweep / "cut" / "status.json", {"status": "running", "pid": ended.pid, "host": HOST})
    (sweep / "running" / "steps.jsonl").write_text(json.dumps(ROW) + "\n" + json.dumps(ROW)[:30], encoding="utf-8")
    write_json(sweep / "running" / "progress.json", {"what": "nextn", "num_done": 1, "total": 4})
    write_plan(sweep, {name: [f"drafter={name}"] for name in ("done", "running", "failed", "cut", "waiting")})
    return sweep


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Client]]:
    """Serves folders at a free port."""
    servers: list[Server] = []

    def start(*folders: Path) -> Client:
        server = make_server(folders, port=0)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return Client(server)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_every_job_is_listed_with_its_state(sweep: Path, serve: Callable[..., Client]) -> None:
    jobs = serve(sweep).jobs()
    assert {name: job["state"] for name, job in jobs.items()} == {
        "done": "done", "running": "running", "failed": "failed", "cut": "interrupted", "waiting": "queued",
    }  # fmt: skip
    assert jobs["waiting"]["label"] == "drafter=waiting"
    assert (jobs["running"]["num_done"], jobs["running"]["total"]) == (1, 4)
    assert jobs["running"]["tokens_per_step"] == 2 and jobs["running"]["draft_acceptance_rate"] == 0.5
    assert jobs["done"]["tokens_per_step"] > 1 and jobs["done"]["speedup"] > 0


def test_half_written_line_waits_for_its_end(sweep: Path, serve: Callable[..., Client]) -> None:
    client = serve(sweep)
    steps = sweep / "running" / "steps.jsonl"
    assert client.jobs()["running"]["num_steps"] == 1
    whole = {**ROW, "accepted": 2, "emitted": 3, "bonus": 1}
    steps.write_text(json.dumps(ROW) + "\n" + json.dumps(whole) + "\n", encoding="utf-8")
    found = client.jobs()["running"]
    assert (found["num_steps"], found["num_bad"], found["tokens_per_step"]) == (2, 0, 2.5)
    with steps.open("a", encoding="utf-8") as file:
        file.write('{nonsense}\n[1]\n{"request_id": 3}\n' + json.dumps({**ROW, "accepted": "x"}) + "\n")
    found = client.jobs()["running"]
    assert (found["num_steps"], found["num_bad"]) == (2, 4)
    steps.write_text("", encoding="utf-8")  # the run began anew
    assert client.jobs()["running"]["num_steps"] == 0


def test_fragments_have_counts_jobs_and_the_report(sweep: Path, serve: Callable[..., Client]) -> None:
    found = serve(sweep).markup(after_report=True)
    assert "1 of 5 done" in found["counts"] and "1 queued" in found["counts"]
    assert "no &lt;b&gt;drafts&lt;/b&gt; today" in found["table"]
    assert 'href="/files/0/done/summary.json"' in found["table"]
    assert "1 of 4 requests" in found["table"]
    assert found["report"].count("<section") >= 3 and 'id="runs"' in found["report"]


def test_report_is_made_anew_only_when_a_run_is_done(sweep: Path, serve: Callable[..., Client], finished: Path) -> None:
    client = serve(sweep)
    before = client.markup(after_report=True)["report"]
    assert client.markup(after_report=True)["report"] == before
    shutil.copytree(finished, sweep / "another")
    assert client.markup(after_report=True)["report"] != before


def test_folder_that_vanishes_leaves_an_answering_page(sweep: Path, serve: Callable[..., Client]) -> None:
    client = serve(sweep)
    assert len(client.jobs()) == 5
    shutil.rmtree(sweep / "running")
    assert client.jobs()["running"]["state"] == "queued"
    shutil.rmtree(sweep)
    assert client.jobs() == {}
    assert "they are gone" in client.markup(after_report=True)["counts"]


def test_files_of_runs_are_served_as_plain_text(sweep: Path, serve: Callable[..., Client]) -> None:
    client = serve(sweep)
    status, body = client.ask("/files/0/failed/status.json")
    assert status == 200 and json.loads(body)["status"] == "failed"
    assert client.ask("/files/0/failed/status.json", method="HEAD") == (200, "")


@pytest.mark.parametrize(
    "path",
    [
        "/files/0/../outside/status.json",
        "/files/0/%2e%2e/outside/status.json",
        "/files/0/..%2foutside%2fstatus.json",
        "/files/0/failed/../../outside/status.json",
        "/files/0//status.json",
        "/files/0/%2fetc/status.json",
        "/files/0/failed/status.json%00",
        "/files/0/failed/status.json/",
        "/files/0/failed/..\\..\\outside\\status.json",
        "/files/0/failed/steps.parquet",
        "/files/0/",
        "/files/0",
        "/files/1/failed/status.json",
        "/files/-1/failed/status.json",
        "/files/x/failed/status.json",
        "/files/",
        "/..",
        "/../../etc/passwd",
        "//etc/passwd",
        "/experiments/cli.py",
    ],
)
def test_path_that_leads_elsewhere_is_not_found(path: str, sweep: Path, serve: Callable[..., Client]) -> None:
    status, body = serve(sweep).ask(path)
    assert status == 404 and SECRET not in body


def test_links_that_lead_out_of_the_folders_are_not_followed(
    sweep: Path, tmp_path: Path, serve: Callable[..., Client]
) -> None:
    (sweep / "linked").mkdir()
    (sweep / "linked" / "status.json").symlink_to(tmp_path / "outside" / "status.json")
    (sweep / "linked" / "config.resolved.yaml").write_text("", encoding="utf-8")
    (sweep / "folder").symlink_to(tmp_path / "outside")
    os.mkfifo(sweep / "failed" / "outputs.jsonl")
    client = serve(sweep)
    for name in ("linked", "folder"):
        status, body = client.ask(f"/files/0/{name}/status.json")
        assert status == 404 and SECRET not in body
    assert client.ask("/files/0/failed/outputs.jsonl")[0] == 404
    assert "linked" not in client.jobs() and "folder" not in client.jobs()
    assert "1 run folders are left out" in client.markup()["counts"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "", "[::1]:80"])
def test_request_for_another_name_is_refused(host: str, sweep: Path, serve: Callable[..., Client]) -> None:
    client = serve(sweep)
    assert client.ask("/jobs.json", host=host or "-")[0] == 403
    assert client.ask("/jobs.json", host=f"localhost:{client.server.server_port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_but_reading_is_answered(method: str, sweep: Path, serve: Callable[..., Client]) -> None:
    assert serve(sweep).ask("/", method=method)[0] == 501


def test_only_this_machine_can_reach_it(sweep: Path, serve: Callable[..., Client]) -> None:
    client = serve(sweep)
    assert client.server.server_address[0] == "127.0.0.1"
    others = {entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in sorted(others):
        with pytest.raises(OSError), socket.create_connection((address, client.server.server_port), timeout=1):
            pass


def test_page_fetches_nothing_from_elsewhere(sweep: Path, serve: Callable[..., Client]) -> None:
    client = serve(sweep)
    texts = [client.ask(path)[1] for path in ("/", "/dash.js", "/style.css", "/report.js")]
    assert not any("http://" in text.replace("http://www.w3.org", "") or "https://" in text for text in texts)
    assert 'src="/dash.js"' in texts[0]
