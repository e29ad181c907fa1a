"""Markup of the jobs: a line of counts, and a table; all text is escaped here."""

from collections import Counter
from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from experiments.dash.jobs import Job, State
from experiments.dash.roots import Roots
from experiments.run_folder import CONFIG, STATUS, STEPS, SUMMARY
from specdec.metrics import DEFINITIONS

FIGURES = ("tokens_per_step", "draft_acceptance_rate", "speedup")
LINKED = {STATUS: "status", CONFIG: "config", SUMMARY: "summary", STEPS: "rows"}
QUIET_S = 120.0
"""A running job that has written nothing for longer is marked."""


def counts(jobs: Sequence[Job], *, num_left_out: int) -> str:
    """How many jobs are in which state, and a bar."""
    if not jobs and not num_left_out:
        return '<p class="counts">There is no run in these folders, or they are gone.</p>'
    number = Counter(job.state for job in jobs)
    said = ", ".join(f"{number[state]} {state.value}" for state in State if number[state])
    done = number[State.DONE]
    lines = [
        f'<p class="counts"><strong>{done} of {len(jobs)} done</strong>{": " + escape(said) if said else ""}</p>',
        f'<progress max="{max(1, len(jobs))}" value="{done}" aria-label="jobs that are done"></progress>',
    ]
    if num_left_out:
        lines.append(
            f'<p class="note">{num_left_out} run folders are left out: a link in them leads out of the folders.</p>'
        )
    return "".join(lines)


def table(jobs: Sequence[Job], roots: Roots) -> str:
    """A row a job, with links to its files."""
    if not jobs:
        return ""
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("job", "state", "progress", *FIGURES, "files"))
    rows = "".join(_row(job, roots) for job in jobs)
    meanings = "".join(f"<dt>{name}</dt><dd>{escape(DEFINITIONS[name])}</dd>" for name in FIGURES)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="jobs"><table class="jobs">'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<dl class="definitions">{meanings}'
        "<dt>of a running job</dt><dd>over the requests that it has finished</dd></dl>"
    )


def _row(job: Job, roots: Roots) -> str:
    figures = "".join(f'<td class="number">{_number(job.figures.get(name))}</td>' for name in FIGURES)
    state = f'<td class="state {job.state.name.lower()}">{job.state.value}</td>'
    return (
        f"<tr><td>{escape(job.label)}</td>{state}<td>{_progress(job)}</td>{figures}<td>{_links(job, roots)}</td></tr>"
    )


def _progress(job: Job) -> str:
    said = [escape(job.detail)] if job.detail else []
    if job.total:
        bar = f'<progress max="{job.total}" value="{min(job.num_done, job.total)}"></progress>'
        said.append(f"{bar} {job.num_done} of {job.total} requests")
    if job.num_steps:
        said.append(f"{job.num_steps} steps")
    if job.num_bad:
        said.append(f"{job.num_bad} lines of the rows cannot be read")
    if job.idle_s is not None and job.idle_s > QUIET_S:
        said.append(f"no row for {job.idle_s / 60:.0f} min")
    return "; ".join(said)


def _links(job: Job, roots: Roots) -> str:
    out = []
    for name, word in LINKED.items():
        place = roots.url_of(job.path, name)
        if place is not None and (job.path / name).is_file():
            out.append(f'<a href="/files/{place[0]}/{escape(quote(place[1]))}">{word}</a>')
    return " ".join(out)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
