"""Windows of state rows on shuffled pages become the compressed rows that the compressor module makes."""

import pytest
import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.compressor import Compressor
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.compress import EntryCache, compress
from backends.deepseek_v4.pass_values import PassIndices, SlotList
from backends.deepseek_v4.rope import Rope
from backends.deepseek_v4.rows.choose import index_rows, kv_rows
from backends.deepseek_v4.rows.format import RowFormat
from specdec.api import GroupTable

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BOTH = pytest.mark.parametrize("kernels", [Kernels.REFERENCE, Kernels.TRITON], ids=lambda k: k.value)
KINDS = pytest.mark.parametrize("kind", [AttentionKind.CSA, AttentionKind.HCA], ids=lambda k: k.name)
NUM_PAGES = 40


class World:
    """Two requests whose state rows lie on shuffled pages; the second one's table begins at a later page."""

    def __init__(self, kind: AttentionKind, head_dim: int, *, length: int, plain: bool = False) -> None:
        """``plain`` state rows have one score, and values of magnitude one that are alike in all rows."""
        self.kind, self.page = kind, kind.state_rows_per_page
        width = (4 if kind is AttentionKind.CSA else 2) * head_dim
        self.rows = torch.randn(2, length, width, device=DEVICE)
        if plain:
            self.rows[:] = self.rows[:1, :1].sign()
            self.rows[:, :, width // 2 :] = 0.5
            # Halves of a row serve different windows, but one window must hold one value.
            self.rows[..., head_dim : width // 2] = self.rows[..., : width // 2 - head_dim]
        self.state = torch.full((NUM_PAGES, self.page, width), float("nan"), device=DEVICE)
        needed, dropped = -(-length // self.page), (0, 1)
        order = 1 + torch.randperm(NUM_PAGES - 1)
        pages_BC = torch.full((2, needed + 3), -1, dtype=torch.int32)
        for req in range(2):
            own = order[req * needed : (req + 1) * needed]
            pages_BC[req, : needed - dropped[req]] = own[dropped[req] :].to(torch.int32)
            for position in range(dropped[req] * self.page, length):
                self.state[own[position // self.page], position % self.page] = self.rows[req, position]
        # A table may be a slice of a wider one.
        base_B = torch.tensor(dropped, dtype=torch.int32, device=DEVICE)
        self.table = GroupTable(pages_BC=pages_BC.to(DEVICE)[:, :-1], base_B=base_B)
        self.first = [dropped[req] * self.page for req in range(2)]

    def window(self, req: int, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """State rows [W, F] and validity [W] of the window that ends at a position."""
        at = torch.arange(position - self.kind.state_window + 1, position + 1, device=DEVICE)
        valid = at >= self.first[req]
        return self.rows[req][at.clamp(min=0)].masked_fill(~valid.unsqueeze(1), float("nan")), valid

    def cache(self, buffer: torch.Tensor, fmt: RowFormat, norm_weight: torch.Tensor) -> EntryCache:
        return EntryCache(
            table=self.table,
            rows_per_page=self.page,
            state=self.state,
            norm_weight=norm_weight,
            buffer=buffer,
            rows=fmt,
        )

    def indices(self, tokens: list[tuple[int, int, int]]) -> PassIndices:
        """A pass of (request, position, entry slot)."""
        reqs_T, positions_T, entries_T = torch.tensor(tokens, dtype=torch.int32, device=DEVICE).t().contiguous()
        none = SlotList(slots_TK=positions_T.unsqueeze(1), lens_T=positions_T)
        return PassIndices(
            positions_T=positions_T,
            reqs_T=reqs_T,
            write_slots={},
            entry_slots={self.kind: entries_T},
            visible={},
            window=none,
            hca=None,
        )


def angles(num_tokens: int, pairs: int) -> torch.Tensor:
    turns = 7 * torch.randn(num_tokens, pairs)
    return torch.stack((turns.cos(), turns.sin()), dim=1).to(DEVICE)


def run(world: World, tokens, angles_T2R, fmt: RowFormat, norm_weight, eps: float, kernels: Kernels) -> torch.Tensor:
    buffer = fmt.allocate(5, DEVICE)
    cache = world.cache(buffer, fmt, norm_weight)
    compress(world.indices(tokens), world.kind, [cache], eps=eps, angles_T2R=angles_T2R, kernels=kernels)
    return buffer


def tokens_of(kind: AttentionKind) -> list[tuple[int, int, int]]:
    """Closing tokens among others, padding, and for CSA the first window of a text, half of which precedes it."""
    if kind is AttentionKind.CSA:
        return [(0, 3, 9), (0, 4, -1), (1, 15, 8), (0, -1, -1), (1, 11, 17), (0, 7, 11)]
    return [(0, 127, 9), (0, 128, -1), (1, 135, 8), (0, -1, -1)]


@BOTH
@KINDS
@pytest.mark.parametrize("head_dim", [16, 20])
def test_rows_equal_the_compressors(tiny, randomise, nan_empty, kernels, kind, head_dim):
    config, tokens = tiny(), tokens_of(kind)
    module = Compressor(config, kind.ratio, head_dim)
    randomise(module)
    module = module.to(DEVICE)
    world = World(kind, head_dim, length=16 if kind is AttentionKind.CSA else 136)
    fmt = kv_rows("fp32", head_dim=head_dim, rope_dim=8, rows_per_page=4)
    angles_T2R = angles(len(tokens), 4)
    got = run(world, tokens, angles_T2R, fmt, module.norm.weight.detach(), module.norm.eps, kernels)
    want = fmt.allocate(5, DEVICE)
    for (req, position, entry), angle_2R in zip(tokens, angles_T2R, strict=True):
        if entry >= 0:
            rows, valid = world.window(req, position)
            with torch.no_grad():
                row = module.pool(rows, valid, Rope(cos=angle_2R[0], sin=angle_2R[1]))
            fmt.put(want, torch.tensor([entry], device=DEVICE), row.unsqueeze(0))
    torch.testing.assert_close(got[1:], want[1:], rtol=1e-4, atol=1e-5)


@BOTH
def test_two_caches_of_one_call_equal_two_calls(nan_empty, kernels):
    tokens, angles_T2R, norms = tokens_of(AttentionKind.CSA), angles(6, 4), (torch.randn(16), torch.randn(8))
    worlds = [World(AttentionKind.CSA, dim, length=16) for dim in (16, 8)]
    fmts = [kv_rows("fp32", head_dim=dim, rope_dim=8, rows_per_page=page) for dim, page in ((16, 4), (8, 16))]
    buffers = [fmt.allocate(5, DEVICE) for fmt in fmts]
    caches = [w.cache(b, f, n.to(DEVICE)) for w, b, f, n in zip(worlds, buffers, fmts, norms, strict=True)]
    compress(worlds[0].indices(tokens), AttentionKind.CSA, caches, eps=1e-6, angles_T2R=angles_T2R, kernels=kernels)
    for world, buffer, fmt, norm in zip(worlds, buffers, fmts, norms, strict=True):
        want = run(world, tokens, angles_T2R, fmt, norm.to(DEVICE), 1e-6, kernels)
        assert buffer[1:].any() and torch.equal(buffer[1:], want[1:])


@pytest.mark.gpu
@KINDS
def test_real_widths_equal_the_reference(kind):
    tokens = tokens_of(kind)
    world, angles_T2R = World(kind, 512, length=16 if kind is AttentionKind.CSA else 136), angles(len(tokens), 32)
    fmt = kv_rows("fp32", head_dim=512, rope_dim=64, rows_per_page=4)
    weight = torch.randn(512, device=DEVICE)
    got, want = (run(world, tokens, angles_T2R, fmt, weight, 1e-6, k) for k in (Kernels.TRITON, Kernels.REFERENCE))
    torch.testing.assert_close(got[1:], want[1:], rtol=1e-4, atol=1e-5)


QUANTISED = [(AttentionKind.CSA, kv_rows("fp8", head_dim=512, rope_dim=64, rows_per_page=4))]
QUANTISED += [(AttentionKind.HCA, kv_rows("fp8", head_dim=512, rope_dim=64, rows_per_page=4))]
QUANTISED += [
    (AttentionKind.CSA, index_rows(d, dim=128, rows_per_page=4, plain_dtype=torch.bfloat16)) for d in ("fp8", "mxfp4")
]


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "fmt"), QUANTISED, ids=["csa", "hca", "index-fp8", "index-mxfp4"])
def test_real_widths_store_the_reference_bytes(kind, fmt):
    """Values alike in a window have an exact mean and norm, so that every later rounding must agree."""
    tokens = tokens_of(kind)
    length = 16 if kind is AttentionKind.CSA else 136
    world, angles_T2R = World(kind, fmt.width, length=length, plain=True), angles(len(tokens), 32)
    weight = torch.randn(fmt.width, device=DEVICE)
    got, want = (run(world, tokens, angles_T2R, fmt, weight, 0.0, k) for k in (Kernels.TRITON, Kernels.REFERENCE))
    assert torch.equal(got[1:], want[1:])
