from backends.deepseek_v4.ops.compressed_slots.reference import compressed_slots, visible_rows

__all__ = ["compressed_slots", "visible_rows"]
