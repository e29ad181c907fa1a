"""The loaders of ``drafter=eagle3`` and ``drafter=medusa``: heads over states of the target that they were made for."""

from backends.eagle3.backend import Eagle3Backend
from backends.eagle3.weights import TargetPart, load_eagle3
from backends.medusa.backend import MedusaBackend
from backends.medusa.weights import load_medusa
from backends.packed_linears import pack_linears
from experiments.memory import CACHE_KEYS, check_fits
from experiments.targets import DraftRequest, LentWeights
from specdec.errors import CheckpointError, ConfigError, UnsupportedError


def load_eagle3_head(request: DraftRequest) -> Eagle3Backend:
    """The head of ``request.folder`` over its target; raises SpecDecError."""
    lent = _lent(request, "eagle3")
    assert request.folder is not None
    model = load_eagle3(request.folder, target_part(lent), device=request.device, dtype=request.dtype)
    config = model.config
    if config.max_position_embeddings < request.max_context:
        raise ConfigError(
            f"the EAGLE-3 head was made for texts of {config.max_position_embeddings} tokens, requests may have "
            f"{request.max_context}: limit them to {config.max_position_embeddings} (conf: engine.max_context)"
        )
    slot = 2 * config.num_key_value_heads * config.head_dim * model.fc.weight.element_size()
    size = request.max_batch * request.max_context * slot
    check_fits("caches of the EAGLE-3 head", size, request.device, conf=CACHE_KEYS)
    pack_linears(model)
    return Eagle3Backend(
        model,
        target_hidden_size=lent.embedding.shape[1],
        num_streams=lent.num_streams,
        max_rows=request.max_batch,
    )


def load_medusa_heads(request: DraftRequest) -> MedusaBackend:
    """The heads of ``request.folder`` over their target; raises SpecDecError."""
    lent = _lent(request, "medusa")
    assert request.folder is not None
    model = load_medusa(request.folder, head=lent.head, device=request.device, dtype=request.dtype)
    pack_linears(model)
    return MedusaBackend(model, lent.head_input)


def target_part(lent: LentWeights) -> TargetPart:
    """What an EAGLE-3 head is checked against."""
    return TargetPart(embedding=lent.embedding, head=lent.head, num_layers=lent.num_layers)


def _lent(request: DraftRequest, drafter: str) -> LentWeights:
    if request.folder is None:
        raise CheckpointError(f"drafter={drafter} needs the folder of a head (conf: drafter.checkpoint)")
    if request.lent is None:
        raise UnsupportedError(
            f"drafter={drafter} reads a target's states and borrows its embedding; this target lends neither "
            "(targets hf and deepseek_v4 do)"
        )
    return request.lent
