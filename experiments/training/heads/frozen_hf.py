"""A transformers target as training sees it; see ``experiments.training.heads.frozen``."""

import torch

from backends.hf.model import CausalModel
from experiments.hf import LoadedHf
from experiments.targets import Lender
from experiments.training.heads.frozen import FrozenTarget
from specdec.api import LAST_LAYER
from specdec.errors import UnsupportedError

PROBE_TOKENS = 6
TOLERANCE = 2e-2


def hf_target(loaded: Lender) -> FrozenTarget:
    """Raises UnsupportedError for other targets, and for a model that does more than a product after its last state."""
    if not isinstance(loaded, LoadedHf):
        raise UnsupportedError("heads are trained for targets hf and deepseek_v4")
    causal = loaded.model

    def states(tokens_BL: torch.Tensor, layers: tuple[int, ...]) -> torch.Tensor:
        hidden = causal.uncached(tokens_BL, columns=[0], hidden_layers=layers).hidden_BQD
        assert hidden is not None, "layers were asked for"
        return hidden

    target = FrozenTarget(states=states, lent=loaded.lend())
    _check_head(causal, target)
    return target


@torch.no_grad()
def _check_head(causal: CausalModel, target: FrozenTarget) -> None:
    probe = torch.arange(PROBE_TOKENS, device=causal.device)[None] % causal.vocab_size
    expected = causal.uncached(probe, columns=range(PROBE_TOKENS)).logits_BCV.float()
    found = target.logits(target.states(probe, (LAST_LAYER,)))
    if float((found - expected).abs().max()) > TOLERANCE * float(expected.abs().max()):
        raise UnsupportedError(
            f"{causal.name} does more than a linear head after its last state; heads cannot imitate it"
        )
