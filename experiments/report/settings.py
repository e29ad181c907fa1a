"""Settings of a run as flat keys and text: which of them differ between runs, and how a run is called."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Settings = Mapping[str, str]

# Settings that say where a run's files go, not what it computes.
HOUSEKEEPING = ("baseline", "require_lossless", "shard", "logger.")
IDENTITY = ("drafter", "drafter.num_draft_tokens")
FROM_CHECKPOINT = ("target", "env.checkpoint_hash")
MAX_NAMED = 2
ENVIRONMENT_KEYS = ("device_name", "checkpoint_hash", "prompt_set_hash", "code_hash")


def settings_of(config: dict, summary: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, str]:
    """Flat keys; ``drafter``, ``verifier`` and ``target`` by their short names."""
    mode, drafter = summary["mode"], summary.get("drafter", {})
    flat = {key: _text(value) for key, value in _flat(config)}
    for part in ("target", "verifier"):
        flat[part] = flat.pop(f"{part}._target_")
    flat["drafter"] = flat.pop("drafter._target_").split(".")[-2]
    if drafter.get("num_draft_tokens"):
        # The class of a drafter may have decided it; older runs tell only what was configured.
        flat["drafter.num_draft_tokens"] = _text(drafter["num_draft_tokens"])
    flat["verifier"] = str(mode["verifier"])
    flat |= {f"mode.{key}": _text(value) for key, value in mode.items()}
    return flat | {f"env.{key}": _text(environment[key]) for key in ENVIRONMENT_KEYS}


def _flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: object) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def differing(runs: Sequence[Settings]) -> tuple[str, ...]:
    """Settings that differ between runs. A key that only some drafters have counts when those that have it differ."""
    keys = dict.fromkeys((*IDENTITY, *(key for run in runs for key in run)))
    found = []
    for key in keys:
        values = {run[key] for run in runs if key in run}
        missing = key in IDENTITY and any(key not in run for run in runs)
        if len(values) + missing > 1 and not key.startswith(HOUSEKEEPING):
            found.append(key)
    return tuple(key for key in found if not _said_already(key, found))


def unlike(one: Settings, other: Settings) -> tuple[str, ...]:
    """Settings of the configuration that both have, modes and environment aside, and in which they are not alike."""
    keys = (key for key in dict.fromkeys((*IDENTITY, *one)) if key in one and key in other)
    return tuple(key for key in keys if one[key] != other[key] and not key.startswith((*HOUSEKEEPING, "mode.", "env.")))


def _said_already(key: str, found: Sequence[str]) -> bool:
    """A mode follows from a setting of the same name, and what a checkpoint is from where it lies."""
    kind, _, name = key.partition(".")
    if kind == "mode":
        return any(other in found for other in (name, f"engine.{name}", f"target.{name}"))
    return key in FROM_CHECKPOINT and "target.checkpoint" in found


def labels(runs: Sequence[Settings]) -> list[list[str]]:
    """What to name of each run beside its marks: settings that differ, identity aside.

    When they are more than MAX_NAMED, only those that are not what most runs have.
    """
    keys = [key for key in differing(runs) if key not in IDENTITY and not key.startswith("env.")]
    if len(keys) <= MAX_NAMED:
        return [named(run, keys) for run in runs]
    common = {key: Counter(run[key] for run in runs if key in run).most_common(1)[0][0] for key in keys}
    return [named(run, [key for key in keys if run.get(key) != common[key]]) for run in runs]


def panel_keys(runs: Sequence[Settings]) -> tuple[str, ...]:
    """Settings other than those of the drafter that differ between runs, so that each of their values is a panel."""
    return tuple(key for key in differing(runs) if key.partition(".")[0] not in ("drafter", "env"))


def named(settings: Settings, keys: Sequence[str]) -> list[str]:
    """Names and values of ``keys``, as far as the run has them."""
    return [f"{key.rpartition('.')[2]} {settings[key]}" for key in keys if key in settings]
