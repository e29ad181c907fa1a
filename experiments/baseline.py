"""Baseline: a finished plain run to compare with; where it lies and whether it may be used. Runs nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from experiments.environment import disagreement
from experiments.fingerprint import BASELINE_KEYS, HASHED
from experiments.run_folder import CONFIG, ENVIRONMENT, OUTPUTS, SUMMARY, Status, read_json, read_jsonl, status_of
from experiments.schemas import PLAIN_DRAFTER
from experiments.speed import Timing
from specdec.errors import ConfigError

AUTO = "auto"
OFF = "off"
SUB_FOLDER = "baseline"


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """What a comparison needs of a plain run.

    outputs  (prompt, output) token ids by request id and turn
    timings  one per repeat
    """

    folder: Path
    outputs: Mapping[tuple[str, int], tuple[tuple[int, ...], tuple[int, ...]]]
    timings: tuple[Timing, ...]

    @property
    def references(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """Pairs of a prompt and the tokens that follow it."""
        return tuple(self.outputs.values())


def read_baseline(folder: Path) -> Baseline:
    """Read a finished run."""
    rows = read_jsonl(folder / OUTPUTS)
    return Baseline(
        folder=folder,
        outputs={
            (row["request_id"], row["turn"]): (tuple(row["prompt_ids"]), tuple(row["output_ids"])) for row in rows
        },
        timings=tuple(Timing(**timing) for timing in read_json(folder / SUMMARY)["timings"]),
    )


def given_baseline(path: str) -> Path:
    """Folder of the plain run that ``baseline=PATH`` names: the folder, or its own baseline; raises ConfigError."""
    folder = Path(path)
    if status_of(folder) is not Status.DONE:
        raise ConfigError(f"baseline must be auto, off or the folder of a finished run, got {path!r}")
    if _plain(folder):
        return folder
    inner = folder / SUB_FOLDER
    if status_of(inner) is Status.DONE:
        return inner
    raise ConfigError(f"baseline: {path} was run with a drafter and has no plain run in {SUB_FOLDER}/")


def unusable(folder: Path, config: Mapping[str, object], environment: Mapping[str, object]) -> str | None:
    """Why the run in ``folder`` is no baseline for a run of this configuration and environment; None if it is."""
    if status_of(folder) is not Status.DONE:
        return "it is not finished"
    differs = disagreement(environment, read_json(folder / ENVIRONMENT))
    if differs is not None:
        return differs
    theirs = OmegaConf.to_container(OmegaConf.load(folder / CONFIG))
    ours_flat, theirs_flat = (_flatten({key: node[key] for key in BASELINE_KEYS}) for node in (config, theirs))
    return disagreement(ours_flat, theirs_flat)


def _plain(folder: Path) -> bool:
    return OmegaConf.load(folder / CONFIG).drafter.get("_target_") == PLAIN_DRAFTER


def _flatten(node: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in node.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{key}.")
        elif key not in HASHED:
            flat[key] = value
    return flat
