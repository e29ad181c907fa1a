"""pass_indices: all index tensors of a packed pass; which implementation."""

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.pass_indices import reference
from backends.deepseek_v4.pass_values import IndexShape, PassIndices
from specdec.api import PackedPass
from specdec.errors import MetadataError

__all__ = ["pass_indices"]


def pass_indices(packed: PackedPass, shape: IndexShape, *, kernels: Kernels) -> PassIndices:
    """Slots of everything that the tokens of a pass read and write, computed on the device in one launch.

    ``packed`` has positions and table rows int32 [T] (any stride) and a block table of every group of ``shape``
    (rows of any stride; other groups are ignored). All results are int32 [T] or [T, K].

    The window list holds the positions ``max(0, p - W + 1) .. p`` in order, those without a page left out. The list
    of HCA rows holds rows ``0 .. (p + 1) // 128 - 1``, at most ``shape.hca_columns`` of them, and is not searched for
    missing pages: a group with full history has a page for every row that a token sees (a missing one would give -1
    in its place). A padding token, of negative position, has empty lists and slots of -1.

    Raises MetadataError for a group without a table.
    """
    missing = [group_id for group_id in shape.groups if group_id not in packed.tables]
    if missing:
        raise MetadataError(f"missing paged-cache block tables of groups {missing}, got {sorted(packed.tables)}")
    if kernels is Kernels.REFERENCE:
        return reference.pass_indices(packed, shape)
    from backends.deepseek_v4.ops.pass_indices import kernel

    return kernel.pass_indices(packed, shape)
