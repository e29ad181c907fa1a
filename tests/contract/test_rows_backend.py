"""Rows 25 to 39, 47, 53 and 62 of the contract: metadata of eager passes and the attention entry points."""

import pytest
import torch

from backends.deepseek_v4.backend import split_selection
from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.forward_inputs import ForwardInputs, layout_of
from backends.deepseek_v4.plan import plan_forward
from backends.deepseek_v4.plan_types import Reach
from backends.deepseek_v4.segments import AttentionInput
from backends.nextn.plan import plan_step
from specdec.errors import MetadataError
from specdec.layout import ForwardMode, RoundLayout

CPU = torch.device("cpu")
SWA = "v4.swa_kv"
HEADS, DIM, TOPK = 2, 64, 4


def test_row_25_eager_decode_keeps_compact_tables_as_given(small):
    backend = small.backend(ratios=(0,))
    metadata = backend.init_forward_metadata(small.window([129, 70], [[10, 11], [20, -1]], [1, 1]))
    assert metadata.swa_table.pages_BC.tolist() == [[10, 11], [20, -1]]
    assert metadata.swa_table.base_B.tolist() == [1, 1]
    assert metadata.plan.write_slots[SWA].tolist() == [11 * 64, 20 * 64 + 5]


def test_row_26_tables_are_found_by_their_meaning(small):
    backend = small.backend()
    bases = {
        SWA: [3, 4],
        "v4.c4a.compressor_state": [5, 6],
        "v4.c128a.compressor_state": [5, 6],
        "v4.c4a.indexer_compressor_state": [7, 8],
    }
    tables = small.tables(backend.pool.layout.group_specs(), [300, 400], bases=bases)
    tables["someone.elses"] = tables[SWA]
    metadata = backend.init_forward_metadata(small.decode([300, 400], tables=tables))
    assert metadata.swa_table.base_B.tolist() == [3, 4]
    assert metadata.state_table(AttentionKind.CSA).base_B.tolist() == [5, 6]
    assert metadata.state_table(AttentionKind.HCA).base_B.tolist() == [5, 6]
    assert metadata.index_state_table.base_B.tolist() == [7, 8]
    assert metadata.compressed_table(AttentionKind.CSA).base_B is None
    del tables["v4.c128a.compressed_kv"]
    with pytest.raises(MetadataError, match="missing paged-cache block table of group v4.c128a.compressed_kv"):
        backend.init_forward_metadata(small.decode([300, 400], tables=tables))


def test_row_27_a_slice_starts_from_zero_and_takes_its_rows_of_every_table(small):
    backend = small.backend()
    specs = backend.pool.layout.group_specs()
    bases = {s.group_id: [0, 1, 2] for s in specs if s.is_sliding}
    tables = small.tables(specs, [200, 210, 220], bases=bases)
    inputs = ForwardInputs(
        mode=ForwardMode.EXTEND, rows=(0, 1, 2), seq_lens=(200, 210, 220), tables=tables, extend_lens=(2, 1, 3)
    )
    metadata = backend.init_forward_metadata(inputs)
    part = backend.slice_metadata(metadata, range(1, 3))
    assert part.layout.token_reqs == (0, 1, 1, 1)
    assert part.layout.query_starts == (0, 1, 4)
    assert part.layout.num_prefill_reqs == 2
    for group_id, table in part.tables.items():
        assert table.pages_BC.equal(tables[group_id].pages_BC[1:3])
        if table.base_B is not None:
            assert table.base_B.tolist() == [1, 2]
    for group_id, slots_T in part.plan.write_slots.items():
        assert slots_T.equal(metadata.plan.write_slots[group_id][2:])


def test_row_29_a_mixed_pass_without_speculation_has_single_decode_tokens(small):
    layout = layout_of(small.mixed([7, 10, 4], num_extends=1, extend_lens=(7,)))
    assert layout.query_lens == (7, 1, 1)
    assert (layout.num_prefill_reqs, layout.num_prefill_tokens) == (1, 7)
    assert layout.num_tokens - layout.num_prefill_tokens == 2
    assert layout.token_reqs == (0,) * 7 + (1, 2)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_row_30_a_mixed_pass_uses_the_verify_width(small, width):
    prefill = 8192 - 2 * width
    inputs = small.mixed(
        [prefill, 100, 200], num_extends=1, extend_lens=(prefill,), verify_width=width, num_tokens=8192
    )
    layout = layout_of(inputs)
    assert layout.query_lens == (prefill, width, width)
    assert layout.query_starts == (0, prefill, prefill + width, 8192)
    assert layout.token_reqs[-2 * width :] == (1,) * width + (2,) * width


def test_row_31_a_mixed_pass_with_another_token_count_is_refused(small):
    inputs = small.mixed([7, 20], num_extends=1, extend_lens=(7,), verify_width=4, num_tokens=10)
    with pytest.raises(MetadataError, match="mixed metadata token count mismatch.* 11 tokens, 10"):
        layout_of(inputs)


