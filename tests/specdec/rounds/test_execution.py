"""Whether rounds are recorded, by target and configuration; a device needs not exist to be judged."""

import pytest
import torch

from specdec.engine_config import EngineConfig
from specdec.errors import ConfigError
from specdec.rounds.execution import choose_graphs
from specdec.testing import TableTarget


class TargetOnCuda(TableTarget):
    """A target that can be recorded and says that it lies on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cuda")


@pytest.mark.parametrize("kernels", [None, "triton", "flash_mla"])
def test_rounds_are_recorded_on_a_gpu_unless_told_otherwise(kernels: str | None) -> None:
    target = TargetOnCuda()
    assert choose_graphs(EngineConfig(kernels=kernels), target).enabled
    choice = choose_graphs(EngineConfig(kernels=kernels, graphs=False), target)
    assert not choice.enabled and choice.why == "engine.graphs=false"


def test_reference_operators_are_not_recorded_on_a_gpu() -> None:
    target = TargetOnCuda()
    choice = choose_graphs(EngineConfig(kernels="reference"), target)
    assert not choice.enabled
    assert choice.why == "engine.graphs=null and engine.kernels=reference reads from the device within a pass"
    with pytest.raises(ConfigError, match="engine.graphs=true cannot work: engine.kernels=reference reads"):
        choose_graphs(EngineConfig(kernels="reference", graphs=True), target)


def test_reference_operators_are_recorded_where_a_recording_is_the_function_itself() -> None:
    assert choose_graphs(EngineConfig(kernels="reference", graphs=True), TableTarget()).enabled
