"""Schemas of every config group: names, types, defaults and allowed values; imports neither torch nor any backend.

A field made with ``setting`` carries what is allowed, so that one checker words every refusal. What needs a model
(the context limit of a checkpoint, say) is checked where the model is built.
"""

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

# The drafter of a run without speculation: what a baseline is made with and recognised by.
PLAIN_DRAFTER = "drafters.none.NoneConfig"
MAX_DRAFT_TOKENS = 31
MAX_CERTIFIED = 5
MAX_THREADS = 1024
"""More than any machine has cores; torch starts as many as it is told, until the process cannot start another."""
CACHE_DTYPES = ("fp32", "bf16", "fp8")
INDEXER_DTYPES = ("plain", "fp8", "mxfp4")


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowed:
    """Values that a setting may take: numbers within ``[low, high]``, or one of ``choices``."""

    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.low is None:
            return "any value"
        return f"at least {self.low:g}" if self.high is None else f"{self.low:g} to {self.high:g}"

    def admits(self, value: object) -> bool:
        """Whether ``value``, of the right type already, is allowed; None stands for a default found later."""
        if value is None:
            return True
        if isinstance(value, float) and not isfinite(value):
            return False
        if self.choices:
            return value in self.choices
        if self.low is not None and not value >= self.low:
            return False
        return self.high is None or value <= self.high


def setting(
    default: object, *, low: float | None = None, high: float | None = None, choices: tuple[str, ...] = ()
) -> Any:
    """A dataclass field that says what it allows."""
    allowed = {"allowed": Allowed(low=low, high=high, choices=choices)}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=allowed)
    return field(default=default, metadata=allowed)


@dataclass(frozen=True, kw_only=True)
class TargetSchema:
    """Which model verifies, and how its caches are stored.

    ``_target_`` names a function from experiments.targets.TargetRequest to experiments.targets.LoadedTarget.
    """

    _target_: str = "experiments.deepseek_v4.load"
    checkpoint: str = "embedded"
    cache_dtype: str = setting("fp32", choices=CACHE_DTYPES)
    indexer_dtype: str | None = setting(None, choices=INDEXER_DTYPES)
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NoneSchema:
    """Plain decoding; the number is accepted and ignored so that a sweep may set it for every drafter."""

    _target_: str = PLAIN_DRAFTER
    num_draft_tokens: int = setting(3, low=0, high=MAX_DRAFT_TOKENS)


@dataclass(frozen=True, kw_only=True)
class NgramSchema:
    """Settings of drafters.ngram."""

    _target_: str = "drafters.ngram.NgramConfig"
    num_draft_tokens: int = setting(3, low=1, high=MAX_DRAFT_TOKENS)
    max_ngram: int = setting(4, low=1, high=16)
    min_ngram: int = setting(1, low=1, high=16)
    match: str = setting("latest", choices=("earliest", "latest"))
    branches: int = setting(1, low=1, high=16)


@dataclass(frozen=True, kw_only=True)
class NextnSchema:
    """Settings of drafters.nextn."""

    _target_: str = "drafters.nextn.NextnConfig"
    num_draft_tokens: int = setting(3, low=1, high=MAX_DRAFT_TOKENS)
    proposals: str = setting("sampled", choices=("sampled", "greedy"))


@dataclass(frozen=True, kw_only=True)
class DraftModelSchema:
    """Settings of drafters.draft_model; ``loader`` makes the model of ``checkpoint``."""

    _target_: str = "drafters.draft_model.DraftModelConfig"
    num_draft_tokens: int = setting(3, low=1, high=MAX_DRAFT_TOKENS)
    proposals: str = setting("sampled", choices=("sampled", "greedy"))
    checkpoint: str = MISSING
    loader: str = "experiments.hf.load_draft"
    tree_width: int = setting(0, low=0, high=16)
    tree_depth: int = setting(4, low=1, high=MAX_DRAFT_TOKENS)
    siblings: str = setting("chosen", choices=("chosen", "with_replacement", "without_replacement"))


@dataclass(frozen=True, kw_only=True)
class HeadSchema:
    """Settings of any trained head; ``loader`` makes the head of ``checkpoint``."""

    _target_: str = MISSING
    num_draft_tokens: int = setting(3, low=1, high=MAX_DRAFT_TOKENS)
    proposals: str = setting("sampled", choices=("sampled", "greedy"))
    checkpoint: str = MISSING
    loader: str = MISSING
    tree_width: int = setting(0, low=0, high=16)
    tree_depth: int = setting(4, low=1, high=MAX_DRAFT_TOKENS)


