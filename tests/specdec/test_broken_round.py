"""A round that an error or Ctrl-C breaks off: what had finished is whole, and the engine refuses to go on."""

import pytest

from drafters.nextn import NextnConfig, NextnDrafter
from specdec.api import DraftSetup
from specdec.engine import Engine, EngineConfig
from specdec.errors import MetadataError
from specdec.request import Request
from specdec.sampling_params import SamplingParams
from specdec.testing import TableDraft, TableTarget
from specdec.verifiers import RejectionVerifier


class Fault:
    """Raises at the call with a set number."""

    def __init__(self, error: type[BaseException], call: int) -> None:
        self.error, self.left = error, call

    def happen(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error("broken off")


class FaultyDrafter(NextnDrafter):
    fault: Fault

    def propose(self, inputs):
        self.fault.happen()
        return super().propose(inputs)


class FaultyVerifier(RejectionVerifier):
    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self._fault = fault

    def judge(self, logits_BNV, proposal, sampling, positions_B):
        verdict = super().judge(logits_BNV, proposal, sampling, positions_B)
        self._fault.happen()
        return verdict


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["drafter", "verifier"])
def test_what_had_finished_is_whole_and_nothing_else_goes_on(where: str, error: type, graphs: bool) -> None:
    target, fault, never = TableTarget(), Fault(error, 12), Fault(error, 0)
    backend = TableDraft(target)
    setup = DraftSetup(device=target.device, vocab_size=13, max_batch=2, max_context=96, draft_backend=backend)
    drafter = FaultyDrafter(NextnConfig(), setup.draft_backend)
    drafter.fault = fault if where == "drafter" else never
    verifier = FaultyVerifier(fault if where == "verifier" else never)
    config = EngineConfig(max_batch=2, graphs=graphs)
    engine = Engine(target, drafter, verifier, config, draft_groups=backend.cache_groups)
    for name, count in (("short", 5), ("long", 60)):
        sampling = SamplingParams(max_new_tokens=count, frequency_penalty=0.5)
        engine.add(Request(request_id=name, prompt=(1, 2), sampling=sampling))
    with pytest.raises(error, match="broken off"):
        engine.run()
    with pytest.raises(MetadataError, match="broken off .* make a new engine"):
        engine.run_round()
    (output,) = engine.take_outputs()
    assert output.request_id == "short"
    assert output.output_ids[1:] == tuple(token for step in output.steps for token in step.output_ids)
    assert engine.take_outputs() == []
