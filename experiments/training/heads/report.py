"""The result of training a head as values, as a table and as the card beside the weights."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.training.heads.acceptance import Measured
from experiments.training.heads.measure import Predicted

CARD = "README.md"
NAMES = {"eagle3": "EAGLE-3 head", "medusa": "Medusa heads", "nextn": "NextN layer"}
HEADINGS = ("depth", "nats", "top-1", "overlap", "survival predicted", "survival measured", "steps")
DEFINITIONS = (
    "nats, top-1, overlap: teacher-forced on held-out text of the target; overlap is the sum of min(p, q).",
    "survival: steps that accept depth i / steps that propose it; predicted from that text without the engine, "
    "measured by the engine with the stored head (+- two standard errors).",
)


def depth_rows(predicted: Predicted, measured: Measured) -> list[dict[str, float]]:
    """One row a depth: training-time quality, predicted and measured survival."""
    columns = zip(predicted.depths, predicted.expected.survival, measured.survival, measured.observed, strict=True)
    return [
        {
            "depth": number,
            "nats": quality.nats,
            "agrees": quality.agrees,
            "overlap": quality.overlap,
            "predicted": expected,
            "measured": found,
            "error": 2 * math.sqrt(max(found * (1 - found), 0.0) / steps) if steps else float("nan"),
            "steps": steps,
        }
        for number, (quality, expected, found, steps) in enumerate(columns, start=1)
    ]


def table(result: Mapping[str, Any]) -> Iterator[str]:
    """Predicted beside measured, as lines of a Markdown table and what it says."""
    yield f"| {' | '.join(HEADINGS)} |"
    yield f"|{'---:|' * len(HEADINGS)}"
    for row in result["depths"]:
        cells = [f"{row[name]:.3f}" for name in ("nats", "agrees", "overlap", "predicted")]
        yield f"| {row['depth']} | {' | '.join(cells)} | {row['measured']:.3f} +- {row['error']:.3f} | {row['steps']} |"
    yield ""
    yield (
        f"Tokens per step: {result['tokens_per_step']['predicted']:.3f} predicted, "
        f"{result['tokens_per_step']['measured']:.3f} measured ({result['rule']}, temperature "
        f"{result['temperature']:g}, at most {len(result['depths'])} drafted)."
    )


def card(result: Mapping[str, Any]) -> str:
    """The text of ``README.md``."""
    lines = [f"# {NAMES[result['kind']]} for {result['target']}", ""]
    if "config" in result:
        lines += ["Trained for a frozen target on text that the target wrote itself.", "", *_training_lines(result), ""]
    lines += ["## Acceptance by depth: predicted without the engine, and measured", ""]
    if "measured" in result:
        lines += [_by("Measured apart from training", result["measured"]), ""]
    lines += [
        f"{result['heldout']} prompts that the head has not learned from.",
        "",
        *table(result),
        "",
        *(f"- {line}" for line in DEFINITIONS),
    ]
    if result["notes"]:
        lines += ["", *(f"- {note}" for note in result["notes"])]
    return "\n".join(lines) + "\n"


def _training_lines(result: Mapping[str, Any]) -> Iterator[str]:
    config, texts = result["config"], result["texts"]
    yield f"- Parameters trained: {result['parameters'] / 1e6:.2f} M, stored as {result['stored_as']}."
    yield (
        f"- Text: {texts['training']} texts of {texts['tokens']:,} tokens, of which the target wrote "
        f"{texts['own_tokens']:,}."
    )
    yield (
        f"- Training: {result['steps']} steps of {config['batch_sequences']} texts in {result['seconds']:.0f} s, "
        f"unrolled to depth {config['depth']}; AdamW {config['lr']:g}; {config['distil']:.0%} of the loss imitates the "
        "target's law."
    )
    yield _by("- Command", result)


def _by(what: str, made: Mapping[str, Any]) -> str:
    return f"{what}: `{made['command']}` ({made['device']}, torch {made['torch']})."


def write_card(folder: Path, result: Mapping[str, Any]) -> None:
    """Beside the weights."""
    (folder / CARD).write_text(card(result), encoding="utf-8")


def loss_line(step: int, seconds: float, losses: Sequence[float], lr: float) -> str:
    """A row of the loss curve as text."""
    depths = " ".join(f"{value:.3f}" for value in losses)
    return f"step {step}  {seconds:.0f} s  lr {lr:.2g}  loss by depth {depths}"
