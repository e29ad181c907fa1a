"""Planning and attention never ask the device for a value: they run on tensors that have none."""

import pytest
import torch

from backends.deepseek_v4.backend import DeepseekV4AttentionBackend
from backends.deepseek_v4.model import DeepseekV4Model
from backends.deepseek_v4.paged import PagedPass, pass_ropes
from backends.deepseek_v4.passes import PassConfig, plan_spec, target_layout
from backends.deepseek_v4.plan import plan_forward
from backends.deepseek_v4.plan_types import EAGER, PlanShape
from backends.deepseek_v4.pool import CachePool
from backends.nextn.plan import plan_step
from specdec.api import GroupTable
from specdec.layout import RoundLayout

META = torch.device("meta")


def meta_tables(specs, num_reqs):
    return {
        spec.group_id: GroupTable(
            pages_BC=torch.zeros(num_reqs, 20, dtype=torch.int32, device=META),
            base_B=torch.zeros(num_reqs, dtype=torch.int32, device=META) if spec.is_sliding else None,
        )
        for spec in specs
    }


@pytest.mark.parametrize(
    "starts, lens, prefill, shape",
    [
        ((0,), (300,), 1, EAGER),
        ((126, 61), (4, 4), 0, EAGER),
        ((0, 126, 61), (150, 1, 3), 1, EAGER),
        ((126, 61), (4, 1), 0, PlanShape(num_tokens=8, per_token=True, constant_widths=True)),
        ((126, 61), (2, 2), 0, PlanShape(num_reqs=4, constant_widths=True, all_boundaries=True)),
    ],
)
def test_a_pass_is_planned_and_attended_without_reading_the_device(small_config, starts, lens, prefill, shape):
    passes = PassConfig(max_context=512)
    model = DeepseekV4Model(small_config).to(META)
    layout = target_layout(small_config, cache_dtype="fp32", indexer_dtype="plain").slice_layers(0, 4)
    pool = CachePool(layout, {s.group_id: 60 for s in layout.group_specs()}, device=META)
    backend = DeepseekV4AttentionBackend(plan_spec(small_config, layout, passes), pool, passes)
    round_layout = RoundLayout(
        rows=tuple(range(len(starts))), start_positions=starts, query_lens=lens, num_prefill_reqs=prefill
    )
    tables = meta_tables(layout.group_specs(), shape.num_reqs or len(starts))
    plan = plan_forward(round_layout, tables, backend.spec, device=META, shape=shape)
    ropes = pass_ropes(plan, model.window_rotary, model.compress_rotary)
    paged = PagedPass.of(plan, pool, ropes, backend.spec)
    num_tokens, config = plan.num_tokens, small_config
    q_THD = torch.zeros(num_tokens, config.num_attention_heads, config.head_dim, device=META)
    with torch.no_grad():
        for i, block in enumerate(model.layers):
            attention, selections = block.attn, ()
            paged.store_keys(i, q_THD[:, 0])
            if attention.compressor is not None:
                states_TD = torch.zeros(num_tokens, attention.compressor.state_width, device=META)
                paged.store_states(i, attention.compressor, states_TD)
            if attention.indexer is not None:
                indexer = attention.indexer
                states_TD = torch.zeros(num_tokens, indexer.compressor.state_width, device=META)
                paged.store_index_states(i, indexer.compressor, states_TD)
                q_TJD = torch.zeros(num_tokens, indexer.num_heads, indexer.head_dim, device=META)
                selections = paged.select(i, indexer, q_TJD, q_TJD[..., 0])
            out_THD = paged.attend(i, q_THD, attention.attn_sink, selections, scale=attention.scale)
            assert out_THD.shape == q_THD.shape


def test_a_draft_step_is_planned_without_reading_the_device(small_config):
    layout = target_layout(small_config, cache_dtype="fp32", indexer_dtype="plain").slice_layers(4, 5)
    spec = plan_spec(small_config, layout, PassConfig(max_context=512))
    tables = meta_tables(layout.group_specs(), 3)
    lengths_B = torch.zeros(3, dtype=torch.int64, device=META)
    plan = plan_step(lengths_B, tables["v4.swa_kv"], spec)
    assert plan.write_slots["v4.swa_kv"].shape == (3,)
