"""``python -m experiments.evidence [KEY=VALUE]``: drafters on two targets at two temperatures, beside transformers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.checkpoints import EMBEDDED
from experiments.command import obey
from specdec.errors import ConfigError

STOPPED = "stopped: finished requests are kept, and the same command goes on"
TARGETS = ("embedded", "smollm2")
HEADS = ("eagle3", "medusa")
SHIPPED_HEADS = {EMBEDDED: {name: f"{EMBEDDED}-{name}" for name in HEADS}}
"""Names that ``experiments.checkpoints`` knows, by target and drafter."""
USAGE = """usage: specdec evidence [prompts=FILE] [limit=12] [builtin=6] [targets=embedded,smollm2] [only=NAME,NAME]
                        [TARGET.eagle3=FOLDER] [TARGET.medusa=FOLDER] [minutes=60] [out=evidence] [save=true]

Decodes the same prompts with every drafter on the embedded checkpoint and on SmolLM2, at temperature 0 (greedy rule)
and 1 (gumbel rule), and with transformers' prompt lookup; prints tokens per step, survival by position, speed-up over
plain decoding and exactness. One thread, one request at a time; all ways take turns on each prompt.

  prompts=FILE   JSON lines as of workload=file, first turns only; Spec-Bench's questions are the file
                 data/spec_bench/question.jsonl of its repository, github.com/hemingkx/Spec-Bench
  limit=N        prompts of the file, one of each category in turn; builtin=N as many of the built-in ones
  TARGET.eagle3=FOLDER, TARGET.medusa=FOLDER   trained heads for a target (python -m experiments.train), for
                 example smollm2.eagle3=FOLDER; with a single target eagle3=FOLDER will do; the embedded
                 checkpoint has those that ship with it
  only=NAME,...  these drafters and plain decoding; save=true then adds them to the figures that are there
  minutes=N      stop after N minutes of CPU time; the same command goes on where it stopped
  out=FOLDER     one file per target, temperature and drafter; finished requests in them are kept
                 until the code, the checkpoint or a setting that they depend on changes
  save=true      write the figures to experiments/results/drafters.json

Times are CPU seconds of the process: on a shared machine the clock also measures the others. SmolLM2 must be fetched
first (python -m experiments.fetch smollm2)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a command line asks for.

    heads  folders, or names of heads that ship, by target and drafter
    only   names of drafters; empty for all
    """

    prompts: Path | None = None
    limit: int = 12
    builtin: int = 6
    targets: tuple[str, ...] = TARGETS
    heads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    minutes: float = 60.0
    out: Path = Path("evidence")
    save: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code and leaves one line on stderr for a mistake."""
    return obey(arguments, USAGE, _collect, interrupted=STOPPED)


def _collect(given: Sequence[str]) -> None:
    asked = wanted(given)
    from experiments.evidence.collect import collect  # here, since --help must not wait for torch

    collect(asked, "python -m experiments.evidence " + " ".join(_shown(word) for word in given))


def _shown(word: str) -> str:
    """A word of the command without the place of a file on this machine."""
    key, _, value = word.partition("=")
    return f"{key}={Path(value).name}" if "/" in value else word


def wanted(arguments: Sequence[str]) -> Wanted:
    """Read a command line; raises ConfigError."""
    known = ("prompts", "limit", "builtin", "targets", *_head_keys(), *HEADS, "only", "minutes", "out", "save")
    settings: dict[str, str] = {}
    for word in arguments:
        key, equals, value = word.partition("=")
        if not equals or key not in known:
            raise ConfigError(f"{word}: the keys are {', '.join(known)} (KEY=VALUE)")
        settings[key] = value
    targets = tuple(settings.get("targets", ",".join(TARGETS)).split(","))
    if not set(targets) <= set(TARGETS):
        raise ConfigError(f"targets must be embedded, smollm2 or both, got {settings['targets']!r}")
    if settings.get("save", "false") not in ("true", "false"):
        raise ConfigError(f"save must be true or false, got {settings['save']!r}")
    return Wanted(
        prompts=Path(settings["prompts"]) if "prompts" in settings else None,
        limit=_count(settings, "limit", 12),
        builtin=_count(settings, "builtin", 6),
        targets=targets,
        heads=_heads(settings, targets),
        only=tuple(name for name in settings.get("only", "").split(",") if name),
        minutes=_count(settings, "minutes", 60),
        out=Path(settings.get("out", "evidence")),
        save=settings.get("save") == "true",
    )


def _head_keys() -> dict[str, tuple[str, str]]:
    """(target, drafter) by key."""
    return {f"{target}.{name}": (target, name) for target in TARGETS for name in HEADS}


def _heads(settings: Mapping[str, str], targets: tuple[str, ...]) -> dict[str, dict[str, str]]:
    heads = {target: dict(SHIPPED_HEADS.get(target, {})) for target in targets}
    for key, value in settings.items():
        target, name = _head_keys().get(key, (targets[0], key))
        if name not in HEADS:
            continue
        if key in HEADS and len(targets) > 1:
            raise ConfigError(f"{key} names no target: {' or '.join(f'{each}.{key}' for each in targets)}=FOLDER")
        if target not in targets:
            raise ConfigError(f"{key} is for a target that is left out (targets={','.join(targets)})")
        heads[target][name] = value
    return heads


def _count(settings: Mapping[str, str], key: str, default: int) -> int:
    value = settings.get(key, str(default))
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"{key} must be a number from 1 on, got {value!r}")
    return int(value)
