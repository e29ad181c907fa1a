"""vLLM's speculative statistics: log lines, Prometheus counters, and the result of ``vllm bench serve``.

From documentation, untested against a live engine: ``vllm/v1/spec_decode/metrics.py`` and ``vllm/benchmarks/serve.py``.
Its counters know steps that drafted only, and count before a stop cuts a step's tokens.
"""

import math
import re
from collections.abc import Mapping, Sequence

from experiments.imports.reading import JSON, LOG, PROMETHEUS, Text, count_of, json_objects, number_of, samples
from experiments.imports.statistics import ROUNDED_ABOVE, ImportedFileError, Statistics, Window, counts_of

NAME = "vllm"
MARK = "SpecDecoding metrics:"
FIELDS = {
    "length": re.compile(r"Mean acceptance length: (\d+\.\d+)"),
    "accepted": re.compile(r"Accepted: (\d+) tokens"),
    "drafted": re.compile(r"Drafted: (\d+) tokens"),
}
RATES = re.compile(r"Per-position acceptance rate: (\d\.\d+(?:, \d\.\d+)*)")
HALF_LENGTH, HALF_RATE = 0.005, 0.0005
PREFIX = "vllm:spec_decode_"
COUNTERS = {"num_drafts": "drafts", "num_draft_tokens": "drafted", "num_accepted_tokens": "accepted"}
PER_POSITION = "num_accepted_tokens_per_pos"
FACTS = ("model_id", "backend", "date", "completed", "total_input_tokens", "total_output_tokens", "duration")


def read(texts: Sequence[Text]) -> Statistics:
    """Statistics of files of one form; raises ImportedFileError."""
    return {LOG: _from_logs, PROMETHEUS: _from_scrapes, JSON: _from_results}[texts[0].form](texts)


def _from_logs(texts: Sequence[Text]) -> Statistics:
    windows, problems = [], []
    for text in texts:
        for number, line in enumerate(text.lines, start=1):
            if MARK in line:
                window = _of_line(line.partition(MARK)[2], text.where(number))
                (windows if isinstance(window, Window) else problems).append(window)
    notes = ()
    if any((window.num_drafts or 0) > ROUNDED_ABOVE for window in windows):
        notes = ("counts by position come from rates of three digits, in agreement with the totals",)
    return Statistics(form=LOG, windows=tuple(windows), notes=notes, problems=tuple(problems))


def _of_line(said: str, where: str) -> Window | str:
    """The counts of a line, or what is wrong with it."""
    found = {name: match.group(1) for name, pattern in FIELDS.items() if (match := pattern.search(said))}
    if not {"accepted", "drafted"} <= set(found):
        return f"{where}: no 'Accepted: N tokens' and 'Drafted: N tokens' in this line"
    accepted, drafted = int(found["accepted"]), int(found["drafted"])
    if accepted > drafted:
        return f"{where}: {accepted} tokens accepted of {drafted} drafted"
    rates_found = RATES.search(said)
    rates = [float(word) for word in rates_found.group(1).split(", ")] if rates_found else []
    length = float(found["length"]) if "length" in found else None
    drafts = _num_drafts(accepted, drafted, length, len(rates))
    at = None
    if drafts is not None and rates:
        at = counts_of(rates, num=drafts, total=accepted, half_digit=HALF_RATE)
    return Window(where=where, num_drafts=drafts, num_drafted=drafted, num_accepted=accepted, accepted_at=at)


def _num_drafts(accepted: int, drafted: int, length: float | None, positions: int) -> int | None:
    """Steps that drafted, which the line does not say: 1 + accepted / steps is its mean length in two digits."""
    if length is None:
        return None
    if positions and drafted % positions == 0 and drafted:
        steps = drafted // positions
        if abs(1 + accepted / steps - length) <= HALF_LENGTH + 1e-9:
            return steps
    if accepted and length - 1 > HALF_LENGTH:
        low = math.ceil(accepted / (length - 1 + HALF_LENGTH) - 1e-9)
        high = math.floor(accepted / (length - 1 - HALF_LENGTH) + 1e-9)
        return low if low == high else None
    return None


