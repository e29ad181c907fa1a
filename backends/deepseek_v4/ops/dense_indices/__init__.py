from backends.deepseek_v4.ops.dense_indices.reference import dense_indices, dense_local_indices, dense_width

__all__ = ["dense_indices", "dense_local_indices", "dense_width"]
