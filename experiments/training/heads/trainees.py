"""Trainees: a head of each kind behind one face, so that loop, loss and evaluation know none of them.

``drafts`` gives for depth j = 1.. logits [B, L - 1, X] whose slot i predicts token i + 2, teacher-forced with the text
at every depth; slots below j - 1 hold nothing of meaning.
"""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from backends.deepseek_v4.initialise import initialise
from backends.deepseek_v4.weights.files import CONFIG, read_json
from backends.eagle3.config import NUM_LAYERS_READ, Eagle3Config, default_layers
from backends.eagle3.dense import dense_eagle3, shift
from backends.eagle3.model import Eagle3Model
from backends.eagle3.weights import borrowed, check_target, load_eagle3, save_eagle3
from backends.medusa.model import HeadInput, MedusaConfig, MedusaModel
from backends.medusa.weights import load_medusa, save_medusa
from backends.nextn.dense import dense_nextn
from drafters.eagle3 import Eagle3Config as Eagle3Drafting
from drafters.medusa import MedusaConfig as MedusaDrafting
from drafters.nextn import NextnConfig
from experiments.deepseek_v4 import LoadedV4
from experiments.heads import target_part
from experiments.targets import LoadedTarget
from experiments.training.architecture import Models
from experiments.training.export import TOKENIZER, export_checkpoint, load_stored
from experiments.training.heads.config import HeadTrainerConfig
from experiments.training.heads.frozen import FrozenTarget
from specdec.api import LAST_LAYER, DrafterConfig
from specdec.errors import ConfigError, UnsupportedError

HEAD_WIDTH = 64
MIXED_IN = 0.3
"""Size of the random part of fused states when training begins."""
SMALLEST_SIZE = 0.1
"""A channel below this size is not enlarged further."""


