"""What is compared: targets, temperatures, drafters and prompts, in the order in which they are measured."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from drafters.adaptive import AdaptiveConfig
from drafters.cascade import CascadeConfig
from drafters.eagle3 import Eagle3Config
from drafters.medusa import MedusaConfig
from drafters.nextn import NextnConfig
from drafters.ngram import NgramConfig
from drafters.none import NoneConfig
from drafters.oracle import OracleConfig
from drafters.suffix import SuffixConfig
from experiments.checkpoints import EMBEDDED, SMOLLM2
from experiments.evidence.command import HEADS
from experiments.workloads import BUILTIN_PATH, Row, load_workload
from specdec.api import DrafterConfig, Verifier
from specdec.errors import ConfigError
from specdec.verifiers import GreedyVerifierConfig, GumbelVerifierConfig, RejectionVerifierConfig

TARGETS = (EMBEDDED, SMOLLM2)
TEMPERATURES = (0, 1)
NEW_TOKENS = {EMBEDDED: 128, SMOLLM2: 64}
LOADERS = {EMBEDDED: "experiments.deepseek_v4.load", SMOLLM2: "experiments.hf.load"}
PLAIN, LOOKUP, PEER = "none", "ngram", "transformers, prompt lookup"
LOOKUP_DRAFTS, LOOKUP_NGRAM = 10, 2
"""Of transformers' lookup and of ``ngram`` over SmolLM2: the settings with which its documentation begins."""
TOKEN_COST = 0.08
"""Of a drafted token in plain passes of SmolLM2 on a CPU: 11 rows cost 1.8 times one row."""
WAVE = 4
BUILTIN, FILE = "builtin", "file"
SOURCES = (BUILTIN, FILE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way of decoding under one target and temperature.

    drafter   None for transformers' own decoding
    name      of the line in the table
    """

    target: str
    temperature: int
    name: str
    drafter: DrafterConfig | None
    verifier: Verifier

    @property
    def key(self) -> str:
        """Name of its file."""
        return f"{self.target}-t{self.temperature}-{self.name.replace(', ', '-').replace(' ', '-')}"

    @property
    def settings(self) -> dict[str, object]:
        """What is measured, as JSON can say it."""
        shown = (
            f"prompt lookup, {LOOKUP_DRAFTS} drafts, ngram {LOOKUP_NGRAM}"
            if self.drafter is None
            else repr(self.drafter)
        )
        return {"temperature": self.temperature, "verifier": self.verifier.name, "drafter": shown}


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One request: a row of a workload, of which later turns are left out; ``source`` is BUILTIN or FILE."""

    source: str
    row: Row


def prompts_of(builtin: int, path: Path | None, limit: int) -> tuple[Prompt, ...]:
    """The built-in prompts and those of a file, one of each category in turn, mixed; raises WorkloadError."""
    chosen = {BUILTIN: load_workload(BUILTIN, BUILTIN_PATH, limit=builtin).rows}
    if path is not None:
        chosen[FILE] = load_workload(FILE, path, limit=limit, key="prompts").rows
    lines = [
        (index / len(rows), Prompt(source=source, row=_first_turn(row, source)))
        for source, rows in chosen.items()
        for index, row in enumerate(rows)
    ]
    return tuple(prompt for _, prompt in sorted(lines, key=lambda line: line[0]))


def _first_turn(row: Row, source: str) -> Row:
    turns = None if row.turns is None else row.turns[:1]
    return replace(row, id=f"{source}/{row.id}", turns=turns, overrides={})


def ways_of(target: str, temperature: int, heads: Mapping[str, str]) -> tuple[Way, ...]:
    """Every way that can run, plain decoding first; ``heads`` are the target's, by ``eagle3`` and ``medusa``."""
    drafters = _of_embedded(heads) if target == EMBEDDED else _of_smollm2(heads)
    rule = (GumbelVerifierConfig() if temperature else GreedyVerifierConfig()).build()
    ways = [
        Way(target=target, temperature=temperature, name=name, drafter=drafter, verifier=rule)
        for name, drafter in drafters.items()
    ]
    if target == EMBEDDED and temperature:
        rejection = RejectionVerifierConfig().build()
        ways.append(replace(ways[2], name=f"{ways[2].name}, rejection", verifier=rejection))
    if target == SMOLLM2 and not temperature:
        # Next to the lookup that it is compared with.
        ways.insert(1, replace(ways[0], name=PEER, drafter=None))
    return tuple(ways)


def _of_embedded(heads: Mapping[str, str]) -> dict[str, DrafterConfig]:
    nextn = NextnConfig(num_draft_tokens=3)
    return {
        PLAIN: NoneConfig(),
        LOOKUP: NgramConfig(num_draft_tokens=3),
        "nextn": nextn,
        "adaptive": AdaptiveConfig(wrapped=NextnConfig(num_draft_tokens=6), num_draft_tokens=6),
        "cascade": CascadeConfig(
            drafters={"a": NgramConfig(num_draft_tokens=6, min_ngram=4), "b": nextn}, num_draft_tokens=6
        ),
        "oracle": OracleConfig(num_draft_tokens=6, accuracy=(1.0,)),
        **_suffix(),
        **_heads(heads, eagle3_drafts=3),
    }


def _of_smollm2(heads: Mapping[str, str]) -> dict[str, DrafterConfig]:
    lookup = NgramConfig(num_draft_tokens=LOOKUP_DRAFTS, max_ngram=LOOKUP_NGRAM)
    sure = NgramConfig(num_draft_tokens=LOOKUP_DRAFTS, max_ngram=8, min_ngram=3)
    return {
        PLAIN: NoneConfig(),
        LOOKUP: lookup,
        "ngram tree": replace(lookup, branches=3),
        "adaptive": AdaptiveConfig(wrapped=lookup, num_draft_tokens=LOOKUP_DRAFTS, token_cost=TOKEN_COST),
        "cascade": CascadeConfig(
            drafters={"a": sure, "b": replace(lookup, num_draft_tokens=3)}, num_draft_tokens=LOOKUP_DRAFTS
        ),
        "oracle": OracleConfig(num_draft_tokens=LOOKUP_DRAFTS, accuracy=(1.0,)),
        **_suffix(),
        **_heads(heads, eagle3_drafts=4),
    }


def _heads(folders: Mapping[str, str], *, eagle3_drafts: int) -> dict[str, DrafterConfig]:
    found: dict[str, DrafterConfig] = {}
    if "eagle3" in folders:
        found["eagle3"] = Eagle3Config(num_draft_tokens=eagle3_drafts, checkpoint=folders["eagle3"])
    if "medusa" in folders:
        found["medusa"] = MedusaConfig(num_draft_tokens=3, checkpoint=folders["medusa"])
    return found


def _suffix() -> dict[str, DrafterConfig]:
    try:
        return {"suffix": SuffixConfig()}
    except ConfigError:
        return {}


def notes_on(heads: Mapping[str, Mapping[str, str]], measured: Collection[str] = ()) -> tuple[str, ...]:
    """What is missing from the table, and why.

    heads     see ``Wanted``
    measured  keys of ways that the table has already
    """
    found = []
    if not _suffix():
        found.append("suffix: left out, arctic-inference is not installed")
    for target in TARGETS:
        for name in HEADS:
            given = name in heads.get(target, {}) or f"{target}-t0-{name}" in measured
            if not given:
                found.append(f"{target}, {name}: left out, no head was given ({target}.{name}=FOLDER)")
    return tuple(found)


def waves(chosen: Sequence[Prompt]) -> tuple[tuple[Prompt, ...], ...]:
    """Prompts in portions: every way is measured on one before the next begins, so that a table exists early."""
    return tuple(tuple(chosen[first : first + WAVE]) for first in range(0, len(chosen), WAVE))
