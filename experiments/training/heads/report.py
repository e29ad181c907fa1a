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
        f"{result['config']['text']['temperature']:g})."
    )


def card(result: Mapping[str, Any]) -> str:
    """The text of ``README.md``."""
    config = result["config"]
    lines = [
        f"# {NAMES[config['kind']]} for {result['target']}",
        "",
        "Trained for a frozen target on text that the target wrote itself.",
        "",
        f"- Parameters trained: {result['parameters'] / 1e6:.2f} M, stored as {result['stored_as']}.",
        f"- Text: {result['texts']['training']} texts of {result['texts']['tokens']:,} tokens; "
        f"{result['texts']['heldout']} held-out prompts.",
        f"- Training: {result['steps']} steps of {config['batch_sequences']} texts in {result['seconds']:.0f} s, "
        f"unrolled to depth {config['depth']}; AdamW {config['lr']:g}; {config['distil']:.0%} of the loss imitates the "
        "target's law.",
        f"- Command: `{result['command']}` ({result['device']}, torch {result['torch']}).",
        "",
        "## Acceptance by depth: predicted at training time, and measured",
        "",
        *table(result),
        "",
        *(f"- {line}" for line in DEFINITIONS),
    ]
    if result["notes"]:
        lines += ["", *(f"- {note}" for note in result["notes"])]
    return "\n".join(lines) + "\n"


def write_card(folder: Path, result: Mapping[str, Any]) -> None:
    """Beside the weights."""
    (folder / CARD).write_text(card(result), encoding="utf-8")


def loss_line(step: int, seconds: float, losses: Sequence[float], lr: float) -> str:
    """A row of the loss curve as text."""
    depths = " ".join(f"{value:.3f}" for value in losses)
    return f"step {step}  {seconds:.0f} s  lr {lr:.2g}  loss by depth {depths}"
