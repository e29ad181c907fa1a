from backends.deepseek_v4.ops.window_indices.reference import window_indices, window_state_slots

__all__ = ["window_indices", "window_state_slots"]
