from backends.deepseek_v4.ops.page_lookup.reference import (
    expand_requests,
    mask_requests,
    page_lookup,
    request_values,
)

__all__ = ["expand_requests", "mask_requests", "page_lookup", "request_values"]