def _from_scrapes(texts: Sequence[Text]) -> Statistics:
    """Counters are sums since the server's start: of several scrapes, the last less the first."""
    problems: list[str] = []
    totals = [_totals(text, problems) for text in texts]
    if not any(totals):
        return Statistics(form=PROMETHEUS, problems=tuple(problems))
    last, first = totals[-1], totals[0] if len(totals) > 1 else {}
    counts = {name: value - first.get(name, 0) for name, value in last.items()}
    if any(value < 0 for value in counts.values()):
        raise ImportedFileError(
            f"{texts[-1].path}: a counter is lower than in {texts[0].path}: give the scrapes in order, of one server"
        )
    missing = [f"{PREFIX}{name}_total" for name, key in COUNTERS.items() if key not in counts]
    if missing:
        raise ImportedFileError(f"{texts[-1].path}: has no {', '.join(missing)}")
    window = _window(counts, where=str(texts[-1].path))
    note = f"counts from {texts[0].path} to {texts[-1].path}" if len(texts) > 1 else "counts since the server's start"
    return Statistics(form=PROMETHEUS, windows=(window,), notes=(note,), problems=tuple(problems))


def _totals(text: Text, problems: list[str]) -> dict[str, int]:
    """Counters by name, summed over engines; by position as ``at N``."""
    totals: dict[str, int] = {}
    models = set()
    for where, sample in samples(text, PREFIX):
        value = None if sample is None else count_of(sample.value)
        if sample is None or value is None:
            problems.append(f"{where}: no sample of a counter")
            continue
        name = sample.name.removeprefix(PREFIX).removesuffix("_total")
        if name in COUNTERS:
            key = COUNTERS[name]
        elif name == PER_POSITION and sample.labels.get("position", "").isdecimal():
            key = f"at {sample.labels['position']}"
        else:
            continue
        models.add(sample.labels.get("model_name", ""))
        totals[key] = totals.get(key, 0) + value
    if len(models) > 1:
        raise ImportedFileError(f"{text.path}: counters of several models: {', '.join(sorted(models))}")
    return totals


def _window(counts: Mapping[str, int], *, where: str) -> Window:
    positions = sum(name.startswith("at ") for name in counts)
    at = [counts.get(f"at {position}") for position in range(positions)]
    if counts["accepted"] > counts["drafted"]:
        raise ImportedFileError(f"{where}: {counts['accepted']} tokens accepted of {counts['drafted']} drafted")
    known = tuple(value for value in at if value is not None)
    whole = len(known) == positions > 0 and sum(known) == counts["accepted"]
    return Window(
        where=where,
        num_drafts=counts["drafts"],
        num_drafted=counts["drafted"],
        num_accepted=counts["accepted"],
        accepted_at=known if whole else None,
    )


def _from_results(texts: Sequence[Text]) -> Statistics:
    windows, problems, facts, speeds = [], [], {}, []
    for text in texts:
        for where, result in json_objects(text):
            if result is None:
                problems.append(f"{where}: not a JSON object")
                continue
            window = _of_result(result, where)
            (windows if isinstance(window, Window) else problems).append(window)
            facts |= {name: result[name] for name in FACTS if name in result}
            speeds.append(number_of(result.get("output_throughput")))
    speed = speeds[0] if len(speeds) == 1 else None
    return Statistics(form=JSON, windows=tuple(windows), tokens_per_second=speed, facts=facts, problems=tuple(problems))


def _of_result(result: Mapping[str, object], where: str) -> Window | str:
    names = ("spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens")
    drafts, drafted, accepted = (count_of(result.get(name)) for name in names)
    if drafts is None or drafted is None or accepted is None or accepted > drafted:
        return f"{where}: no counts in {', '.join(names)}: a server without speculative decoding writes none"
    given = result.get("spec_decode_per_position_acceptance_rates")
    rates = [number_of(rate) for rate in given] if isinstance(given, list) else []
    known = [rate for rate in rates if rate is not None]
    at = None
    if known and len(known) == len(rates):
        at = counts_of(known, num=drafts, total=accepted, half_digit=0.0)
    return Window(where=where, num_drafts=drafts, num_drafted=drafted, num_accepted=accepted, accepted_at=at)
