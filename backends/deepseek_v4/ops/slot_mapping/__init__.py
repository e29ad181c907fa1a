from backends.deepseek_v4.ops.slot_mapping.reference import mask_slots, slot_mapping, slots_of_rows

__all__ = ["mask_slots", "slot_mapping", "slots_of_rows"]