@dataclass(frozen=True, kw_only=True)
class Eagle3Schema(HeadSchema):
    """Settings of drafters.eagle3."""

    _target_: str = "drafters.eagle3.Eagle3Config"
    checkpoint: str = "embedded-eagle3"
    loader: str = "experiments.heads.load_eagle3_head"


@dataclass(frozen=True, kw_only=True)
class MedusaSchema(HeadSchema):
    """Settings of drafters.medusa."""

    _target_: str = "drafters.medusa.MedusaConfig"
    checkpoint: str = "embedded-medusa"
    loader: str = "experiments.heads.load_medusa_heads"


@dataclass(frozen=True, kw_only=True)
class OracleSchema:
    """Settings of drafters.oracle; the text to replay is the baseline's, given at build."""

    _target_: str = "drafters.oracle.OracleConfig"
    num_draft_tokens: int = setting(3, low=1, high=MAX_DRAFT_TOKENS)
    accuracy: list[float] = setting([0.8], low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class SuffixSchema:
    """Settings of drafters.suffix."""

    _target_: str = "drafters.suffix.SuffixConfig"
    num_draft_tokens: int = setting(8, low=1, high=MAX_DRAFT_TOKENS)
    max_depth: int = setting(64, low=2, high=1024)
    spec_factor: float = setting(1.0, low=0)
    spec_offset: float = setting(0.0, low=0)
    min_probability: float = setting(0.1, low=0, high=1)
    max_requests: int = setting(0, low=0)


@dataclass(frozen=True, kw_only=True)
class AdaptiveSchema:
    """Settings of drafters.adaptive; ``wrapped`` is an option of the group: drafter@drafter.wrapped=NAME."""

    _target_: str = "drafters.adaptive.AdaptiveConfig"
    wrapped: Any = MISSING
    policy: str = setting("ucb", choices=("fixed", "average", "ucb", "confidence"))
    num_draft_tokens: int = setting(3, low=1, high=MAX_DRAFT_TOKENS)
    min_draft_tokens: int = setting(1, low=0, high=MAX_DRAFT_TOKENS)
    window: int = setting(8, low=1, high=1024)
    token_cost: float = setting(0.2, low=0)
    exploration: float = setting(0.3, low=0)
    threshold: float = setting(0.4, low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class CascadeSchema:
    """Settings of drafters.cascade; drafters are options of the group, asked in the order of their names."""

    _target_: str = "drafters.cascade.CascadeConfig"
    num_draft_tokens: int = setting(3, low=1, high=MAX_DRAFT_TOKENS)
    drafters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CustomDrafterSchema:
    """A drafter from elsewhere; ``params`` and, if set, ``num_draft_tokens`` go to ``_target_``."""

    _target_: str = MISSING
    num_draft_tokens: int | None = setting(None, low=0, high=MAX_DRAFT_TOKENS)
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class VerifierSchema:
    """The rule that decides which drafted tokens are committed."""

    _target_: str = MISSING
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TypicalSchema:
    """Settings of typical acceptance, a lossy rule."""

    _target_: str = "specdec.rule_verifiers.TypicalVerifierConfig"
    epsilon: float = setting(0.09, low=0, high=1)
    delta: float = setting(0.3, low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class ThresholdSchema:
    """Settings of threshold acceptance, a lossy rule."""

    _target_: str = "specdec.rule_verifiers.ThresholdVerifierConfig"
    threshold: float = setting(0.3, low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class SamplingSchema:
    """How each request samples."""

    temperature: float = setting(0.8, low=0)
    top_k: int = setting(0, low=-1)
    top_p: float = setting(1.0, low=0, high=1)
    min_p: float = setting(0.0, low=0, high=1)
    seed: int = setting(0, low=0)
    max_new_tokens: int = setting(128, low=1)
    min_new_tokens: int = setting(0, low=0)
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = setting([], low=0)
    ignore_eos: bool = False
    repetition_penalty: float = setting(1.0, low=0.01)
    frequency_penalty: float = setting(0.0, low=-2, high=2)
    presence_penalty: float = setting(0.0, low=-2, high=2)
    logprobs: bool = False


@dataclass(frozen=True, kw_only=True)
class BuiltinSchema:
    """The prompts that ship with the project."""

    name: str = "builtin"
    limit: int | None = setting(12, low=1)


@dataclass(frozen=True, kw_only=True)
class FileSchema:
    """Prompts from a JSONL file."""

    name: str = "file"
    path: str = MISSING
    limit: int | None = setting(None, low=1)


@dataclass(frozen=True, kw_only=True)
class EngineSchema:
    """Device, sizes and timing; null stands for what the machine and the checkpoint offer."""

    device: str | None = None
    dtype: str | None = setting(None, choices=("fp32", "bf16"))
    max_batch: int = setting(1, low=1)
    max_context: int | None = setting(None, low=2)
    num_pages: int | None = setting(None, low=1)
    prefill_chunk: int = setting(512, low=1)
    batch_invariant: bool = False
    fixed_rows: int = setting(8, low=1)
    graphs: bool | None = None
    graph_batch_sizes: list[int] | None = setting(None, low=1)
    kernels: str | None = setting(None, choices=("reference", "triton", "flash_mla"))
    record_probs: bool = False
    repeats: int = setting(1, low=1)
    threads: int | None = setting(None, low=1, high=MAX_THREADS)


@dataclass(frozen=True, kw_only=True)
class JsonlSchema:
    """The run folder's own files, which have no settings."""


@dataclass(frozen=True, kw_only=True)
class WandbSchema:
    """Settings of experiments.sinks.wandb_sink; after ``timeout_s`` without an answer the run is kept offline."""

    _target_: str = "experiments.sinks.wandb_sink.WandbSink"
    mode: str = setting("offline", choices=("offline", "online"))
    project: str = "specdec"
    entity: str | None = None
    report: bool = True
    timeout_s: float = setting(15.0, low=1, high=600)


@dataclass(frozen=True, kw_only=True)
class TrackioSchema:
    """Settings of experiments.sinks.trackio_sink."""

    _target_: str = "experiments.sinks.trackio_sink.TrackioSink"
    project: str = "specdec"
    timeout_s: float = setting(60.0, low=1, high=600)


@dataclass(frozen=True, kw_only=True)
class TensorboardSchema:
    """Settings of experiments.sinks.tensorboard_sink."""

    _target_: str = "experiments.sinks.tensorboard_sink.TensorboardSink"
    timeout_s: float = setting(60.0, low=1, high=600)


@dataclass(frozen=True, kw_only=True)
class RunSchema:
    """Root of ``experiments.run``; groups are typed by the option that is chosen."""

    target: Any = MISSING
    drafter: Any = MISSING
    verifier: Any = MISSING
    sampling: Any = MISSING
    workload: Any = MISSING
    engine: Any = MISSING
    logger: Any = MISSING
    baseline: str = "auto"
    require_lossless: bool = False
    shard: str | None = None


@dataclass(frozen=True, kw_only=True)
class CertifySchema:
    """Root of ``experiments.certify``."""

    drafter: Any = MISSING
    verifier: Any = MISSING
    suite: bool = False
    verbose: bool = False
    tokens: int = setting(4, low=3, high=MAX_CERTIFIED)


SCHEMAS: dict[tuple[str, str], type] = {
    ("target", "target"): TargetSchema,
    ("drafter", "none"): NoneSchema,
    ("drafter", "ngram"): NgramSchema,
    ("drafter", "nextn"): NextnSchema,
    ("drafter", "draft_model"): DraftModelSchema,
    ("drafter", "eagle3"): Eagle3Schema,
    ("drafter", "medusa"): MedusaSchema,
    ("drafter", "oracle"): OracleSchema,
    ("drafter", "suffix"): SuffixSchema,
    ("drafter", "adaptive"): AdaptiveSchema,
    ("drafter", "cascade"): CascadeSchema,
    ("drafter", "custom"): CustomDrafterSchema,
    ("verifier", "verifier"): VerifierSchema,
    ("verifier", "typical"): TypicalSchema,
    ("verifier", "threshold"): ThresholdSchema,
    ("sampling", "sampling"): SamplingSchema,
    ("workload", "builtin"): BuiltinSchema,
    ("workload", "file"): FileSchema,
    ("engine", "engine"): EngineSchema,
    ("logger", "jsonl"): JsonlSchema,
    ("logger", "wandb"): WandbSchema,
    ("logger", "trackio"): TrackioSchema,
    ("logger", "tensorboard"): TensorboardSchema,
}

ROOTS = (RunSchema, CertifySchema)


def editable(schema: type) -> Any:
    """The schema as a node that overrides may change, although its dataclass is frozen."""
    node = OmegaConf.structured(schema)
    OmegaConf.set_readonly(node, False)
    if "params" in node:
        OmegaConf.set_struct(node.params, False)
    return node


def register() -> None:
    """Put every schema into Hydra's store, under ``schema/GROUP/NAME``; may be called again."""
    store = ConfigStore.instance()
    store.store(name="schema", node=editable(RunSchema))
    for (group, name), schema in SCHEMAS.items():
        store.store(group=f"schema/{group}", name=name, node=editable(schema))
