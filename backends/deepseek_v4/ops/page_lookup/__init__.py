from backends.deepseek_v4.ops.page_lookup.reference import (
    expand_requests,
    logical_columns,
    mask_requests,
    page_lookup,
    request_values,
)

__all__ = ["expand_requests", "logical_columns", "mask_requests", "page_lookup", "request_values"]
