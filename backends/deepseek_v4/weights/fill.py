"""Fill parameters from checkpoint files, strictly: every key used exactly once, every parameter filled."""

from collections.abc import Mapping

import torch

from backends.deepseek_v4.weights import names
from backends.deepseek_v4.weights.files import CheckpointFiles
from backends.deepseek_v4.weights.storage import FP4_BLOCK, FP8_BLOCK, dequantize_fp4, dequantize_fp8_blocks
from backends.finite import check_finite
from specdec.errors import CheckpointError

_EIGHT_BIT = (torch.float8_e4m3fn, torch.int8, torch.uint8)
_E8M0 = (torch.float8_e8m0fnu, torch.uint8)
# As a byte: six times 2^126 is beyond float32, and the byte 255 is NaN.
_OVERFLOWING_SCALE = 127 + 126
NOT_FINITE = "copy the checkpoint again, or train it with a lower learning rate (conf: target.checkpoint)"


class _Names:
    """Raw keys by official name, and which of them were used."""

    def __init__(self, files: CheckpointFiles) -> None:
        self.files = files
        self.raw: dict[str, str] = {}
        for key in sorted(files.keys):
            name = names.canonical_name(key)
            if name in self.raw:
                raise CheckpointError(f"{key} and {self.raw[name]} both mean {name}; keep one of them")
            self.raw[name] = key
        names.refuse_dspark(set(self.raw))
        self.used = {name for name in self.raw if names.is_shared_copy(name)}

    def read(self, name: str) -> torch.Tensor:
        self.used.add(name)
        return self.files.read(self.raw[name])

    def finite(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """The value that was read under ``name``; raises CheckpointError if it is no number everywhere."""
        key = self.raw[name]
        check_finite(value, name=key, file=self.files.path_of(key), advice=NOT_FINITE)
        return value


def checkpoint_has_nextn(files: CheckpointFiles) -> bool:
    """Whether the folder holds a NextN layer; raises CheckpointError for a DSpark drafter."""
    found = {names.canonical_name(key) for key in files.keys}
    names.refuse_dspark(found)
    return names.has_nextn(found)


def fill_parameters(files: CheckpointFiles, parameters: Mapping[str, torch.Tensor], num_experts: int) -> None:
    """Copy the checkpoint into ``parameters`` (official names, experts stacked) in place, dequantised.

    Raises CheckpointError naming the keys when one is missing, left over, of another shape, or has a scale
    that does not fit it.
    """
    available = _Names(files)
    wanted = {p: names.sources_of(p, num_experts) for p in parameters}
    missing = sorted(s for sources in wanted.values() for s in sources if s not in available.raw)
    if missing:
        raise CheckpointError(
            f"{files.folder}: {len(missing)} weights are missing, for example {', '.join(missing[:3])}"
        )
    with torch.no_grad():
        for parameter, sources in wanted.items():
            _fill_one(available, parameters[parameter], parameter, sources)
    left = sorted(available.raw[name] for name in set(available.raw) - available.used)
    if left:
        raise CheckpointError(
            f"{files.folder}: {len(left)} weights have no place in the model that {files.folder.name}/config.json "
            f"describes, for example {', '.join(left[:3])}"
        )


def _fill_one(available: _Names, target: torch.Tensor, parameter: str, sources: list[str]) -> None:
    stacked = sources != [parameter]
    for index, name in enumerate(sources):
        place = target[index] if stacked else target
        value = _decode(available, name)
        if value.shape != place.shape:
            raise CheckpointError(
                f"{available.raw[name]} has shape {tuple(value.shape)}, config.json asks for {tuple(place.shape)}"
            )
        if place.is_floating_point() != value.is_floating_point():
            raise CheckpointError(f"{available.raw[name]} is {value.dtype}, expected a type like {place.dtype}")
        place.copy_(value)


def _decode(available: _Names, name: str) -> torch.Tensor:
    value = available.read(name)
    scale_key = names.scale_name(name)
    if scale_key is None or scale_key not in available.raw:
        if value.dtype in _EIGHT_BIT:
            raise CheckpointError(f"{available.raw[name]} is stored as {value.dtype} but its scale is missing")
        return available.finite(name, value)
    scales = available.read(scale_key)
    if scales.dtype == torch.float32:
        scales = _to_e8m0(scales, available.raw[scale_key])
    if value.dtype not in _EIGHT_BIT or scales.dtype not in _E8M0:
        raise CheckpointError(
            f"{available.raw[name]} ({value.dtype}) with scale {scales.dtype} is no known storage; "
            "known are e4m3 with 128x128 e8m0 scales and packed fp4 with e8m0 scales per 32"
        )
    fp8 = value.dtype == torch.float8_e4m3fn
    expected = _scale_shape(value, fp8)
    if tuple(scales.shape) != expected:
        raise CheckpointError(
            f"{available.raw[scale_key]} has shape {tuple(scales.shape)}, its weight needs {expected}"
        )
    if fp8:
        return available.finite(name, dequantize_fp8_blocks(value, scales))
    decoded = dequantize_fp4(value, scales)
    # Codes of four bits are finite, so scales tell, which are a 32nd of the values.
    is_finite = int(scales.view(torch.uint8).max()) < _OVERFLOWING_SCALE
    return decoded if is_finite else available.finite(name, decoded)


def _scale_shape(value: torch.Tensor, fp8: bool) -> tuple[int, ...]:
    if fp8:
        return tuple(-(-size // FP8_BLOCK) for size in value.shape)
    return (*value.shape[:-1], value.shape[-1] * 2 // FP4_BLOCK)


def _to_e8m0(scales: torch.Tensor, key: str) -> torch.Tensor:
    mantissa, exponent = torch.frexp(scales)
    if not torch.all(mantissa == 0.5):
        raise CheckpointError(f"{key} holds fp32 scales that are not powers of two; ue8m0 scales are expected")
    return (exponent + 126).to(torch.uint8)
