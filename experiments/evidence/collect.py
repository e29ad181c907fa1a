"""Measures what is missing of every cell, prints the tables and keeps the figures."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import torch

from experiments.checkpoints import folder_of
from experiments.environment import environment_of, use_threads
from experiments.evidence.cells import Cell
from experiments.evidence.command import Wanted
from experiments.evidence.figures import Measurement, figures_of, peer_table, table
from experiments.evidence.measure import Bench
from experiments.evidence.plan import (
    NEW_TOKENS,
    PLAIN,
    SOURCES,
    TEMPERATURES,
    Prompt,
    notes_on,
    prompts_of,
    waves,
    ways_of,
)
from experiments.fingerprint import checkpoint_hash, code_hash, inputs_of
from experiments.workloads import hash_of
from specdec.errors import CapacityError, ConfigError, WorkloadError

RESULT = Path(__file__).parents[1] / "results" / "drafters.json"
KEPT = ("git_commit", "code_hash", "processor", "platform", "python", "packages", "threads", "dtype", "prompt_set_hash")
COMPARABLE = ("prompt_set_hash", "new_tokens", "dtype", "threads")
S_PER_MINUTE = 60


def collect(asked: Wanted, command: str) -> None:
    """Obey a command line; raises SpecDecError."""
    use_threads(1)
    chosen = prompts_of(asked.builtin, asked.prompts, asked.limit)
    blocks = _blocks(asked)
    finished = _measure(asked, chosen, blocks)
    names = {_name(prompt) for prompt in chosen}
    measurements = [each.only(names) for block in blocks for each in block]
    old = _figures_there() if asked.only else {}
    stopped = [] if finished else ["stopped early: the same command goes on"]
    notes = [*notes_on(asked.heads, old.get("cells", ())), *stopped]
    told = [table(measurements), "", peer_table(measurements), *(f"note: {note}" for note in notes)]
    print("\n".join(told), flush=True)
    if asked.save:
        content = _content(command, chosen, measurements, notes)
        content = added_to(old, content) if old else content
        RESULT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _blocks(asked: Wanted) -> list[list[Measurement]]:
    """The cells of each target and temperature, as they lie on disk; plain decoding is the first of each."""
    blocks = []
    for temperature in TEMPERATURES:
        for target in asked.targets:
            folder = folder_of(target)
            assert folder is not None, "every target of the table has a checkpoint"
            hashes = {"checkpoint": checkpoint_hash(folder), "code": code_hash(), "new_tokens": NEW_TOKENS[target]}
            heads = asked.heads.get(target, {})
            every = ways_of(target, temperature, heads)
            ways = [way for way in every if not asked.only or way.name in (PLAIN, *asked.only)]
            settings = [{**hashes, **_head_hash(heads.get(way.name)), **way.settings} for way in ways]
            cells = [Cell.open(asked.out / f"{way.key}.json", each) for way, each in zip(ways, settings, strict=True)]
            assert ways[0].name == PLAIN, "speed-ups are over the first"
            blocks.append(
                [Measurement(way=way, cell=cell, plain=cells[0]) for way, cell in zip(ways, cells, strict=True)]
            )
    return blocks


def _head_hash(head: str | None) -> dict[str, str]:
    """Hash of a way's head, which its folder does not tell."""
    folder = None if head is None else folder_of(head, key="TARGET.eagle3, TARGET.medusa")
    return {} if folder is None else {"head": checkpoint_hash(folder)}


def _measure(asked: Wanted, chosen: Sequence[Prompt], blocks: Sequence[Sequence[Measurement]]) -> bool:
    """Fill the cells, a portion of prompts after the other; False when the time was up before."""
    bench = Bench()
    for number, wave in enumerate(waves(chosen), start=1):
        for block in blocks:
            for prompt in wave:
                for each in block:
                    if process_time() > asked.minutes * S_PER_MINUTE:
                        return False
                    _measure_one(bench, prompt, each)
            way = block[0].way
            done = f"{way.target}, temperature {way.temperature}, portion {number} of {len(waves(chosen))}"
            print(f"{done}: {process_time():.0f} CPU seconds so far", file=sys.stderr, flush=True)
    return True


def _measure_one(bench: Bench, prompt: Prompt, each: Measurement) -> None:
    name = _name(prompt)
    if name in each.cell.requests:
        return
    plain = each.plain.requests.get(name)
    if plain is None and each.way.name != PLAIN:
        return
    try:
        found = bench.measure(each.way, prompt, () if plain is None else plain.output_ids)
    except (CapacityError, WorkloadError) as error:
        print(f"{each.way.key}: {prompt.row.id} is left out: {error}", file=sys.stderr)
        return
    each.cell.add(name, found)


def _name(prompt: Prompt) -> str:
    """Id of a prompt, and a hash of what it says."""
    return f"{prompt.row.id} {hash_of([prompt.row])}"


def _content(
    command: str, chosen: Sequence[Prompt], measurements: Sequence[Measurement], notes: Sequence[str]
) -> dict[str, Any]:
    inputs = inputs_of(None, hash_of(prompt.row for prompt in chosen))
    environment = environment_of(device=torch.device("cpu"), dtype=torch.float32, threads=1, seed=0, inputs=inputs)
    return {
        "command": command,
        **{key: environment[key] for key in KEPT},
        "new_tokens": NEW_TOKENS,
        "notes": list(notes),
        "cells": {each.way.key: _all_figures(each) for each in measurements},
    }


def _figures_there() -> dict[str, Any]:
    return json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}


def added_to(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Figures that are there with the cells of another run, each with its own command, commit and processor.

    Cells of plain decoding stay those that all others were compared with. Raises ConfigError when the prompts or what
    else makes tokens per step comparable are not the same.
    """
    for key in COMPARABLE:
        if old[key] != new[key]:
            raise ConfigError(f"{RESULT.name} was measured with another {key}: {old[key]!r}, now {new[key]!r}")
    origin = {key: new[key] for key in ("command", "git_commit", "code_hash", "processor")}
    added = {key: {**cell, "origin": origin} for key, cell in new["cells"].items() if not key.endswith(f"-{PLAIN}")}
    return {**old, "notes": new["notes"], "cells": {**old["cells"], **added}}


def _all_figures(measurement: Measurement) -> Mapping[str, object]:
    by_source = {source: dict(found) for source in SOURCES if (found := figures_of(measurement, source))}
    for found in by_source.values():
        found.pop("survival", None)  # of so few requests its positions say little
    return {"settings": measurement.way.settings, "all": figures_of(measurement), **by_source}
