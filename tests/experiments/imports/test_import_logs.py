"""Statistics of other engines: lines written from their documentation, and the run folder that they become."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments import compare, gate, import_logs
from experiments.report.command import main as report
from experiments.run_folder import Status, read_json, read_jsonl, status_of

VLLM_LINE = (
    "(APIServer pid=1) INFO 09-16 05:26:57 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: {length}, "
    "Accepted throughput: 1.40 tokens/s, Drafted throughput: 3.00 tokens/s, Accepted: {accepted} tokens, Drafted: "
    "{drafted} tokens, Per-position acceptance rate: {rates}, Avg Draft acceptance rate: 46.7%"
)
GOOD = VLLM_LINE.format(length="2.40", accepted=14, drafted=30, rates="0.800, 0.400, 0.200")
NONE_ACCEPTED = VLLM_LINE.format(length="1.00", accepted=0, drafted=6, rates="0.000, 0.000, 0.000")
OTHER_LINE = "INFO 09-16 05:27:07 [loggers.py:1] Engine 000: Avg prompt throughput: 108.0 tokens/s"
SCRAPE = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}.0
vllm:spec_decode_num_drafts_created{{engine="0",model_name="m"}} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {drafted}.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {first}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} {second}.0
vllm:generation_tokens_total{{engine="0",model_name="m"}} 1234.0
"""
RESULT = {
    "model_id": "m",
    "output_throughput": 50.0,
    "spec_decode_num_drafts": 10,
    "spec_decode_draft_tokens": 30,
    "spec_decode_accepted_tokens": 14,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.4, 0.2],
}
META = {
    "id": "r1",
    "finish_reason": {"type": "length"},
    "prompt_tokens": 5,
    "completion_tokens": 11,
    "spec_verify_ct": 4,
    "spec_num_correct_drafts": 6,
    "spec_num_proposed_drafts": 12,
    "spec_correct_drafts_histogram": [1, 1, 1, 1],
}
OLD_META = {
    "id": "r2",
    "completion_tokens": 8,
    "spec_verify_ct": 3,
    "spec_accept_token_num": 4,
    "spec_draft_token_num": 9,
    "spec_accept_histogram": [1, 0, 2],
}
SGLANG_LINE = (
    "[2026-03-01 10:00:00 TP0] Decode batch, #running-req: 4, #token: 213, token usage: 0.01, accept len: {length}, "
    "accept rate: 0.39, cuda graph: True, gen throughput (token/s): 113.50, #queue-req: 0,"
)

Import = Callable[..., Path]


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    """Imports texts as files; returns the run folder."""
    monkeypatch.chdir(tmp_path)

    def command(engine: str, *texts: str, out: str = "run", settings: tuple[str, ...] = ()) -> Path:
        names = [f"{out}-{number}.txt" for number in range(len(texts))]
        for name, text in zip(names, texts, strict=True):
            Path(name).write_text(text, encoding="utf-8")
        assert import_logs.main([engine, *names, f"out={out}", *settings]) == 0
        assert status_of(tmp_path / out) is Status.DONE
        return tmp_path / out

    return command


def test_vllm_lines_say_how_many_steps_accepted_how_many(imported: Import) -> None:
    folder = imported("vllm", f"{GOOD}\n{OTHER_LINE}\n{NONE_ACCEPTED}\n")
    summary = read_json(folder / "summary.json")
    # 10 steps of which 8, 4 and 2 reached positions 1 to 3, and 2 steps that accepted nothing.
    assert summary["accepted_histogram"] == [4, 4, 2, 2]
    assert summary["draft_acceptance_rate"] == {"value": 14 / 36, "low": None, "high": None, "n": 36}
    assert summary["tokens_per_drafted_step"]["value"] == pytest.approx(26 / 12)
    assert [one["value"] for one in summary["survival_fixed"]] == pytest.approx([8 / 12, 4 / 12, 2 / 12])
    assert [one["n"] for one in summary["conditional_raw"]] == [12, 8, 4]
    rows = read_jsonl(folder / "steps.jsonl")
    assert len(rows) == 12 and {row["proposed"] for row in rows} == {3}
    assert sum(row["accepted"] for row in rows) == 14


def test_what_vllm_does_not_count_is_null_and_said(imported: Import, capsys: pytest.CaptureFixture[str]) -> None:
    summary = read_json(imported("vllm", GOOD) / "summary.json")
    assert summary["tokens_per_step"] == {"value": None, "low": None, "high": None, "n": 0}
    assert {"tokens_per_step", "overlap", "speedup", "lossless"} <= set(summary["imported"]["unknown"])
    assert "untested against a live engine" in summary["imported"]["how"]
    assert summary["lossless"] is None and "vllm log run-0.txt" in summary["lossless_how"]
    assert "steps without a draft are not counted" in capsys.readouterr().out
    always = read_json(imported("vllm", GOOD, out="always", settings=("drafts=always",)) / "summary.json")
    assert always["tokens_per_step"]["value"] == pytest.approx(2.4)


