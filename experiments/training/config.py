"""TrainerConfig: every setting of a training run as frozen values; imports no torch and no Hydra."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from experiments.training.sections import from_sections
from specdec import checks
from specdec.errors import ConfigError

WHERE = "trainer"
DEVICES = re.compile(r"cpu|cuda(:\d+)?")


def _numbers(settings: object, section: str, names: Sequence[str], *, high: float | None = None) -> None:
    """Each of these settings is a number of at least 0, and of at most ``high``."""
    for name in names:
        checks.number(name, _value(settings, name), low=0.0, high=high, where=f"{WHERE}.{section}.{name}")


def _integers(settings: object, section: str, names: Sequence[str], *, low: int) -> None:
    for name in names:
        checks.integer(name, _value(settings, name), low=low, where=f"{WHERE}.{section}.{name}")


def _value(settings: object, name: str) -> object:
    return attrgetter(name)(settings)


def _below_one(name: str, value: object, where: str) -> None:
    """A number of at least 0 and below 1, as a running mean needs it."""
    if checks.number(name, value, low=0.0, high=1.0, where=where) == 1:
        raise ConfigError(f"{name} must be below 1, got {value!r} (conf: {where})")


def _as_tuple(settings: object, name: str, where: str) -> tuple[Any, ...]:
    """Turn the list that JSON or Hydra gives into a tuple, in place; returns it."""
    value = _value(settings, name)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ConfigError(f"{name} must be a list, got {value!r} (conf: {where}.{name})")
    object.__setattr__(settings, name, tuple(value))
    return tuple(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """Architecture of the target and its NextN layer, in the names of a DeepSeek-V4 ``config.json``.

    compress_ratios  per target layer: 0 window only, 4 CSA, 128 HCA; the NextN layer's 0 is added
    yarn_factor      rotary interpolation of the compressing layers; 1 for none
    """

    vocab_size: int = 4096
    hidden_size: int = 256
    compress_ratios: tuple[int, ...] = (0, 0, 4, 128, 0, 4, 128, 0, 4, 0)
    num_attention_heads: int = 4
    head_dim: int = 512
    qk_rope_head_dim: int = 64
    q_lora_rank: int = 128
    o_groups: int = 2
    o_lora_rank: int = 128
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 192
    num_hash_layers: int = 1
    routed_scaling_factor: float = 1.5
    sliding_window: int = 128
    index_n_heads: int = 32
    index_head_dim: int = 128
    index_topk: int = 32
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 4
    yarn_factor: float = 16.0

    def __post_init__(self) -> None:
        _as_tuple(self, "compress_ratios", f"{WHERE}.model")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSettings:
    """Where the text comes from and how it is cut.

    corpus           the corpus archive (tar, any compression), or the folder it unpacks to
    tokenizer        ``tokenizer.json`` of the model
    separator        special token that stands before every document and after the last
    sequence_tokens  length of a training window; a multiple of the sliding window
    workers          processes that tokenise; 0 for all cores
    max_bytes        text read per source file, for trials; 0 for all
    cache            .npz file that keeps the token ids; empty for one in the run folder
    """

    corpus: str = "corpus.tar.xz"
    tokenizer: str = "tokenizer_bpe4096.json"
    separator: str = "<|eos|>"
    sequence_tokens: int = 512
    workers: int = 0
    max_bytes: int = 0
    cache: str = ""

    def __post_init__(self) -> None:
        _integers(self, "data", ("sequence_tokens",), low=1)
        _integers(self, "data", ("workers", "max_bytes"), low=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSettings:
    """Muon for matrices, AdamW for the rest.

    matrix_lr        learning rate of Muon (its update has singular values near 1, times max(1, rows/columns)^0.5)
    embedding_lr, head_lr, vector_lr, mixing_lr
                     AdamW's, for the embedding, the head, vectors (norms, sinks, biases), and routers with
                     hyper-connection projections
    weight_decay     of Muon's matrices, decoupled, times the learning rate
    momentum         of Muon, Nesterov
    betas            of AdamW
    router_step      how far a router's bias moves per step against its load (auxiliary-loss-free balance)
    clip             largest global norm of the gradient of AdamW's parameters; 0 for none
    """

    matrix_lr: float = 0.012
    embedding_lr: float = 0.004
    head_lr: float = 0.002
    vector_lr: float = 0.003
    mixing_lr: float = 0.002
    weight_decay: float = 0.1
    momentum: float = 0.95
    betas: tuple[float, ...] = (0.9, 0.95)
    router_step: float = 0.001
    clip: float = 1.0

    def __post_init__(self) -> None:
        rates = ("matrix_lr", "embedding_lr", "head_lr", "vector_lr", "mixing_lr")
        _numbers(self, "optimizer", (*rates, "weight_decay", "router_step", "clip"))
        _below_one("momentum", self.momentum, f"{WHERE}.optimizer.momentum")
        betas = _as_tuple(self, "betas", f"{WHERE}.optimizer")
        if len(betas) != 2:
            raise ConfigError(f"betas must be two numbers, got {betas!r} (conf: {WHERE}.optimizer.betas)")
        for beta in betas:
            _below_one("betas", beta, f"{WHERE}.optimizer.betas")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSettings:
    """Share of the run, by elapsed time (or by steps when ``max_steps`` is set), at which something changes.

    warmup       until here the learning rate rises from 0
    decay_from   from here it falls linearly to ``final_lr`` of its height
    sparse_from  from here CSA layers attend only the entries that their indexer selects
    quantise_from  from here weights are rounded to their storage format in the forward pass
    """

    warmup: float = 0.02
    decay_from: float = 0.45
    final_lr: float = 0.02
    sparse_from: float = 0.08
    quantise_from: float = 0.5

    def __post_init__(self) -> None:
        shares = ("warmup", "decay_from", "final_lr", "sparse_from", "quantise_from")
        _numbers(self, "schedule", shares, high=1.0)
        if self.warmup > self.decay_from:
            where = f"{WHERE}.schedule.warmup"
            raise ConfigError(f"warmup must be at most decay_from={self.decay_from}, got {self.warmup} (conf: {where})")


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveSettings:
    """Weights of the losses beside the target's cross entropy.

    nextn_weights   of the NextN layer at depth 1, 2, ...; their number is the depth trained
    distil          share of the NextN loss that imitates the target's distribution instead of the text
    nextn_final     factor on ``nextn_weights`` reached at the end of the decay
    indexer         of the KL between attention mass and indexer scores
    """

    nextn_weights: tuple[float, ...] = (0.2, 0.12, 0.08)
    distil: float = 0.7
    nextn_final: float = 0.5
    indexer: float = 0.05

    def __post_init__(self) -> None:
        where = f"{WHERE}.objective.nextn_weights"
        weights = _as_tuple(self, "nextn_weights", f"{WHERE}.objective")
        if not weights:
            raise ConfigError(f"nextn_weights must hold at least one weight, got none (conf: {where})")
        for weight in weights:
            checks.number("nextn_weights", weight, low=0.0, where=where)
        _numbers(self, "objective", ("distil",), high=1.0)
        _numbers(self, "objective", ("nextn_final", "indexer"))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """One training run.

    minutes           length of the training loop; data preparation, compilation and evaluation come on top
    max_steps         stop and schedule by steps instead; 0 for by time
    batch_sequences   windows per optimizer step
    device            cpu, cuda or cuda:N; whether it is there is checked where the run begins
    compute_dtype     of activations and matrix products: bf16 or fp32
    compile           compile blocks and losses
    compile_backend   of torch.compile
    resume            continue from the run folder's state if there is one
    save_minutes      time between two states in the run folder
    log_steps         steps between two rows of the loss curve
    eval_sequences    windows per evaluation batch
    eval_documents    held-out documents to evaluate; 0 for all
    seed              of initialisation and order of the text
    """

    minutes: float = 15.5
    max_steps: int = 0
    batch_sequences: int = 96
    device: str = "cuda"
    compute_dtype: str = "bf16"
    compile: bool = True
    compile_backend: str = "inductor"
    resume: bool = True
    save_minutes: float = 5.0
    log_steps: int = 50
    eval_sequences: int = 32
    eval_documents: int = 0
    seed: int = 0
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)

    def __post_init__(self) -> None:
        checks.number("minutes", self.minutes, low=0.0, where=f"{WHERE}.minutes")
        checks.integer("max_steps", self.max_steps, low=0, where=f"{WHERE}.max_steps")
        checks.positive_int("batch_sequences", self.batch_sequences, where=f"{WHERE}.batch_sequences")
        for name in ("log_steps", "eval_sequences"):
            checks.positive_int(name, _value(self, name), where=f"{WHERE}.{name}")
        for name in ("eval_documents", "seed"):
            checks.integer(name, _value(self, name), low=0, where=f"{WHERE}.{name}")
        for name in ("compile", "resume"):
            checks.flag(name, _value(self, name), where=f"{WHERE}.{name}")
        checks.number("save_minutes", self.save_minutes, low=0.0, where=f"{WHERE}.save_minutes")
        if not DEVICES.fullmatch(str(self.device)):
            raise ConfigError(f"device must be cpu, cuda or cuda:N, got {self.device!r} (conf: {WHERE}.device)")
        checks.one_of("compute_dtype", self.compute_dtype, ("bf16", "fp32"), where=f"{WHERE}.compute_dtype")
        window, length = self.model.sliding_window, self.data.sequence_tokens
        if length < window or length % window:
            raise ConfigError(
                f"sequence_tokens must be a multiple of sliding_window={window}, got {length} "
                f"(conf: {WHERE}.data.sequence_tokens)"
            )

    @property
    def on_cuda(self) -> bool:
        """Whether a GPU trains."""
        return self.device != "cpu"

    @property
    def backend(self) -> str | None:
        """Backend of torch.compile, or None to run eagerly."""
        return self.compile_backend if self.compile else None

    @property
    def depth(self) -> int:
        """How many tokens ahead of the target's own prediction the NextN layer is trained."""
        return len(self.objective.nextn_weights)


_SECTIONS = {
    "model": ModelSettings,
    "data": DataSettings,
    "optimizer": OptimizerSettings,
    "schedule": ScheduleSettings,
    "objective": ObjectiveSettings,
}


def config_from_dict(raw: Mapping[str, Any]) -> TrainerConfig:
    """A TrainerConfig from plain nested mappings; raises ConfigError naming an unknown key."""
    return from_sections(TrainerConfig, _SECTIONS, raw, where=WHERE)


def config_to_dict(config: TrainerConfig) -> dict[str, Any]:
    """Plain nested mappings, ready for JSON."""
    return dataclasses.asdict(config)
