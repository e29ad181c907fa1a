"""The token view: texts, each token coloured by how it came about, with details of its step on hover or focus."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from unicodedata import category

from experiments.report.collect import FinishedRun
from experiments.report.html import details, section
from experiments.report.rows import MAX_OUTPUTS, Output, Texts
from experiments.report.texts import MAX_TOKENS, Token, pieces, tokenizer_of, tokens_of
from specdec.metrics import StepRow

MAX_RUNS = 8
DEEPEST_SHADE = 6
LEGEND = (
    ("a1", "accepted, position 1"),
    ("a2", "2"),
    ("a3", "3"),
    ("a6", "6 and on"),
    ("bonus", "bonus: all drafts accepted, one more follows"),
    ("corrected", "corrected: the target replaced a draft"),
    ("plain", "no draft in this step, or first token"),
)


def token_view(runs: Sequence[FinishedRun], texts: Mapping[int, Texts]) -> str:
    """Some outputs of the runs that drafted; nothing without any."""
    chosen = [run for run in runs if run.survival and run.number in texts][:MAX_RUNS]
    if not chosen:
        return ""
    legend = "".join(f'<span class="t {kind}">{escape(words)}</span>' for kind, words in LEGEND)
    folded = [
        details(run.label, _outputs(texts[run.number], tokenizer_of(run)), is_open=run is chosen[0]) for run in chosen
    ]
    return section(
        "tokens",
        "Tokens",
        "Rest the pointer on a token, or press Tab and then the arrow keys, to see its step; Escape hides it. The "
        f"first {MAX_OUTPUTS} outputs of a run, {MAX_TOKENS} tokens of each, {MAX_RUNS} runs at most. A token without "
        "a text of its own is shown as its id. Runs with engine.record_probs=true tell what target and draft gave each "
        "drafted token.",
        f'<p class="legend">{legend}</p>',
        *folded,
    )


def _outputs(texts: Texts, tokenizer: Any) -> str:
    return "".join(_output(output, tokens_of(output, steps, tokenizer), tokenizer) for output, steps in texts)


def _output(output: Output, tokens: Sequence[Token], tokenizer: Any) -> str:
    turn = f", turn {output.turn}" if output.turn else ""
    heading = (
        f"{output.request_id}{turn} ({output.category or 'no category'}): {len(output.output_ids)} tokens, "
        f"{len({token.step.step for token in tokens if token.step})} steps shown, ended by {output.finish_reason}"
    )
    steps = {token.step.step: token.step for token in tokens if token.step}
    drafted = {number: _drafted(step, tokenizer) for number, step in steps.items()}
    marked = "".join(_token(token, place, drafted) for place, token in enumerate(tokens))
    return (
        f'<div class="output"><h3>{escape(heading)}</h3><pre class="tokens">{marked}</pre>'
        '<p class="told" role="status" hidden></p></div>'
    )


def _token(token: Token, place: int, drafted: Mapping[int, str]) -> str:
    """A span; one of an output is in the order of Tab, the arrow keys reach the others."""
    kind = token.kind
    if kind == "accepted":
        kind = f"a{min(token.index + 1, DEEPEST_SHADE)}"
    by_id = f"\N{MATHEMATICAL LEFT ANGLE BRACKET}{token.id}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
    shown = token.text if _has_shape(token.text) else by_id
    visible = shown.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}\n")
    said = escape(_told(token, place, drafted))
    return f'<span class="t {kind}" tabindex="{-1 if place else 0}" title="{said}">{escape(visible)}</span>'


def _has_shape(text: str) -> bool:
    """Whether a reader would see it: some text, and no control characters but line ends and tabs."""
    return bool(text) and not any(category(char) == "Cc" and char not in "\n\t" for char in text)


def _told(token: Token, place: int, drafted: Mapping[int, str]) -> str:
    """Lines: which token, how it came about, its step, and the laws where the run recorded them."""
    name = f"{token.text!r}, " if token.text else ""
    head = f"{name}id {token.id}, token {place} of the output"
    step = token.step
    if step is None:
        return f"{head}\nthe first token, chosen from the prompt"
    known = f"{step.seq_len} tokens known before it"
    if not step.verified:
        return f"{head}\nstep {step.step} had no draft, {known}"
    loop = "; it emitted a token of a loop" if step.in_loop else ""
    cut = "" if step.cut == "none" else f"; cut by {step.cut}"
    lines = (
        head,
        _origin(token, step.verified),
        f"step {step.step}, {known}: drafted {drafted[step.step]}",
        f"accepted {step.accepted} of {step.verified}, emitted {step.emitted}{cut}{loop}",
        _laws(token),
    )
    return "\n".join(line for line in lines if line)


def _drafted(step: StepRow, tokenizer: Any) -> str:
    texts = pieces(step.draft_ids, tokenizer)
    return " ".join(_quoted(id_, text) for id_, text in zip(step.draft_ids, texts, strict=True))


def _origin(token: Token, verified: int) -> str:
    if token.kind == "accepted":
        return f"accepted draft, position {token.index + 1} of {verified}"
    return "bonus after a fully accepted draft" if token.kind == "bonus" else f"corrected at position {token.index + 1}"


def _laws(token: Token) -> str:
    """Probabilities of an accepted draft and the overlap of the laws at a verified place, as far as they are recorded.

    Of a tree they lie by node, and a row does not say which nodes were accepted.
    """
    step = token.step
    if step is None or step.parents is not None or token.kind not in ("accepted", "corrected"):
        return ""
    recorded = [("overlap of the two laws", step.overlap)]
    if token.kind == "accepted":
        recorded = [("draft probability", step.draft_probs), ("target probability", step.target_probs), *recorded]
    said = [f"{name} {law[token.index]:.3f}" for name, law in recorded if law is not None and token.index < len(law)]
    return ", ".join(said)


def _quoted(id_: int, text: str) -> str:
    return repr(text) if text else str(id_)