@pytest.mark.parametrize(
    ("line", "known"),
    [
        # Some steps drafted fewer than three.
        (VLLM_LINE.format(length="2.40", accepted=14, drafted=29, rates="0.800, 0.400, 0.200"), 10),
        # As before positions were printed.
        ("SpecDecoding metrics: Draft acceptance rate: 46.7%, Accepted: 14 tokens, Drafted: 30 tokens", None),
    ],
)
def test_counts_without_accepted_lengths_give_means_alone(imported: Import, line: str, known: int | None) -> None:
    folder = imported("vllm", line)
    summary = read_json(folder / "summary.json")
    assert summary["draft_acceptance_rate"]["n"] in (29, 30)
    assert summary["tokens_per_drafted_step"]["n"] == (known or 0)
    assert summary["survival"] == [] and summary["accepted_histogram"] == []
    assert read_jsonl(folder / "steps.jsonl") == []


def test_rates_of_many_steps_agree_with_their_total(imported: Import) -> None:
    line = VLLM_LINE.format(length="2.40", accepted=14003, drafted=30000, rates="0.800, 0.400, 0.200")
    summary = read_json(imported("vllm", line) / "summary.json")
    assert sum(i * num for i, num in enumerate(summary["accepted_histogram"])) == 14003
    assert any("three digits" in note for note in summary["imported"]["notes"])


def test_malformed_lines_are_reported_with_their_number(imported: Import, capsys: pytest.CaptureFixture[str]) -> None:
    bad = "SpecDecoding metrics: Mean acceptance length: 2.4"
    more = VLLM_LINE.format(length="2.40", accepted=40, drafted=30, rates="0.8")
    folder = imported("vllm", "\n".join([bad, GOOD, more]))
    said = capsys.readouterr().err
    assert "run-0.txt:1: no 'Accepted: N tokens'" in said and "run-0.txt:3: 40 tokens accepted of 30 drafted" in said
    assert len(read_json(folder / "summary.json")["imported"]["problems"]) == 2
    assert read_json(folder / "summary.json")["num_steps"] == 10


def test_scrapes_of_one_server_are_the_last_less_the_first(imported: Import) -> None:
    before = SCRAPE.format(drafts=10, drafted=20, accepted=9, first=7, second=2)
    after = SCRAPE.format(drafts=110, drafted=220, accepted=99, first=67, second=32)
    summary = read_json(imported("vllm", before, after) / "summary.json")
    assert summary["accepted_histogram"] == [40, 30, 30]
    alone = read_json(imported("vllm", after, out="alone") / "summary.json")
    assert alone["num_steps"] == 110 and "since the server's start" in alone["imported"]["notes"][0]


def test_counters_of_several_engines_are_added(imported: Import) -> None:
    one = SCRAPE.format(drafts=10, drafted=20, accepted=9, first=7, second=2)
    summary = read_json(imported("vllm", one + one.replace('engine="0"', 'engine="1"')) / "summary.json")
    assert summary["num_steps"] == 20


def test_counts_too_many_for_rows_are_figures_all_the_same(imported: Import) -> None:
    scrape = SCRAPE.format(drafts=10**9, drafted=2 * 10**9, accepted=9 * 10**8, first=7 * 10**8, second=2 * 10**8)
    folder = imported("vllm", scrape)
    summary = read_json(folder / "summary.json")
    assert summary["survival"][1] == {"value": 0.2, "low": None, "high": None, "n": 10**9}
    assert (folder / "steps.jsonl").read_text(encoding="utf-8") == ""
    assert any("not written as rows" in note for note in summary["imported"]["notes"])


def test_result_of_a_vllm_benchmark(imported: Import) -> None:
    folder = imported("vllm", json.dumps(RESULT), settings=("drafter=eagle3",))
    summary = read_json(folder / "summary.json")
    assert summary["accepted_histogram"] == [2, 4, 2, 2]
    assert summary["tokens_per_second"]["value"] == 50
    config = (folder / "config.resolved.yaml").read_text(encoding="utf-8")
    assert "vllm-eagle3" in config and "checkpoint: m" in config and "num_draft_tokens: 3" in config


@pytest.mark.parametrize("form", ["list", "lines", "openai"])
def test_responses_of_sglang_are_requests(imported: Import, form: str) -> None:
    entries = [{"text": "a", "meta_info": META}, {"text": "b", "meta_info": OLD_META}]
    texts = {
        "list": json.dumps(entries),
        "lines": "\n".join(map(json.dumps, entries)),
        "openai": json.dumps({"choices": entries}),
    }
    folder = imported("sglang", texts[form])
    summary = read_json(folder / "summary.json")
    assert summary["accepted_histogram"] == [2, 1, 3, 1]
    assert summary["tokens_per_step"]["value"] == pytest.approx(17 / 7)
    assert summary["tokens_per_step"]["low"] < 17 / 7 < summary["tokens_per_step"]["high"]
    outputs = read_jsonl(folder / "outputs.jsonl")
    assert [(row["request_id"], row["num_steps"]) for row in outputs] == [("r1", 4), ("r2", 3)]


