"""Rows 78 and 79 of the contract: one selection serves the prompt and the decode rows of a mixed pass."""

import pytest
import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.forward_inputs import ForwardInputs
from backends.deepseek_v4.indexer import Indexer, select_topk
from backends.deepseek_v4.paged import PagedPass, PassRopes
from backends.deepseek_v4.rope import Rope
from specdec.layout import ForwardMode

CSA_LAYER, HEADS, INDEX_DIM = 1, 4, 128
LENGTHS = (300, 290, 280)


@pytest.fixture
def backend(small):
    backend = small.backend()
    backend.pool.index_keys(CSA_LAYER)[1:].normal_()
    return backend


@pytest.fixture
def indexer():
    config = DeepseekV4Config(
        vocab_size=16,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        head_dim=64,
        qk_rope_head_dim=16,
        q_lora_rank=4,
        o_groups=1,
        o_lora_rank=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=4,
        compress_ratios=(4, 0),
        sliding_window=16,
        index_n_heads=HEADS,
        index_head_dim=INDEX_DIM,
        index_topk=4,
    )
    return Indexer(config)


def mixed_metadata(backend, small):
    """One prompt token, then two decode rows."""
    inputs = ForwardInputs(
        mode=ForwardMode.MIXED,
        rows=(0, 1, 2),
        seq_lens=LENGTHS,
        tables=small.tables(backend.pool.layout.group_specs(), LENGTHS),
        num_extends=1,
        extend_lens=(1,),
    )
    return backend.init_forward_metadata(inputs)


def select(backend, plan, indexer, q_TJD, weights_TJ):
    """Selected rows [T, k] of a pass."""
    still = Rope(cos=torch.ones(plan.num_tokens, 8), sin=torch.zeros(plan.num_tokens, 8))
    ropes = PassRopes(window=still, compress=still, entries={})
    paged = PagedPass.of(plan, backend.pool, ropes, backend.spec)
    assert paged.selects
    parts = paged.select(CSA_LAYER, indexer, q_TJD, weights_TJ)
    assert len(parts) == len(plan.segments)
    return torch.cat([part.flatten(0, 1) for part in parts])


def test_row_78_a_mixed_batch_is_one_selection_of_all_its_rows(backend, indexer, small):
    plan = mixed_metadata(backend, small).plan
    assert (plan.num_tokens, plan.num_prefill_tokens) == (3, 1)
    q_TJD, weights_TJ = torch.randn(3, HEADS, INDEX_DIM), torch.rand(3, HEADS)
    chosen = select(backend, plan, indexer, q_TJD, weights_TJ)
    keys = backend.pool.index_keys(CSA_LAYER).flatten(0, 1)
    rows_per_page = backend.spec.rows_per_page("v4.c4a.compressed_kv")
    pages_BC = small.tables(backend.pool.layout.group_specs(), LENGTHS)["v4.c4a.compressed_kv"].pages_BC
    for token, length in enumerate(LENGTHS):
        rows = torch.arange(length // AttentionKind.CSA.ratio)
        slots = pages_BC[token].long()[rows // rows_per_page] * rows_per_page + rows % rows_per_page
        scores_1N = indexer.scores(q_TJD[token : token + 1], weights_TJ[token : token + 1], keys[slots])
        want = select_topk(scores_1N, small.topk, torch.ones_like(scores_1N, dtype=torch.bool))
        assert chosen[token].tolist() == want[0].tolist()


def test_row_79_the_selection_of_a_mixed_pass_is_that_of_its_parts(backend, indexer, small):
    metadata = mixed_metadata(backend, small)
    q_TJD, weights_TJ = torch.randn(3, HEADS, INDEX_DIM), torch.rand(3, HEADS)
    whole = select(backend, metadata.plan, indexer, q_TJD, weights_TJ)
    for reqs, tokens in ((range(0, 1), slice(0, 1)), (range(1, 3), slice(1, 3))):
        part = backend.slice_metadata(metadata, reqs).plan
        assert part.mode is (ForwardMode.EXTEND if reqs.start == 0 else ForwardMode.DECODE)
        assert select(backend, part, indexer, q_TJD[tokens], weights_TJ[tokens]).equal(whole[tokens])
