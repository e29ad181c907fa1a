"""The loader that ``target=deepseek_v4`` names: a checkpoint folder -> weights, tokenizer and caches of a run."""

from collections.abc import Mapping
from dataclasses import dataclass

from backends.deepseek_v4.cache_groups import CacheLayout
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.target import DeepseekV4Target, PassConfig, target_layout
from backends.nextn.backend import NextNBackend
from backends.nextn.config import NextNBackendConfig
from backends.nextn.load import LoadedModels, load_checkpoint
from experiments.chat import ChatFormat, choose_format
from experiments.memory import CACHE_KEYS, check_fits
from experiments.targets import LentWeights, Served, TargetRequest
from experiments.tokenizer import TextTokenizer
from specdec.api import CacheGroupSpec
from specdec.errors import CheckpointError, ConfigError


@dataclass(frozen=True, kw_only=True)
class LoadedV4:
    """Weights of a checkpoint and what belongs to them; see ``experiments.targets.LoadedTarget``."""

    models: LoadedModels
    request: TargetRequest
    tokenizer: TextTokenizer | None
    chat_format: ChatFormat
    add_bos: bool

    @property
    def max_context(self) -> int:
        return self.models.config.max_position_embeddings

    @property
    def vocab_size(self) -> int:
        return self.models.config.vocab_size

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.models.config.eos_token_ids

    @property
    def bos_id(self) -> int | None:
        return self.models.config.bos_token_id

    @property
    def cache_groups(self) -> tuple[CacheGroupSpec, ...]:
        return self._groups(0, self.models.config.num_hidden_layers)

    @property
    def draft_groups(self) -> tuple[CacheGroupSpec, ...]:
        if self.models.nextn is None:
            return ()
        layers = self.models.config.nextn_layer_ids
        return self._groups(layers[0], layers[-1] + 1)

    def serve(self, num_pages: Mapping[str, int], *, max_context: int, max_batch: int) -> Served:
        """Make the caches of target and NextN layer under the same page ids; CapacityError when they do not fit."""
        request = self.request
        check_fits(
            f"caches of {max_batch} requests of {max_context} tokens",
            self.cache_bytes(num_pages),
            request.device,
            conf=CACHE_KEYS,
        )
        target = DeepseekV4Target.build(
            self.models.target,
            num_pages,
            PassConfig(
                max_context=max_context,
                batch_invariant=request.batch_invariant,
                fixed_rows=request.fixed_rows,
                kernels=kernels_of(request),
            ),
            cache_dtype=request.cache_dtype,
            indexer_dtype=request.indexer_dtype,
        )
        if self.models.nextn is None:
            return Served(target=target)
        draft = NextNBackend.build(self.models.nextn, target, NextNBackendConfig(max_batch=max_batch))
        return Served(target=target, draft_backend=draft)

    def lend(self) -> LentWeights:
        """What a head over this model's streams borrows."""
        target, config = self.models.target, self.models.config
        return LentWeights(
            embedding=target.embed.weight,
            head=target.head.weight,
            num_layers=config.num_hidden_layers,
            num_streams=config.hc_mult,
            head_input=lambda states: target.hidden(states.unflatten(-1, (config.hc_mult, config.hidden_size))),
        )

    def cache_bytes(self, num_pages: Mapping[str, int]) -> int:
        """Bytes of the pools that ``serve`` makes: one of the target, and one of the NextN layer if there is one."""
        config = self.models.config
        layers = [(0, config.num_hidden_layers)]
        if self.models.nextn is not None:
            layers.append((config.nextn_layer_ids[0], config.nextn_layer_ids[-1] + 1))
        sizes = [self._layout(first, last).page_bytes() for first, last in layers]
        return sum(num_pages[group_id] * size for groups in sizes for group_id, size in groups.items())

    def _groups(self, first: int, last: int) -> tuple[CacheGroupSpec, ...]:
        return self._layout(first, last).group_specs()

    def _layout(self, first: int, last: int) -> CacheLayout:
        request = self.request
        layout = target_layout(self.models.config, cache_dtype=request.cache_dtype, indexer_dtype=request.indexer_dtype)
        return layout.slice_layers(first, last)


def kernels_of(request: TargetRequest) -> Kernels | None:
    """Operators of packed passes; None on a CPU, where the modules themselves are faster."""
    return None if request.device.type == "cpu" else Kernels(request.kernels or Kernels.TRITON.value)


def load(request: TargetRequest) -> LoadedV4:
    """Load the folder of ``request``; raises CheckpointError, or ConfigError for parameters that do not exist."""
    if request.folder is None:
        raise CheckpointError("target=deepseek_v4 needs a checkpoint (conf: target.checkpoint)")
    unknown = sorted(set(request.params) - {"chat_format", "add_bos"})
    if unknown:
        raise ConfigError(f"target.params: there is no {unknown[0]} (known are add_bos, chat_format)")
    models = load_checkpoint(request.folder, device=request.device, dtype=request.dtype)
    tokenizer = TextTokenizer.load(request.folder)
    return LoadedV4(
        models=models,
        request=request,
        tokenizer=tokenizer,
        chat_format=choose_format(
            request.params.get("chat_format"),
            models.architectures,
            lambda token: tokenizer is not None and tokenizer.id_of(token) is not None,
        ),
        add_bos=bool(request.params.get("add_bos", True)),
    )
