"""The run folder of imported statistics: the files of any run, with the source named in each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from experiments.compact import compact
from experiments.imports.figures import NOTHING, Figures, figures_of
from experiments.imports.statistics import RequestCounts, Statistics
from experiments.records import step_record
from experiments.run_folder import FolderLock, RunFolder
from specdec import __version__
from specdec.metrics import DEFINITIONS
from specdec.step_row import SCHEMA_VERSION

NOT_KNOWN = "not known"
SPEEDUPS = ("speedup", "speedup_decode", "speedup_cpu")
UNTESTED = "format from documentation, untested against a live engine"


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where statistics come from, and what their user says of them.

    drafter, model      names for the report
    every_step_drafts   no step went without a draft
    """

    engine: str
    files: tuple[Path, ...]
    drafter: str
    model: str
    every_step_drafts: bool


def write_folder(out: Path, origin: Origin, found: Statistics) -> Figures:
    """Write the run folder ``out``; returns its figures."""
    figures = figures_of(
        found, every_step_drafts=origin.every_step_drafts, category=f"{origin.engine}: steps that drafted"
    )
    with FolderLock(out, wait=False), RunFolder(out) as folder:
        folder.write_config(OmegaConf.to_yaml(OmegaConf.create(config_of(origin, found, figures))))
        folder.write_environment(environment_of(origin, found))
        folder.append_steps([step_record(row) for row in figures.rows])
        folder.append_outputs([_output(request, origin) for request in found.requests])
        folder.write_summary(summary_of(origin, found, figures))
        compact(out)
    return figures


def config_of(origin: Origin, found: Statistics, figures: Figures) -> dict[str, object]:
    """Content of ``config.resolved.yaml``, as far as the report and a comparison need it."""
    drafter: dict[str, object] = {"_target_": f"{origin.engine}-{origin.drafter}".replace(".", "_") + ".imported"}
    if figures.num_draft_tokens is not None:
        drafter["num_draft_tokens"] = figures.num_draft_tokens
    return {
        "target": {"_target_": origin.engine, "checkpoint": _model(origin, found)},
        "drafter": drafter,
        "verifier": {"_target_": NOT_KNOWN},
        "sampling": {},
        "workload": {},
        "engine": {},
        "logger": {},
        "baseline": "off",
        "require_lossless": False,
        "shard": None,
        "source": _source(origin, found),
    }


def environment_of(origin: Origin, found: Statistics) -> dict[str, object]:
    """Content of ``env.json``: nothing of the machine that the engine ran on is known."""
    unknown = ("device", "device_name", "dtype", "threads", "seed", "checkpoint_hash", "prompt_set_hash", "code_hash")
    return {
        "specdec": __version__,
        **dict.fromkeys(unknown),
        "imported_from": {"engine": origin.engine, "form": found.form, "files": [str(path) for path in origin.files]},
    }


def summary_of(origin: Origin, found: Statistics, figures: Figures) -> dict[str, object]:
    """Content of ``summary.json``; ``imported`` says where it comes from and what is not known."""
    speed = NOTHING if found.tokens_per_second is None else {**NOTHING, "value": found.tokens_per_second, "n": 1}
    outputs = [request.num_output for request in found.requests]
    prompts = [request.num_prompt for request in found.requests]
    unknown = [name for name, metric in figures.metrics.items() if not metric or metric == NOTHING]
    return {
        "schema_version": SCHEMA_VERSION,
        "imported": {
            "engine": origin.engine,
            "form": found.form,
            "files": [str(path) for path in origin.files],
            "how": UNTESTED,
            "notes": [*found.notes, *figures.notes],
            "problems": list(found.problems),
            "unknown": [*unknown, *SPEEDUPS, "ms_per_round", "loop_token_share", "lossless"],
            "facts": dict(found.facts),
        },
        "mode": {"source": _source(origin, found), "verifier": NOT_KNOWN},
        "execution": None,
        **figures.metrics,
        "loop_token_share": NOTHING,
        "without_loops": {
            name: [NOTHING] * len(metric) if isinstance(metric, list) else NOTHING
            for name, metric in figures.metrics.items()
        },
        "accepted_histogram": list(figures.histogram),
        "speedup": NOTHING,
        "speedup_decode": NOTHING,
        "speedup_cpu": NOTHING,
        "tokens_per_second": speed,
        "tokens_per_second_decode": NOTHING,
        "ms_per_round": {"draft": None, "verify": None, "other": None},
        "lossless": None,
        "lossless_how": f"imported from {_source(origin, found)}; {UNTESTED}; nothing to compare with",
        "repeats_agree": None,
        "violated_identities": [],
        "num_requests": len(found.requests),
        "num_steps": figures.num_steps,
        "num_prompt_tokens": _sum(prompts),
        "num_output_tokens": _sum(outputs),
        "num_preemptions": None,
        "num_skipped_turns": 0,
        "finish_reasons": dict(Counter(request.finish_reason for request in found.requests)),
        "timings": [],
        "baseline_timings": [],
        "definitions": dict(DEFINITIONS),
    }


def _output(request: RequestCounts, origin: Origin) -> dict[str, object]:
    """A line of ``outputs.jsonl``; the tokens are not known, and stand as none."""
    return {
        "schema_version": SCHEMA_VERSION,
        "request_id": request.id,
        "turn": 0,
        "category": f"{origin.engine}: steps that drafted",
        "prompt_ids": [],
        "output_ids": [],
        "text": "",
        "finish_reason": request.finish_reason,
        "num_steps": request.num_steps,
        "num_preemptions": None,
        "first_token_us": None,
        "total_us": None,
    }


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _source(origin: Origin, found: Statistics) -> str:
    """``vllm log server.log``: stands in the report beside every figure."""
    return " ".join([origin.engine, found.form, *(path.name for path in origin.files)])


def _model(origin: Origin, found: Statistics) -> str:
    return origin.model or str(found.facts.get("model_id", NOT_KNOWN))
