from backends.deepseek_v4.ops.topk_slots.reference import pack_left, topk_slots

__all__ = ["pack_left", "topk_slots"]
