"""Bytes as tokens: the text of the toy target; knows no model and imports none."""

from collections.abc import Sequence

NUM_BYTES = 256


class Bytes:
    """UTF-8 bytes as token ids; other ids have no text."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < NUM_BYTES).decode(errors="replace")
