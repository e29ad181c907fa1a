"""The loaders of ``target=hf`` and ``drafter=draft_model``: a folder or GGUF file -> model, tokenizer, caches."""

from collections.abc import Mapping
from dataclasses import dataclass

from backends.hf.draft import HfDraft
from backends.hf.load import load_model
from backends.hf.model import CausalModel
from backends.hf.target import KV_GROUP, ROWS_PER_PAGE, HfPassConfig, HfTarget, RecomputeTarget
from backends.hf.trial import slot_bytes
from backends.hf.vocabulary import VocabularyMap, map_by_spelling, same_ids
from experiments.chat import ChatFormat
from experiments.chat_template import ChatTemplate
from experiments.hf_text import HfText, read_text
from experiments.memory import CACHE_KEYS, check_fits
from experiments.targets import DraftRequest, LentWeights, Served, TargetRequest
from experiments.tokenizer import TextTokenizer
from specdec.api import CacheGroupSpec, DraftBackend
from specdec.checks import one_of
from specdec.errors import CheckpointError, ConfigError, UnsupportedError

PARAMS = ("add_bos", "chat_format", "max_context", "rollback")
REFUSE, RECOMPUTE = "refuse", "recompute"
CACHE_DTYPES = {"torch.float32": ("fp32",), "torch.bfloat16": ("fp32", "bf16")}
"""What ``target.cache_dtype`` may say of a model's type: its caches hold exactly what it computes."""


@dataclass(frozen=True, kw_only=True)
class LoadedHf:
    """A model and what belongs to it; see ``experiments.targets.LoadedTarget``."""

    model: CausalModel
    text: HfText
    request: TargetRequest
    chat_format: ChatFormat | ChatTemplate
    add_bos: bool
    recompute: bool

    @property
    def max_context(self) -> int:
        return self.model.max_context

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def tokenizer(self) -> TextTokenizer | None:
        return self.text.tokenizer

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.text.eos_ids

    @property
    def bos_id(self) -> int | None:
        return self.text.bos_id

    @property
    def cache_groups(self) -> tuple[CacheGroupSpec, ...]:
        return (KV_GROUP,)

    @property
    def draft_groups(self) -> tuple[CacheGroupSpec, ...]:
        return ()

    def serve(self, num_pages: Mapping[str, int], *, max_context: int, max_batch: int) -> Served:
        """Make the target; its cache grows with the texts that it meets, up to every row at full length."""
        if self.recompute:
            return Served(target=RecomputeTarget(self.model))
        num_slots = min(max_batch * max_context, num_pages[KV_GROUP.group_id] * ROWS_PER_PAGE)
        of_requests = f"caches of {max_batch} requests of {max_context} tokens"
        check_fits(of_requests, num_slots * slot_bytes(self.model), self.model.device, conf=CACHE_KEYS)
        fixed_rows = self.request.fixed_rows if self.request.batch_invariant else None
        return Served(target=HfTarget(self.model, HfPassConfig(max_rows=max_batch, fixed_rows=fixed_rows)))

    def lend(self) -> LentWeights:
        """What a head over this model's states borrows; the last state has gone through the final norm."""
        model = self.model.model
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        if embedding is None or head is None:
            raise UnsupportedError(f"{self.model.name} has no embedding or no head that a draft head could borrow")
        return LentWeights(
            embedding=embedding.weight,
            head=head.weight,
            num_layers=self.model.num_layers,
            num_streams=1,
            head_input=lambda states: states,
        )


def load(request: TargetRequest) -> LoadedHf:
    """Load the folder of ``request``.

    Raises CheckpointError, UnsupportedError for a model that cannot be a target, or ConfigError for parameters that do
    not exist.
    """
    if request.folder is None:
        raise CheckpointError("target=hf needs a checkpoint: a folder, or smollm2 (conf: target.checkpoint)")
    unknown = sorted(set(request.params) - set(PARAMS))
    if unknown:
        raise ConfigError(f"target.params: there is no {unknown[0]} (known are {', '.join(PARAMS)})")
    rollback = request.params.get("rollback", REFUSE)
    one_of("rollback", rollback, (REFUSE, RECOMPUTE), where="target.params.rollback")
    _check_caches(request, recompute=rollback == RECOMPUTE)
    text = read_text(request.folder)
    return LoadedHf(
        model=load_model(
            request.folder,
            device=request.device,
            dtype=request.dtype,
            max_context=request.params.get("max_context"),
            recompute=rollback == RECOMPUTE,
        ),
        text=text,
        request=request,
        chat_format=text.chat_format(request.params.get("chat_format")),
        add_bos=bool(request.params.get("add_bos", text.add_bos)),
        recompute=rollback == RECOMPUTE,
    )


def load_draft(request: DraftRequest) -> DraftBackend:
    """The draft model of a drafter, its vocabulary mapped to the target's; raises SpecDecError."""
    if request.folder is None:
        raise CheckpointError("drafter=draft_model needs a model: a folder, or smollm2 (conf: drafter.checkpoint)")
    model = load_model(request.folder, device=request.device, dtype=request.dtype)
    if model.max_context < request.max_context:
        raise ConfigError(
            f"the draft model {model.name} reads at most {model.max_context} tokens, requests may have "
            f"{request.max_context}: limit them to {model.max_context} (conf: engine.max_context)"
        )
    vocabulary = vocabulary_map(request, model, read_text(request.folder))
    size = request.max_batch * request.max_context * slot_bytes(model)
    check_fits("caches of the draft model", size, model.device, conf=CACHE_KEYS)
    return HfDraft(model, vocabulary, max_rows=request.max_batch)


def vocabulary_map(request: DraftRequest, model: CausalModel, text: HfText) -> VocabularyMap:
    """By spelling where both have a tokenizer, else by id; raises ConfigError when that cannot be known."""
    theirs = request.tokenizer.ids if isinstance(request.tokenizer, TextTokenizer) else None
    ours = None if text.tokenizer is None else text.tokenizer.ids
    if theirs is not None and ours is not None and theirs != ours:
        return map_by_spelling(
            theirs,
            ours,
            target_size=request.vocab_size,
            draft_size=model.vocab_size,
            filler_id=text.eos_ids[0] if text.eos_ids else 0,
            device=model.device,
        )
    if (theirs is None) != (ours is None) and request.vocab_size != model.vocab_size:
        raise ConfigError(
            f"target and draft model have {request.vocab_size} and {model.vocab_size} tokens, and only one of them has "
            f"a tokenizer that says which (conf: drafter.checkpoint)"
        )
    return same_ids(target_size=request.vocab_size, draft_size=model.vocab_size, device=model.device)


def _check_caches(request: TargetRequest, *, recompute: bool) -> None:
    allowed = CACHE_DTYPES[str(request.dtype)]
    if request.cache_dtype not in allowed:
        raise UnsupportedError(
            f"target=hf caches what the model computes ({str(request.dtype).removeprefix('torch.')}): "
            f"target.cache_dtype={request.cache_dtype} is for DeepSeek-V4; set {allowed[-1]} or leave it out"
        )
    if recompute and request.batch_invariant:
        raise UnsupportedError(
            "target.params.rollback=recompute runs texts of every length, so engine.batch_invariant cannot hold"
        )
