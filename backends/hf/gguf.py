"""GGUF: metadata and tensors of one file in the formats that a small model comes in; knows no model.

Source: the GGUF specification of ggml (version 3), and ggml's block layouts of Q4_1 and Q8_0. Little-endian only.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specdec.errors import CheckpointError, UnsupportedError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
BLOCK = 32
Q4_1_BYTES, Q8_0_BYTES = 20, 34
F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
# Values and bytes of one block of each tensor type.
TYPES = {F32: (1, 4), F16: (1, 2), Q4_1: (BLOCK, Q4_1_BYTES), Q8_0: (BLOCK, Q8_0_BYTES)}

Value = int | float | bool | str | list


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """Where a tensor lies. ``shape`` is in torch's order, slowest dimension first; ``offset`` in bytes."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """An open file: ``metadata`` by key, ``tensors`` by name, and ``read`` for their values.

    Raises CheckpointError for a file that is no GGUF, or is cut short, and UnsupportedError for one that this reader
    does not know.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            if path.stat().st_size < len(MAGIC):
                raise CheckpointError(f"{path} is empty")
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._position = 0
        try:
            self._read_header()
        except struct.error:
            raise CheckpointError(f"{path} is cut short; fetch it again") from None

    def _read_header(self) -> None:
        if self._data[: len(MAGIC)] != MAGIC:
            raise CheckpointError(f"{self._path} is no GGUF file")
        self._position = len(MAGIC)
        version = self._scalar("I")
        if version not in VERSIONS:
            raise UnsupportedError(f"{self._path}: GGUF version {version} (versions {VERSIONS[0]}..{VERSIONS[-1]} are)")
        num_tensors, num_keys = self._scalar("Q"), self._scalar("Q")
        self.metadata: dict[str, Value] = {}
        for _ in range(num_keys):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("I"))
        self.tensors = dict(self._tensor_info() for _ in range(num_tensors))
        alignment = self.metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
        self._start = -(-self._position // alignment) * alignment

    def read(self, name: str) -> np.ndarray:
        """Values of a tensor; float32 in the tensor's shape."""
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self._path} has no tensor {name}")
        if info.kind not in TYPES:
            raise UnsupportedError(
                f"{self._path}: tensor {name} has ggml type {info.kind} (known are F32, F16, Q4_1, Q8_0)"
            )
        values, size = TYPES[info.kind]
        count = int(np.prod(info.shape))
        begin, num_bytes = self._start + info.offset, count // values * size
        if begin + num_bytes > len(self._data):
            raise CheckpointError(f"{self._path} is cut short in tensor {name}; fetch it again")
        raw = np.frombuffer(self._data, dtype=np.uint8, count=num_bytes, offset=begin)
        return _dequantised(raw, info.kind).reshape(info.shape)

    def _tensor_info(self) -> tuple[str, TensorInfo]:
        name = self._string()
        shape = tuple(self._scalar("Q") for _ in range(self._scalar("I")))
        kind, offset = self._scalar("I"), self._scalar("Q")
        return name, TensorInfo(shape=shape[::-1], kind=kind, offset=offset)

    def _scalar(self, code: str) -> int | float | bool:
        (value,) = struct.unpack_from("<" + code, self._data, self._position)
        self._position += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        if self._position + length > len(self._data):
            raise CheckpointError(f"{self._path} is cut short; fetch it again")
        text = self._data[self._position : self._position + length].decode("utf-8", errors="replace")
        self._position += length
        return text

    def _value(self, kind: int) -> Value:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            item_kind, count = self._scalar("I"), self._scalar("Q")
            return [self._value(item_kind) for _ in range(count)]
        if kind not in SCALARS:
            raise UnsupportedError(f"{self._path}: metadata of unknown type {kind}")
        return self._scalar(SCALARS[kind])


def _dequantised(raw: np.ndarray, kind: int) -> np.ndarray:
    """float32 values of the blocks in ``raw`` (uint8)."""
    if kind == F32:
        return raw.view("<f4").astype(np.float32)
    if kind == F16:
        return raw.view("<f2").astype(np.float32)
    return _q4_1(raw.reshape(-1, Q4_1_BYTES)) if kind == Q4_1 else _q8_0(raw.reshape(-1, Q8_0_BYTES))


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    """float16 scale, float16 minimum, 16 bytes: the low halves are values 0-15, the high halves 16-31."""
    head = blocks[:, :4].copy().view("<f2").astype(np.float32)
    packed = blocks[:, 4:]
    values = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
    return values * head[:, :1] + head[:, 1:]


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    """float16 scale, 32 signed bytes."""
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return blocks[:, 2:].copy().view(np.int8).astype(np.float32) * scale