def test_row_32_a_mixed_pass_splits_into_prompt_and_decode_rows(small):
    inputs = small.mixed([5, 9, 12], num_extends=1, extend_lens=(3, 1, 1), prefix_lens=(2, 8, 11))
    layout = layout_of(inputs)
    assert (layout.num_prefill_reqs, layout.num_prefill_tokens) == (1, 3)
    assert (layout.num_reqs - 1, layout.num_tokens - 3) == (2, 2)
    assert layout.seq_lens == (5, 9, 12)
    assert layout.query_lens == (3, 1, 1)


def test_row_33_prefixes_may_be_given_for_the_prompts_only(small):
    inputs = small.mixed([5, 9, 12, 6], num_extends=3, extend_lens=(3, 4, 1, 1), prefix_lens=(2, 5, 11))
    layout = layout_of(inputs)
    assert (layout.num_prefill_reqs, layout.num_prefill_tokens) == (3, 8)
    assert (layout.num_reqs - 3, layout.num_tokens - 8) == (1, 1)
    assert layout.seq_lens == (5, 9, 12, 6)
    assert layout.query_lens == (3, 4, 1, 1)
    by_prefix = small.mixed([5, 9, 12, 6], num_extends=3, prefix_lens=(2, 5, 11))
    assert layout_of(by_prefix).query_lens == (3, 4, 1, 1)


def test_row_34_a_draft_has_one_plan_for_the_mixed_pass_and_one_for_its_steps(small):
    backend = small.backend(ratios=(0,))
    spec = backend.spec
    tables = small.tables(backend.pool.layout.group_specs(), [20, 30])
    layout = RoundLayout(rows=(0, 1), start_positions=(0, 20), query_lens=(7, 4), num_prefill_reqs=1)
    catch_up = plan_forward(layout, tables, spec, device=CPU)
    step = plan_step(torch.tensor([8, 23]), tables[SWA], spec)
    assert (catch_up.num_tokens, catch_up.mode) == (11, ForwardMode.MIXED)
    assert (step.num_tokens, step.mode) == (2, ForwardMode.DECODE)
    assert step.positions_T.tolist() == [7, 22]


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_row_35_a_mixed_pass_is_its_prompt_part_and_its_decode_part(small, layer):
    backend = small.filled(small.backend())
    tables = small.tables(backend.pool.layout.group_specs(), [300, 290, 280])
    inputs = ForwardInputs(
        mode=ForwardMode.MIXED,
        rows=(0, 1, 2),
        seq_lens=(300, 290, 280),
        tables=tables,
        num_extends=1,
        extend_lens=(3,),
    )
    metadata = backend.init_forward_metadata(inputs)
    q_THD, sinks_H = torch.randn(5, HEADS, DIM), torch.randn(HEADS)
    topk_Tk = torch.arange(5 * TOPK).view(5, TOPK)

    def step(part, tokens):
        return AttentionInput(
            plan=part.plan,
            layer=layer,
            q_THD=q_THD[tokens],
            sinks_H=sinks_H,
            scale=DIM**-0.5,
            selections=split_selection(part.plan, topk_Tk[tokens]),
        )

    whole = backend.forward_mixed(step(metadata, slice(0, 5)))
    prompt = backend.slice_metadata(metadata, range(0, 1))
    decode = backend.slice_metadata(metadata, range(1, 3))
    assert (prompt.layout.num_tokens, prompt.plan.positions_T.tolist()) == (3, [297, 298, 299])
    assert (prompt.layout.rows, prompt.plan.num_prefill_tokens) == ((0,), 3)
    assert (decode.layout.rows, decode.layout.token_reqs, decode.plan.num_prefill_tokens) == ((1, 2), (0, 1), 0)
    torch.testing.assert_close(whole[:3], backend.forward_prefill(step(prompt, slice(0, 3))))
    torch.testing.assert_close(whole[3:], backend.forward_decode(step(decode, slice(3, 5))))


def test_row_36_slices_have_the_mode_of_what_they_hold(small):
    backend = small.backend(ratios=(0,))
    for lens in ((3, 1, 1), (5, 1, 1)):
        inputs = small.mixed([30, 40, 50], num_extends=1, extend_lens=lens[:1])
        inputs = ForwardInputs(
            mode=inputs.mode,
            rows=inputs.rows,
            seq_lens=inputs.seq_lens,
            tables=small.tables(backend.pool.layout.group_specs(), [30, 40, 50]),
            num_extends=1,
            extend_lens=lens[:1],
        )
        metadata = backend.init_forward_metadata(inputs)
        prompt, decode = (backend.slice_metadata(metadata, reqs) for reqs in (range(0, 1), range(1, 3)))
        assert (prompt.layout.rows, prompt.plan.mode, prompt.plan.num_tokens) == ((0,), ForwardMode.EXTEND, lens[0])
        assert (decode.layout.rows, decode.plan.mode) == ((1, 2), ForwardMode.DECODE)


