"""HeadTrainerConfig: every setting of training a draft head for a frozen target; imports no torch and no Hydra."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.training.sections import from_sections
from specdec import checks
from specdec.errors import ConfigError

WHERE = "trainer"
TEXTS = "texts"
HEADS = ("eagle3", "medusa")
"""Those that lie in a folder of their own."""
KINDS = (*HEADS, "nextn", TEXTS)
STREAMS = ("flattened", "mean")
DTYPES = ("fp32", "bf16")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadShape:
    """What the head looks like; a number of 0 takes it from the target. What a kind of head lacks is ignored.

    layers               eagle3: the three target layers whose output it reads, from 0; none: low, middle and high
    streams              eagle3: residual streams of a target that has several: ``flattened`` or their ``mean``
    draft_vocab_size     eagle3: tokens that it can predict, the commonest of the generated text
    intermediate_size    eagle3: width of the gated layer; 0: twice the hidden width
    num_attention_heads  eagle3: 0: heads of 64, at least one
    num_blocks           medusa: residual blocks of a head
    fresh                nextn: begin with first values instead of those of the checkpoint
    """

    layers: tuple[int, ...] = ()
    streams: str = "flattened"
    draft_vocab_size: int = 0
    intermediate_size: int = 0
    num_attention_heads: int = 0
    num_blocks: int = 1
    fresh: bool = False

    def __post_init__(self) -> None:
        where = f"{WHERE}.shape"
        if not isinstance(self.layers, Sequence) or isinstance(self.layers, str):
            raise ConfigError(f"layers must be a list, got {self.layers!r} (conf: {where}.layers)")
        object.__setattr__(self, "layers", tuple(self.layers))
        if self.layers and len(self.layers) != 3:
            raise ConfigError(f"layers must be three or none, got {list(self.layers)} (conf: {where}.layers)")
        for layer in self.layers:
            checks.integer("layers", layer, low=0, where=f"{where}.layers")
        checks.one_of("streams", self.streams, STREAMS, where=f"{where}.streams")
        values = dataclasses.asdict(self)
        for name in ("draft_vocab_size", "intermediate_size", "num_attention_heads", "num_blocks"):
            checks.integer(name, values[name], low=0, where=f"{where}.{name}")
        checks.flag("fresh", self.fresh, where=f"{where}.fresh")


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSettings:
    """The target's own text, which the head learns from.

    files           texts that ``trainer=texts`` wrote for this target, read instead of written; then every prompt of
                    ``prompts`` is held out
    prompts         ``builtin``, a JSONL workload, or a text file with one prompt a paragraph
    max_prompts     prompts that are used; 0 for all
    heldout         share of the prompts that are kept for evaluation; at least one is, and at least one is not
    samples         continuations of each training prompt
    max_new_tokens  of a continuation
    temperature     at which the target writes, the head is trained and both are compared; 0 is greedy
    learn_prompts   learn from the prompts too, not only from what the target made of them
    minutes         when no further prompt is begun; 0 for no limit
    batch           requests that the engine runs at the same time
    """

    files: tuple[str, ...] = ()
    prompts: str = "builtin"
    max_prompts: int = 0
    heldout: float = 0.2
    samples: int = 1
    max_new_tokens: int = 128
    temperature: float = 0.8
    learn_prompts: bool = False
    minutes: float = 0.0
    batch: int = 8

    def __post_init__(self) -> None:
        where = f"{WHERE}.text"
        if not isinstance(self.files, Sequence) or isinstance(self.files, str):
            raise ConfigError(f"files must be a list, got {self.files!r} (conf: {where}.files)")
        object.__setattr__(self, "files", tuple(self.files))
        values = dataclasses.asdict(self)
        for name in ("samples", "batch"):
            checks.positive_int(name, values[name], where=f"{where}.{name}")
        checks.integer("max_new_tokens", self.max_new_tokens, low=4, where=f"{where}.max_new_tokens")
        checks.integer("max_prompts", self.max_prompts, low=0, where=f"{where}.max_prompts")
        for name in ("temperature", "minutes"):
            checks.number(name, values[name], low=0.0, where=f"{where}.{name}")
        checks.flag("learn_prompts", self.learn_prompts, where=f"{where}.learn_prompts")
        checks.number("heldout", self.heldout, low=0.0, high=0.9, where=f"{where}.heldout")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadTrainerConfig:
    """One training run.

    kind             eagle3, medusa or nextn; texts writes what the others can read with ``text.files``
    checkpoint       eagle3, medusa: a head that exists, predicted and measured instead of training one; a folder or the
                     name of a head that ships
    depth            tokens drafted in a round: the head is unrolled to this depth (training-time test)
    minutes          length of the training loop
    max_steps        stop and schedule by steps instead; 0 for by time
    batch_sequences  texts of a step
    sequence_tokens  tokens of a text that are used, from its beginning
    lr               of AdamW; rises over ``warmup`` of the run and falls linearly to a tenth
    distil           share of the loss that imitates the target's law instead of its text
    depth_decay      weight of each depth relative to the one before
    weight_decay, clip  of AdamW; largest norm of the gradient, 0 for none
    dump             compute the target's states once and keep them in the run folder, instead of in every step
    device, dtype    cpu, cuda or cuda:N, and fp32 or bf16 of the target; null: what the machine offers
    threads          of torch on the CPU; null leaves it alone
    log_steps        steps between two rows of the loss curve
    seed             of first values, order and the target's text
    """

    kind: str
    checkpoint: str | None = None
    depth: int = 3
    minutes: float = 2.0
    max_steps: int = 0
    batch_sequences: int = 4
    sequence_tokens: int = 256
    lr: float = 1e-3
    warmup: float = 0.05
    distil: float = 0.9
    depth_decay: float = 0.8
    weight_decay: float = 0.01
    clip: float = 1.0
    dump: bool = False
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    log_steps: int = 10
    seed: int = 0
    shape: HeadShape = field(default_factory=HeadShape)
    text: TextSettings = field(default_factory=TextSettings)

    def __post_init__(self) -> None:
        checks.one_of("kind", self.kind, KINDS, where=f"{WHERE}.kind")
        if self.kind == TEXTS and self.text.files:
            raise ConfigError(f"trainer=texts writes texts and reads none (conf: {WHERE}.text.files)")
        if self.checkpoint is not None and self.kind not in HEADS:
            raise ConfigError(
                f"a head that exists is measured with trainer={' or trainer='.join(HEADS)}, got {self.kind} "
                f"(conf: {WHERE}.checkpoint)"
            )
        checks.integer("depth", self.depth, low=1, high=31, where=f"{WHERE}.depth")
        checks.integer("sequence_tokens", self.sequence_tokens, low=8, where=f"{WHERE}.sequence_tokens")
        values = dataclasses.asdict(self)
        for name in ("batch_sequences", "log_steps"):
            checks.positive_int(name, values[name], where=f"{WHERE}.{name}")
        for name in ("max_steps", "seed"):
            checks.integer(name, values[name], low=0, where=f"{WHERE}.{name}")
        for name in ("minutes", "lr", "weight_decay", "clip"):
            checks.number(name, values[name], low=0.0, where=f"{WHERE}.{name}")
        for name in ("warmup", "distil", "depth_decay"):
            checks.number(name, values[name], low=0.0, high=1.0, where=f"{WHERE}.{name}")
        checks.flag("dump", self.dump, where=f"{WHERE}.dump")
        if self.dtype is not None:
            checks.one_of("dtype", self.dtype, DTYPES, where=f"{WHERE}.dtype")
        if self.threads is not None:
            checks.positive_int("threads", self.threads, where=f"{WHERE}.threads")


_SECTIONS = {"shape": HeadShape, "text": TextSettings}


def head_config(raw: Mapping[str, Any]) -> HeadTrainerConfig:
    """A HeadTrainerConfig from plain nested mappings; raises ConfigError naming an unknown key."""
    return from_sections(HeadTrainerConfig, _SECTIONS, raw, where=WHERE)
