"""The model card of a trained checkpoint, written from the run's result: what it is, how it was made, its scores."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.training.config import TrainerConfig, config_from_dict
from experiments.training.evaluate import DRAFT_TEMPERATURE, context_limit, quality_from_dict

CARD = "README.md"
# Rows of the loss curve that the card shows, spread evenly over it.
CURVE_ROWS = 11

Result = Mapping[str, Any]


def write_card(folder: Path, result: Result, *, source: str) -> None:
    """Write ``README.md`` beside the weights; ``source`` says where the result itself lies."""
    (folder / CARD).write_text(card_text(result, source=source), encoding="utf-8")


def card_text(result: Result, *, source: str) -> str:
    """The card of a result as ``experiments.training.loop.finish`` makes it (or read back from its JSON)."""
    lines = [*_description(result, source), *_scores(result), *_drafts(result), *_curve(result["curve"])]
    return "\n".join(lines) + "\n"


def _description(result: Result, source: str) -> Iterator[str]:
    config = config_from_dict(result["config"])
    yield "# A small DeepSeek-V4 with its NextN layer"
    yield ""
    yield "Trained from nothing for experiments with speculative decoding; it is no assistant and knows no facts."
    yield ""
    yield from _model(config, result["parameters"])
    yield (
        "- Data: English technical documentation and Python from free packages, each with its licence in the "
        "manifest; `experiments/data/corpus_recipe.json`."
    )
    yield from _training(config, result)
    yield f"- Command: `{result['command']}` ({result['device']}, torch {result['torch']})."
    yield f"- Result and whole loss curve: {source}."


def _model(config: TrainerConfig, parameters: Mapping[str, int]) -> Iterator[str]:
    model = config.model
    yield (
        f"- Architecture: hidden {model.hidden_size}, {len(model.compress_ratios)} layers with compress_ratios "
        f"{[*model.compress_ratios, 0]} (the last is the NextN layer), {model.num_attention_heads} heads of "
        f"{model.head_dim}, {model.n_routed_experts} experts, {model.num_experts_per_tok} chosen, one shared."
    )
    yield f"- Parameters: {parameters['target'] / 1e6:.1f} M target, {parameters['nextn'] / 1e6:.1f} M NextN layer."
    yield "- Storage: fp8 linears (128 x 128 blocks), fp4 experts (blocks of 32), bf16 and fp32 rest."


def _training(config: TrainerConfig, result: Result) -> Iterator[str]:
    progress, window = result["progress"], config.data.sequence_tokens
    yield (
        f"- Training: {progress['steps']:.0f} steps of {config.batch_sequences} x {window} tokens, "
        f"{progress['tokens'] / 1e6:.0f} M tokens in {progress['minutes']:.1f} minutes; Muon and AdamW; "
        f"weights rounded to storage from {config.schedule.quantise_from:.0%} of the run on."
    )
    limit = context_limit([quality_from_dict(raw) for raw in result["stored"]])
    yield (
        f"- Context limit: {limit}, the longest window that predicts no worse than the {window} tokens trained on "
        "(table below)."
    )


def _scores(result: Result) -> Iterator[str]:
    yield from ("", "## Held out, as stored", "")
    yield from _header("window", "bits per byte", "nats per token", "tokens")
    for q in map(quality_from_dict, result["stored"]):
        yield f"| {q.window_tokens} | {q.bits_per_byte:.4f} | {q.nats_per_token:.4f} | {q.scored_tokens} |"


def _drafts(result: Result) -> Iterator[str]:
    drafted = next((q for q in map(quality_from_dict, result["stored"]) if q.drafts), None)
    if drafted is None:
        return
    yield from ("", f"## NextN layer by depth, teacher-forced on the text, temperature {DRAFT_TEMPERATURE}", "")
    yield from _header("depth", "nats per token", "hits text", "hits target's best", "overlap", "survival")
    for depth, d in enumerate(drafted.drafts, start=1):
        cells = (d.next_token, d.correct, d.agrees, d.overlap, d.survival)
        yield f"| {depth} | {' | '.join(f'{value:.3f}' for value in cells)} |"
    steps = ", ".join(f"K={k}: {v:.2f}" for k, v in enumerate(drafted.tokens_per_step, start=1))
    yield from ("", f"Expected tokens per step: {steps}.")


def _curve(curve: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A few rows of the loss curve, from its first to its last."""
    if not curve:
        return
    last = len(curve) - 1
    chosen = sorted({round(part * last / (CURVE_ROWS - 1)) for part in range(CURVE_ROWS)})
    depths = [f"NextN depth {depth}" for depth in range(1, len(curve[0]["nextn"]) + 1)]
    yield from ("", "## Loss curve: nats per token of one training batch", "")
    yield from _header("step", "target", *depths, "weights rounded")
    for row in (curve[number] for number in chosen):
        losses = " | ".join(f"{loss:.3f}" for loss in (row["next_token"], *row["nextn"]))
        yield f"| {row['step']} | {losses} | {'yes' if row['quantised'] else 'no'} |"


def _header(*headings: str) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---:|' * len(headings)}"
