from backends.deepseek_v4.ops.gather_slots.reference import gather_slots

__all__ = ["gather_slots"]