class Trainee(Protocol):
    """A head in training.

    layers        target layers whose states it is given, side by side
    module        what is trained: its parameters that require a gradient
    target_ids_X  int64 target id of each id that it predicts; None: all of them
    """

    layers: tuple[int, ...]
    module: nn.Module
    target_ids_X: torch.Tensor | None

    def begin(self, states_TX: torch.Tensor, last_states_TX: torch.Tensor) -> None:
        """Scale first values to the states that the head reads, and the last states, of some text."""

    def drafts(self, states: torch.Tensor, tokens_BL: torch.Tensor, depth: int) -> list[torch.Tensor]:
        """Logits float32 of depths 1..``depth``; ``states`` [B, L, X] of ``layers``."""

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the head; afterwards this one has the values that were stored."""

    def drafting(self, folder: Path, num_draft_tokens: int) -> DrafterConfig:
        """How to draft with what was saved."""


def check_trainee(config: HeadTrainerConfig, loaded: LoadedTarget, target: FrozenTarget) -> None:
    """Raise SpecDecError for a head that this target cannot have; called before the target has written any text."""
    if config.kind == "nextn" and not isinstance(loaded, LoadedV4):
        raise UnsupportedError("trainer=nextn trains the NextN layer of a DeepSeek-V4 checkpoint (target=deepseek_v4)")
    if config.kind == "eagle3":
        _eagle3_config(config, target, draft_vocab_size=target.lent.head.shape[0], max_context=loaded.max_context)


def make_trainee(
    config: HeadTrainerConfig,
    loaded: LoadedTarget,
    target: FrozenTarget,
    *,
    vocabulary: torch.Tensor | None,
    folder: Path | None,
) -> Trainee:
    """The trainee of ``config.kind``, with first values that depend on the seed.

    vocabulary  int64 target ids that it shall predict, ascending; None: all of them
    folder      of the target's checkpoint
    """
    torch.manual_seed(config.seed)
    if config.kind == "eagle3":
        return Eagle3Trainee.fresh(config, target, vocabulary, max_context=loaded.max_context)
    if config.kind == "medusa":
        return MedusaTrainee.fresh(config, target)
    assert isinstance(loaded, LoadedV4) and folder is not None, "see check_trainee"
    return NextnTrainee(config, loaded, folder)


def stored_trainee(config: HeadTrainerConfig, target: FrozenTarget, folder: Path) -> Trainee:
    """The head of a folder with its values in float32; raises SpecDecError for one that is not for this target."""
    lent, values = target.lent, {"device": target.lent.head.device, "dtype": torch.float32}
    if config.kind == "eagle3":
        head = load_eagle3(folder, target_part(lent), **values)
        return Eagle3Trainee(head, lent.head_input)
    heads = load_medusa(folder, head=lent.head, **values)
    if config.depth > heads.config.num_heads:
        raise ConfigError(
            f"depth must be at most {heads.config.num_heads}, one per Medusa head of {folder}, got {config.depth} "
            "(conf: trainer.depth)"
        )
    return MedusaTrainee(heads, lent.head_input)


def _eagle3_config(
    config: HeadTrainerConfig, target: FrozenTarget, *, draft_vocab_size: int, max_context: int
) -> Eagle3Config:
    """Sizes of the head; raises SpecDecError for layers that the target does not have."""
    shape, lent = config.shape, target.lent
    width = lent.embedding.shape[1]
    heads = shape.num_attention_heads or max(width // HEAD_WIDTH, 1)
    head_config = Eagle3Config(
        vocab_size=lent.head.shape[0],
        draft_vocab_size=draft_vocab_size,
        hidden_size=width,
        target_hidden_size=width if shape.streams == "mean" else target.width,
        intermediate_size=shape.intermediate_size or 2 * width,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=max(width // heads // 2 * 2, 2),
        max_position_embeddings=max_context,
        hidden_layers=shape.layers or default_layers(lent.num_layers),
    )
    check_target(head_config, target_part(lent))
    return head_config


class Eagle3Trainee:
    """An EAGLE-3 head; ``head_input`` is the target's."""

    def __init__(self, module: Eagle3Model, head_input: HeadInput) -> None:
        self.module, self._head_input = module, head_input
        self.layers = module.config.hidden_layers
        self.target_ids_X = module.target_ids_X if module.config.is_reduced else None

    @classmethod
    def fresh(
        cls, config: HeadTrainerConfig, target: FrozenTarget, vocabulary: torch.Tensor | None, *, max_context: int
    ) -> "Eagle3Trainee":
        """One whose own head begins as the target's, cut to the draft vocabulary."""
        lent = target.lent
        size = lent.head.shape[0] if vocabulary is None else len(vocabulary)
        head_config = _eagle3_config(config, target, draft_vocab_size=size, max_context=max_context)
        module = Eagle3Model(head_config, borrowed(lent.embedding)).to(lent.embedding.device)
        head = lent.head
        if vocabulary is not None:
            vocabulary = vocabulary.to(lent.embedding.device)
            module.choose_vocabulary(vocabulary)
            head = head[vocabulary]
        with torch.no_grad():
            module.lm_head.weight.copy_(head)
            for small in (module.midlayer.self_attn.o_proj, module.midlayer.mlp.down_proj):
                small.weight.mul_(0.5)
        return cls(module, lent.head_input)

    @torch.no_grad()
    def begin(self, states_TX: torch.Tensor, last_states_TX: torch.Tensor) -> None:
        """Fused states begin as those of the highest layer with a little of all, of size one.

        The final norm begins so that they enter the head in the size, channel by channel, that the target gives it.
        Measured on the embedded checkpoint: 40 steps lead to 3.6 nats at depth 1, from random fused states to 3.9.
        """
        model, width = self.module, self.module.config.hidden_size
        num_streams = model.config.target_hidden_size // width
        mixed = model.fc.weight.clone().mul_(MIXED_IN / model.fuse(states_TX).square().mean().sqrt())
        highest = torch.zeros_like(mixed).view(width, NUM_LAYERS_READ, num_streams, width)
        highest[:, -1] = torch.eye(width, device=mixed.device)[:, None] / num_streams
        model.fc.weight.copy_(highest.flatten(1))
        model.fc.weight.div_(model.fuse(states_TX).square().mean().sqrt()).add_(mixed)
        fused_TD = torch.nn.functional.rms_norm(model.fuse(states_TX), (width,))
        wanted, given = (x.float().square().mean(0).sqrt() for x in (self._head_input(last_states_TX), fused_TD))
        model.norm.weight.copy_(wanted / given.clamp_min(SMALLEST_SIZE))

    def drafts(self, states: torch.Tensor, tokens_BL: torch.Tensor, depth: int) -> list[torch.Tensor]:
        """See ``Trainee``."""
        own = dense_eagle3(self.module, states[:, :-1], tokens_BL[:, 1:], depth=depth)
        return [self.module.logits(each) for each in own]

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """In the common safetensors layout."""
        save_eagle3(self.module, folder, dtype=dtype)
        _round(self.module, dtype)

    def drafting(self, folder: Path, num_draft_tokens: int) -> DrafterConfig:
        """See ``Trainee``."""
        return Eagle3Drafting(num_draft_tokens=num_draft_tokens, checkpoint=str(folder))