def test_responses_without_a_histogram_give_means_over_requests(imported: Import) -> None:
    entries = [{"meta_info": {**meta, name: None}} for meta, name in zip((META, OLD_META), HISTOGRAMS, strict=True)]
    summary = read_json(imported("sglang", json.dumps(entries)) / "summary.json")
    assert (
        summary["tokens_per_step"]["value"] == pytest.approx(17 / 7) and summary["tokens_per_step"]["low"] is not None
    )
    assert summary["draft_acceptance_rate"]["value"] == pytest.approx(10 / 21)
    assert summary["survival"] == []


HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")


def test_contradictory_responses_are_left_out_with_their_place(
    imported: Import, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"meta_info": META}, {"meta_info": {**META, "spec_verify_ct": 5}}, {"text": "no speculation"}]
    imported("sglang", "\n".join(map(json.dumps, lines)) + "\n{half a li")
    said = capsys.readouterr().err
    assert "run-0.txt:2: the histogram says other counts" in said
    assert "run-0.txt:3: no meta_info" in said and "run-0.txt:4: not a JSON object" in said


@pytest.mark.parametrize(
    "text",
    [
        "\n".join([SGLANG_LINE.format(length="2.00"), "other line", SGLANG_LINE.format(length="3.00")]),
        SGLANG_LINE.replace("batch,", "batch.").replace(" accept rate: 0.39,", "").format(length="2.50"),
        '# HELP sglang:spec_accept_length Mean\nsglang:spec_accept_length{model_name="m"} 2.5\n',
        json.dumps({"internal_states": [{"avg_spec_accept_length": 2.5}]}),
        json.dumps({"backend": "sglang", "accept_length": 2.5}),
    ],
)
def test_means_of_sglang_have_no_count(imported: Import, text: str) -> None:
    summary = read_json(imported("sglang", text) / "summary.json")
    assert summary["tokens_per_step"] == {"value": 2.5, "low": None, "high": None, "n": 0}
    assert summary["draft_acceptance_rate"]["value"] is None
    assert "the engine prints a mean for each stretch" in summary["imported"]["notes"][0]


@pytest.mark.parametrize(
    ("engine", "text", "said"),
    [
        ("vllm", OTHER_LINE, "no speculative statistics of vllm were found (read as log)"),
        ("vllm", "", "it is empty"),
        ("vllm", json.dumps({"output_throughput": 3}), "no speculative statistics of vllm"),
        ("vllm", "vllm:num_requests_running 1\n", "no speculative statistics of vllm"),
        ("vllm", 'vllm:spec_decode_num_drafts_total{model_name="m"} 5.0\n', "has no vllm:spec_decode_num_draft_tokens"),
        ("sglang", GOOD, "no speculative statistics of sglang"),
        ("sglang", SGLANG_LINE.replace("{length}", "nan"), "no speculative statistics of sglang"),
    ],
)
def test_file_without_statistics_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, text: str, said: str
) -> None:
    (tmp_path / "file").write_text(text, encoding="utf-8")
    assert import_logs.main([engine, str(tmp_path / "file"), f"out={tmp_path / 'run'}"]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: ")]
    assert len(errors) == 1 and said in errors[0]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the first word must be one of vllm, sglang"),
        (["vlm", "file", "out=new"], "got 'vlm'"),
        (["vllm", "out=new"], "name files and a new folder"),
        (["vllm", "file"], "name files and a new folder"),
        (["vllm", "file", "oat=new"], "unknown key oat; nearest: out"),
        (["vllm", "file", "out=."], "is there already"),
        (["vllm", "file", "out=new", "drafts=never"], "drafts must be one of"),
        (["vllm", "nowhere", "out=new"], "nowhere: cannot be read"),
        (["vllm", "file", "json", "out=new"], "several forms (json, log)"),
        (["vllm", "after", "before", "out=new"], "give the scrapes in order"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text(GOOD, encoding="utf-8")
    Path("json").write_text(json.dumps(RESULT), encoding="utf-8")
    Path("before").write_text(SCRAPE.format(drafts=10, drafted=20, accepted=9, first=7, second=2), encoding="utf-8")
    Path("after").write_text(SCRAPE.format(drafts=20, drafted=40, accepted=9, first=7, second=2), encoding="utf-8")
    assert import_logs.main(words) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: ") and error.count("\n") == 1


def test_imported_runs_are_in_report_and_compare_and_gate_says_why_not(
    imported: Import, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vllm = imported("vllm", GOOD, out="a", settings=("drafter=mtp", "drafts=always"))
    sglang = imported("sglang", json.dumps([{"meta_info": META}, {"meta_info": OLD_META}]), out="b")
    capsys.readouterr()
    assert report([str(vllm), str(sglang), f"out={tmp_path / 'report.html'}"]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "vllm log a-0.txt" in page and "sglang json b-0.txt" in page and "vllm-mtp" in page
    capsys.readouterr()
    assert compare.main([str(vllm), str(sglang)]) == 0
    said = capsys.readouterr().out
    assert "imported from vllm log a-0.txt" in said and "not paired" in said and "survival[3]" in said
    assert gate.main([str(vllm), str(sglang)]) == 2
    error = capsys.readouterr().err
    assert "was imported (vllm log a-0.txt)" in error and error.count("\n") == 1
