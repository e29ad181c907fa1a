from backends.deepseek_v4.ops.prefill_indices.reference import PrefillWorkspace, gather_range, prefill_indices

__all__ = ["PrefillWorkspace", "gather_range", "prefill_indices"]
