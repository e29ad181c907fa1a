"""Which storage format a configured cache type means; knows nothing of page counts."""

import torch

from backends.deepseek_v4.rows.format import IndexRowFormat, RowFormat
from backends.deepseek_v4.rows.index_fp8 import Fp8IndexCodec
from backends.deepseek_v4.rows.index_mxfp4 import Mxfp4IndexCodec
from backends.deepseek_v4.rows.kv_fp8 import Fp8KvCodec
from backends.deepseek_v4.rows.plain import PlainIndexRows, PlainRows
from backends.deepseek_v4.rows.split_page import SplitIndexRows, SplitRows
from specdec.checks import one_of

PLAIN_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CACHE_DTYPES = ("fp8", *PLAIN_DTYPES)
INDEXER_DTYPES = ("plain", "fp8", "mxfp4")


def kv_rows(cache_dtype: str, *, head_dim: int, rope_dim: int, rows_per_page: int) -> RowFormat:
    """Format of sliding-window and compressed K/V rows; ``cache_dtype`` is fp8, bf16 or fp32."""
    one_of("cache_dtype", cache_dtype, CACHE_DTYPES, where="target.cache_dtype")
    if cache_dtype == "fp8":
        return SplitRows(codec=Fp8KvCodec(head_dim=head_dim, rope_dim=rope_dim), rows_per_page=rows_per_page)
    return PlainRows(width=head_dim, rows_per_page=rows_per_page, dtype=PLAIN_DTYPES[cache_dtype])


def index_rows(indexer_dtype: str, *, dim: int, rows_per_page: int, plain_dtype: torch.dtype) -> IndexRowFormat:
    """Format of indexer keys; ``indexer_dtype`` is plain (stored as ``plain_dtype``), fp8 or mxfp4.

    Quantised keys are read back rotated: pass queries through ``prepare_query`` before scoring.
    """
    one_of("indexer_dtype", indexer_dtype, INDEXER_DTYPES, where="target.indexer_dtype")
    if indexer_dtype == "fp8":
        return SplitIndexRows(codec=Fp8IndexCodec(dim=dim), rows_per_page=rows_per_page)
    if indexer_dtype == "mxfp4":
        return SplitIndexRows(codec=Mxfp4IndexCodec(dim=dim), rows_per_page=rows_per_page)
    return PlainIndexRows(width=dim, rows_per_page=rows_per_page, dtype=plain_dtype)


def state_rows(*, width: int, rows_per_page: int) -> PlainRows:
    """Format of compressor and indexer state rows: fp32 ``[kv | score]`` of ``width`` values."""
    return PlainRows(width=width, rows_per_page=rows_per_page, dtype=torch.float32)
