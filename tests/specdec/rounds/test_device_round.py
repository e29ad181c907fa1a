"""The function that is recorded: it runs without reading a value, and its result has the columns that it names."""

import pytest
import torch

from drafters.nextn import NextnConfig
from drafters.ngram import NgramConfig
from drafters.none import NoneConfig
from specdec.api import DraftSetup
from specdec.cache.tables import BlockTables
from specdec.noise import VocabularyNoise
from specdec.rounds.arena import RoundArena
from specdec.rounds.device_round import RoundTensors, most_columns, run_device_round
from specdec.rounds.parts import RoundParts
from specdec.rule_verifiers import BlockVerifier, TypicalVerifierConfig
from specdec.sampling import BatchSampling, SamplingRequest
from specdec.sampling_params import SamplingParams
from specdec.testing import TableDraft, TableTarget
from specdec.verifiers import GreedyVerifier, GumbelVerifier

V = 13
META = torch.device("meta")
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8),
    SamplingParams(top_k=3, top_p=0.9, repetition_penalty=1.2, presence_penalty=0.1, min_new_tokens=3, logprobs=True),
)


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled", "everything"])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    "verifier", [GreedyVerifier(), GumbelVerifier(), BlockVerifier(), TypicalVerifierConfig().build()]
)
@pytest.mark.parametrize("drafter", [NextnConfig(num_draft_tokens=3), NgramConfig(), NoneConfig()])
def test_a_device_round_never_reads_the_device(drafter, verifier, width: int, params: SamplingParams) -> None:
    """It runs on tensors that have no values."""
    target = TableTarget(device=META)
    setup = DraftSetup(device=META, vocab_size=V, max_batch=2, max_context=96, draft_backend=TableDraft(target))
    noise = VocabularyNoise(V, device=META)
    live = drafter.build(setup)
    tables = BlockTables(
        target.cache_groups, {spec.group_id: 5 for spec in target.cache_groups}, max_rows=2, device=META
    )
    asked = [SamplingRequest(params=params, stream=i, tokens=[], num_prompt=0, stop_ids=(3,)) for i in range(2)]
    sampling = BatchSampling(asked, noise=noise, coupling=verifier.coupling, follows=False)
    arena = RoundArena(2, width, sink_row=tables.sink_row, device=META)
    laws_BKV = torch.zeros(2, 3, V, device=META)
    for has_laws, record in ((False, False), (True, False), (False, True), (True, True)):
        parts = RoundParts(target=target, drafter=live, verifier=verifier, noise=noise, record_probs=record)
        tensors = RoundTensors(arena=arena, sampling=sampling, has_laws=has_laws, laws=lambda: laws_BKV)
        result = run_device_round(parts, tables, tensors)
        drafts = 4 if isinstance(drafter, NextnConfig) else 0
        floats = dict(result.floats)
        assert ("target_probs" in floats) == (record and width > 1)
        assert ("draft_probs" in floats) == (record and has_laws and width > 1)
        assert all(size == (width if name == "logprobs" else width - 1) for name, size in floats.items())
        assert result.num_integers == 1 + width + drafts
        assert result.result_BX.shape == (2, result.num_integers + sum(floats.values()))
        assert result.num_columns <= most_columns(width, 3)
        assert result.result_BX.dtype == torch.int64
