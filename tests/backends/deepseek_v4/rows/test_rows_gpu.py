"""On a GPU the formats store the same bytes as on a CPU, and write and read inside a captured graph."""

import pytest
import torch

from backends.deepseek_v4.ops.compressed_slots import compressed_slots
from backends.deepseek_v4.ops.slot_mapping import slot_mapping
from backends.deepseek_v4.ops.topk_slots import topk_slots
from backends.deepseek_v4.ops.window_indices import window_indices
from backends.deepseek_v4.rows.choose import index_rows, kv_rows, state_rows

pytestmark = pytest.mark.gpu

FORMATS = [kv_rows(d, head_dim=512, rope_dim=64, rows_per_page=64) for d in ("fp8", "bf16", "fp32")]
FORMATS += [index_rows(d, dim=128, rows_per_page=64, plain_dtype=torch.float32) for d in ("plain", "fp8", "mxfp4")]
FORMATS += [state_rows(width=512, rows_per_page=4)]
EACH = pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: f"{type(fmt).__name__}-{fmt.row_bytes}")


def hostile_rows(width: int) -> torch.Tensor:
    rows = torch.randn(40, width) * torch.logspace(-8, 8, 40).unsqueeze(1)
    rows[3], rows[4], rows[5, 0], rows[6, 1] = 0.0, -0.0, 450.0, 448.0
    return rows


@EACH
def test_bytes_equal_those_of_the_cpu(fmt):
    device = torch.device("cuda")
    rows, slots = hostile_rows(fmt.width), torch.randperm(3 * fmt.rows_per_page)[:40] + fmt.rows_per_page
    rows, slots = rows[: len(slots)], slots.clone()
    slots[7] = -1
    on_cpu, on_gpu = fmt.allocate(4, torch.device("cpu")), fmt.allocate(4, device)
    fmt.write(on_cpu, slots, rows)
    fmt.write(on_gpu, slots.to(device), rows.to(device))
    assert torch.equal(on_gpu[1:].cpu(), on_cpu[1:])
    assert torch.equal(fmt.read(on_gpu, slots.to(device)).cpu(), fmt.read(on_cpu, slots))


@EACH
def test_write_and_read_in_a_graph_follow_their_inputs(fmt):
    device = torch.device("cuda")
    buffer = fmt.allocate(4, device)
    rows, slots = torch.randn(6, fmt.width, device=device), torch.arange(6, device=device) + fmt.rows_per_page
    fmt.read(buffer, slots)
    fmt.write(buffer, slots, rows)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fmt.write(buffer, slots, rows)
        got = fmt.read(buffer, slots)
    slots.copy_(torch.tensor([5, -1, 9, 7, 11, 6], device=device) + 4)
    slots[1] = -1
    rows.copy_(torch.randn(6, fmt.width, device=device))
    graph.replay()
    want = fmt.read(buffer, slots)
    assert torch.equal(got, want) and (got[1] == 0).all() and (got[0] != 0).any()


def test_index_functions_are_captured_and_equal_the_cpu():
    device = torch.device("cuda")
    inputs = [torch.randint(0, 500, (8,)), torch.arange(4), torch.randint(-1, 20, (4, 9)), torch.randint(0, 3, (4,))]
    inputs = [x.to(torch.int32) for x in inputs]

    def run(positions, reqs, pages, base):
        return (
            slot_mapping(positions, reqs, pages, base, 64),
            compressed_slots(positions, reqs, pages, 4, 64),
            *window_indices(positions, reqs, pages, base, 128, 64),
            *topk_slots(positions.unsqueeze(-1) + torch.arange(5, device=positions.device), reqs, pages, 64),
        )

    on_gpu = [x.to(device) for x in inputs]
    run(*on_gpu)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run(*on_gpu)
    inputs[0] = torch.randint(0, 500, (8,), dtype=torch.int32)
    on_gpu[0].copy_(inputs[0])
    graph.replay()
    assert all(torch.equal(a.cpu(), b) for a, b in zip(got, run(*inputs), strict=True))