class MedusaTrainee:
    """Medusa heads; ``head_input`` is the target's."""

    layers = (LAST_LAYER,)
    target_ids_X = None

    def __init__(self, module: MedusaModel, head_input: HeadInput) -> None:
        self.module, self._head_input = module, head_input

    @classmethod
    def fresh(cls, config: HeadTrainerConfig, target: FrozenTarget) -> "MedusaTrainee":
        """Heads that begin as the target's own."""
        vocab_size, width = target.lent.head.shape
        shape = MedusaConfig(
            vocab_size=vocab_size, hidden_size=width, num_heads=config.depth, num_blocks=config.shape.num_blocks
        )
        module = MedusaModel(shape).to(target.lent.head.device)
        module.begin_as(target.lent.head)
        return cls(module, target.lent.head_input)

    def begin(self, states_TX: torch.Tensor, last_states_TX: torch.Tensor) -> None:
        """Nothing to scale."""

    def drafts(self, states: torch.Tensor, tokens_BL: torch.Tensor, depth: int) -> list[torch.Tensor]:
        """See ``Trainee``; depth j at slot i reads the state j - 1 slots before."""
        with torch.no_grad():
            head_inputs = self._head_input(states[:, :-1])
        return [self.module.logits(shift(head_inputs, number), number) for number in range(depth)]

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Under the public names."""
        save_medusa(self.module, folder, dtype=dtype)
        _round(self.module, dtype)

    def drafting(self, folder: Path, num_draft_tokens: int) -> DrafterConfig:
        """See ``Trainee``."""
        return MedusaDrafting(num_draft_tokens=num_draft_tokens, checkpoint=str(folder))


class NextnTrainee:
    """The NextN layer of a V4 checkpoint; the target's own parameters stay as they are."""

    layers = (LAST_LAYER,)
    target_ids_X = None

    def __init__(self, config: HeadTrainerConfig, loaded: LoadedV4, folder: Path) -> None:
        models = loaded.models
        if models.nextn is None:
            raise UnsupportedError(
                "this checkpoint has no NextN layer to train: train one with it (trainer=v4_nextn), or another kind of "
                "head (trainer=eagle3, trainer=medusa)"
            )
        self._models = Models(target=models.target, nextn=models.nextn)
        self._folder = folder
        self.module = models.nextn
        if config.shape.fresh:
            device = models.target.embed.weight.device
            initialise(self.module, models.config, torch.Generator(device=device).manual_seed(config.seed))
        for name, parameter in self.module.named_parameters():
            # The router's bias balances loads and has no gradient.
            parameter.requires_grad_(not name.endswith("gate.bias"))

    def begin(self, states_TX: torch.Tensor, last_states_TX: torch.Tensor) -> None:
        """Nothing to scale."""

    def drafts(self, states: torch.Tensor, tokens_BL: torch.Tensor, depth: int) -> list[torch.Tensor]:
        """See ``Trainee``."""
        target, config = self._models.target, self._models.config
        streams = states[:, :-1].unflatten(-1, (config.hc_mult, config.hidden_size))
        own = dense_nextn(self.module, target.embed, streams, tokens_BL[:, 1:], depth=depth)
        return [self.module.logits(each, target.head) for each in own]

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """A whole checkpoint in the official storage: the target as it was, and this layer."""
        export_checkpoint(self._models, read_json(self._folder / CONFIG), self._folder / TOKENIZER, folder)
        self.module.requires_grad_(False)
        load_stored(self._models, folder)

    def drafting(self, folder: Path, num_draft_tokens: int) -> DrafterConfig:
        """See ``Trainee``."""
        return replace(NextnConfig(), num_draft_tokens=num_draft_tokens)


@torch.no_grad()
def _round(module: nn.Module, dtype: torch.dtype) -> None:
    """Give trained parameters the values that storing as ``dtype`` leaves."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.copy_(parameter.to(dtype))