def test_row_37_packed_decode_must_be_uniform(small):
    layout = layout_of(small.decode([70, 80], num_tokens=8))
    assert layout.query_lens == (4, 4)
    assert layout.mode is ForwardMode.DECODE
    assert (layout.num_prefill_reqs, layout.num_reqs, layout.num_tokens) == (0, 2, 8)
    with pytest.raises(MetadataError, match="uniformly packed: 7 tokens for 2 requests"):
        layout_of(small.decode([70, 80], num_tokens=7))


def test_row_38_decode_without_a_token_count_has_one_token_each(small):
    assert layout_of(small.decode([70, 80])).query_lens == (1, 1)
    assert layout_of(small.decode([])).query_lens == ()


def test_row_39_decode_attention_takes_the_decode_plan_it_is_given(small):
    backend = small.filled(small.backend(ratios=(0,)))
    specs = backend.pool.layout.group_specs()
    decode = backend.init_forward_metadata(small.decode([20, 30], num_tokens=8, specs=specs))
    prompt = backend.init_forward_metadata(
        ForwardInputs(
            mode=ForwardMode.EXTEND,
            rows=(0,),
            seq_lens=(8,),
            tables=small.tables(specs, [8]),
        )
    )
    step = AttentionInput(
        plan=prompt.plan, layer=0, q_THD=torch.randn(8, HEADS, DIM), sinks_H=torch.zeros(HEADS), scale=1.0
    )
    with pytest.raises(MetadataError, match="decode pass only, got extend"):
        backend.forward_decode(step)
    fitting = AttentionInput(plan=decode.plan, layer=0, q_THD=step.q_THD, sinks_H=step.sinks_H, scale=1.0)
    assert backend.forward_decode(fitting).shape == (8, HEADS, DIM)
    short = AttentionInput(plan=decode.plan, layer=0, q_THD=step.q_THD[:2], sinks_H=step.sinks_H, scale=1.0)
    with pytest.raises(MetadataError, match="token count mismatch: 2 queries for a pass of 8 tokens"):
        backend.forward_decode(short)


def test_row_47_prompt_attention_takes_the_prompt_plan_it_is_given(small):
    backend = small.filled(small.backend(ratios=(0,)))
    specs = backend.pool.layout.group_specs()
    prompt = ForwardInputs(mode=ForwardMode.EXTEND, rows=(0,), seq_lens=(6,), tables=small.tables(specs, [6]))
    metadata = backend.init_forward_metadata(prompt)
    backend.init_forward_metadata(small.decode([20], specs=specs))
    step = AttentionInput(
        plan=metadata.plan, layer=0, q_THD=torch.randn(6, HEADS, DIM), sinks_H=torch.zeros(HEADS), scale=1.0
    )
    assert backend.forward_prefill(step).shape == (6, HEADS, DIM)


def test_row_53_a_pass_splits_its_tokens_into_prompt_and_decode(small):
    specs = small.backend().pool.layout.group_specs()
    backend = small.backend()
    tables = small.tables(specs, [20, 30])
    mixed = ForwardInputs(
        mode=ForwardMode.MIXED,
        rows=(0, 1),
        seq_lens=(20, 30),
        tables=tables,
        num_extends=1,
        extend_lens=(2,),
        verify_width=3,
    )
    extend = ForwardInputs(mode=ForwardMode.EXTEND, rows=(0, 1), seq_lens=(20, 30), tables=tables, extend_lens=(2, 3))
    decode = small.decode([5], num_tokens=5, tables=small.tables(specs, [5]))
    for inputs, expected in ((mixed, (2, 3)), (extend, (5, 0)), (decode, (0, 5))):
        plan = backend.init_forward_metadata(inputs).plan
        assert (plan.num_prefill_tokens, plan.num_tokens - plan.num_prefill_tokens) == expected


def test_row_62_sparse_attention_needs_what_was_prepared_for_it(small):
    backend = small.filled(small.backend())
    decode = backend.init_forward_metadata(small.decode([300]))
    csa = 1
    step = AttentionInput(
        plan=decode.plan, layer=csa, q_THD=torch.randn(1, HEADS, DIM), sinks_H=torch.zeros(HEADS), scale=1.0
    )
    with pytest.raises(MetadataError, match="requires prepared chunk metadata"):
        backend.forward_prefill(step)
    assert decode.plan.segments[0].compressed[AttentionKind.CSA].reach is Reach.GATHER
    with pytest.raises(MetadataError, match="CSA attention of layer 1 requires top-k indices"):
        backend.forward_decode(step)
