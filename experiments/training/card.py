"""The model card of a trained checkpoint: what it is, how it was made, what was measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.training.config import TrainerConfig
from experiments.training.evaluate import Quality

CARD = "README.md"


def write_card(
    folder: Path,
    config: TrainerConfig,
    *,
    counts: Mapping[str, int],
    progress: Mapping[str, float],
    qualities: Sequence[Quality],
) -> None:
    """Write ``README.md`` beside the weights; ``qualities`` are of the checkpoint as stored."""
    (folder / CARD).write_text("\n".join(_lines(config, counts, progress, qualities)) + "\n", encoding="utf-8")


def _lines(
    config: TrainerConfig, counts: Mapping[str, int], progress: Mapping[str, float], qualities: Sequence[Quality]
) -> list[str]:
    model = config.model
    lines = [
        "# A small DeepSeek-V4 with its NextN layer",
        "",
        "Trained from nothing for experiments with speculative decoding; it is no assistant and knows no facts.",
        "",
        f"- Architecture: hidden {model.hidden_size}, {len(model.compress_ratios)} layers with compress_ratios "
        f"{[*model.compress_ratios, 0]} (the last is the NextN layer), {model.num_attention_heads} heads of "
        f"{model.head_dim}, {model.n_routed_experts} experts, {model.num_experts_per_tok} chosen, one shared.",
        f"- Parameters: {counts['target'] / 1e6:.1f} M target, {counts['nextn'] / 1e6:.1f} M NextN layer.",
        "- Storage: fp8 linears (128 x 128 blocks), fp4 experts (blocks of 32), bf16 and fp32 rest.",
        "- Data: English technical documentation and Python from free packages; `experiments/data/corpus_recipe.json`.",
        f"- Training: {progress['steps']:.0f} steps of {config.batch_sequences} x {config.data.sequence_tokens} "
        f"tokens, {progress['tokens'] / 1e6:.0f} M tokens in {progress['minutes']:.1f} minutes; Muon and AdamW; "
        f"weights rounded to storage from {config.schedule.quantise_from:.0%} of the run on.",
        f"- Trained on windows of {config.data.sequence_tokens} tokens; config.json's limit is the longest tested "
        "window that predicts no worse.",
        "",
        "## Held out, as stored",
        "",
        "| window | bits per byte | nats per token | tokens |",
        "|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {q.window_tokens} | {q.bits_per_byte:.4f} | {q.nats_per_token:.4f} | {q.scored_tokens} |" for q in qualities
    ]
    drafted = next((q for q in qualities if q.drafts), None)
    if drafted is not None:
        lines += ["", "## NextN layer by depth, teacher-forced on the text, temperature 0.8", ""]
        lines += ["| depth | nats per token | hits text | hits target's best | overlap | survival |"]
        lines += ["|---:|---:|---:|---:|---:|---:|"]
        lines += [
            f"| {depth} | {d.next_token:.3f} | {d.correct:.3f} | {d.agrees:.3f} | {d.overlap:.3f} | {d.survival:.3f} |"
            for depth, d in enumerate(drafted.drafts, start=1)
        ]
        steps = ", ".join(f"K={k}: {v:.2f}" for k, v in enumerate(drafted.tokens_per_step, start=1))
        lines += ["", f"Expected tokens per step: {steps}."]
    return lines
