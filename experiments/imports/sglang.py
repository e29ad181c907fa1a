"""SGLang's speculative statistics: log lines, Prometheus gauges, server information, and ``meta_info`` of responses.

From documentation, untested against a live engine: the scheduler's metrics and the tokenizer manager of SGLang. Only
``meta_info`` has counts; the rest are means over stretches of unknown size. The rate that a log line and a gauge say is
left out: whether it counts the bonus token has changed between versions.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.imports.reading import JSON, LOG, PROMETHEUS, Text, count_of, json_objects, number_of, samples
from experiments.imports.statistics import RequestCounts, Statistics

NAME = "sglang"
MARK = "Decode batch"
LENGTH = re.compile(r"accept len: (\S+?)(?:,|$)")
NUMBER = re.compile(r"\d+\.\d+|\d+")
GAUGES = ("sglang:spec_accept_length", "sglang_spec_accept_length")
# Newer names first; older versions count the same under others.
ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
DRAFTED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
WINDOWS = "the engine prints a mean for each stretch and not its size: the value is the plain mean over {num} of them"


def read(texts: Sequence[Text]) -> Statistics:
    """Statistics of files of one form; raises ImportedFileError."""
    return {LOG: _from_logs, PROMETHEUS: _from_scrapes, JSON: _from_json}[texts[0].form](texts)


def _from_logs(texts: Sequence[Text]) -> Statistics:
    lengths, problems = [], []
    for text in texts:
        for number, line in enumerate(text.lines, start=1):
            if MARK not in line or "accept len" not in line:
                continue
            found = LENGTH.search(line)
            if found is None or NUMBER.fullmatch(found.group(1)) is None:
                problems.append(f"{text.where(number)}: no number after 'accept len:'")
            else:
                lengths.append(float(found.group(1)))
    return _of_lengths(LOG, lengths, problems)


def _from_scrapes(texts: Sequence[Text]) -> Statistics:
    lengths, problems = [], []
    for text in texts:
        for gauge in GAUGES:
            for where, sample in samples(text, gauge):
                if sample is None:
                    problems.append(f"{where}: no sample of a gauge")
                elif sample.value > 0:  # before the first stretch it is 0
                    lengths.append(sample.value)
    return _of_lengths(PROMETHEUS, lengths, problems)


def _of_lengths(form: str, lengths: Sequence[float], problems: Sequence[str]) -> Statistics:
    notes = (WINDOWS.format(num=len(lengths)),) if lengths else ()
    return Statistics(form=form, lengths=tuple(lengths), notes=notes, problems=tuple(problems))


def _from_json(texts: Sequence[Text]) -> Statistics:
    requests: list[RequestCounts] = []
    lengths: list[float] = []
    problems: list[str] = []
    for text in texts:
        for where, entry in json_objects(text):
            if entry is None:
                problems.append(f"{where}: not a JSON object")
                continue
            metas = list(_metas(entry))
            for meta in metas:
                request = _of_meta(meta, where, number=len(requests))
                (requests if isinstance(request, RequestCounts) else problems).append(request)
            found = _lengths(entry)
            lengths += found
            if not metas and not found:
                problems.append(f"{where}: no meta_info, internal_states or accept_length")
    if requests:
        # The same server's means would say the same once more.
        return Statistics(form=JSON, requests=tuple(requests), problems=tuple(problems))
    return _of_lengths(JSON, lengths, problems)


def _metas(entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """``meta_info`` of a native response, or of the choices of an OpenAI one."""
    choices = entry.get("choices")
    for place in (entry, *(choices if isinstance(choices, list) else ())):
        meta = place.get("meta_info") if isinstance(place, dict) else None
        if isinstance(meta, dict):
            yield meta


def _of_meta(meta: Mapping[str, Any], where: str, *, number: int) -> RequestCounts | str:
    steps = count_of(meta.get("spec_verify_ct"))
    accepted, drafted = (_first_count(meta, names) for names in (ACCEPTED, DRAFTED))
    if not steps or accepted is None or drafted is None:
        return f"{where}: no counts of spec_verify_ct, {ACCEPTED[0]} and {DRAFTED[0]} in meta_info"
    if accepted > drafted:
        return f"{where}: {accepted} drafts accepted of {drafted} proposed"
    histogram = _histogram(meta)
    if histogram is not None and (
        sum(histogram) != steps or sum(i * num for i, num in enumerate(histogram)) != accepted
    ):
        return f"{where}: the histogram says other counts than spec_verify_ct and {ACCEPTED[0]}"
    reason = meta.get("finish_reason")
    return RequestCounts(
        id=str(meta.get("id") or f"entry-{number + 1}"),
        where=where,
        num_prompt=count_of(meta.get("prompt_tokens")),
        num_output=count_of(meta.get("completion_tokens")),
        num_steps=steps,
        num_drafted=drafted,
        num_accepted=accepted,
        histogram=histogram,
        finish_reason=str(reason.get("type", "")) if isinstance(reason, dict) else str(reason or ""),
    )


def _first_count(meta: Mapping[str, Any], names: Sequence[str]) -> int | None:
    return next((count_of(meta[name]) for name in names if name in meta), None)


def _histogram(meta: Mapping[str, Any]) -> tuple[int, ...] | None:
    found = next((meta[name] for name in HISTOGRAM if isinstance(meta.get(name), list)), None)
    counts = [count_of(value) for value in found or ()]
    known = tuple(count for count in counts if count is not None)
    return known if known and len(known) == len(counts) else None


def _lengths(entry: Mapping[str, Any]) -> list[float]:
    """Of ``/get_server_info`` and of the result of ``sglang.bench_serving``."""
    states = entry.get("internal_states")
    places = [(state, "avg_spec_accept_length") for state in states] if isinstance(states, list) else []
    places.append((entry, "accept_length"))
    found = [number_of(place.get(name)) for place, name in places if isinstance(place, dict)]
    return [value for value in found if value]
