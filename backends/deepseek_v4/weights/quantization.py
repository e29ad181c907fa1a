"""Quantization: what ``config.json`` says of a checkpoint's storage, checked before a weight is read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from specdec.errors import CheckpointError

EXPERT_TYPES = ("fp4", "fp8", "bf16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantization:
    """``quantization_config`` of an official checkpoint.

    Raises CheckpointError for any storage but e4m3 values in 128 x 128 blocks with ue8m0 scales.

    activation_scheme  ``dynamic``: activations carry no stored scales
    """

    quant_method: str = "fp8"
    fmt: str = "e4m3"
    weight_block_size: tuple[int, int] = (128, 128)
    scale_fmt: str = "ue8m0"
    activation_scheme: str = "dynamic"

    def __post_init__(self) -> None:
        for field in fields(self):
            got, supported = asdict(self)[field.name], field.default
            if got != supported:
                raise CheckpointError(
                    f"quantization_config.{field.name} of config.json is {got!r}, which does not match the supported "
                    f"{supported!r}"
                )

    def to_dict(self) -> dict[str, object]:
        """The JSON spelling."""
        return {**asdict(self), "weight_block_size": list(self.weight_block_size)}


def read_quantization(config: Mapping[str, object]) -> Quantization | None:
    """The storage of the linears, or None for an unquantised checkpoint; checks ``expert_dtype`` as well.

    Raises CheckpointError that names the field.
    """
    experts = config.get("expert_dtype")
    if experts is not None and experts not in EXPERT_TYPES:
        raise CheckpointError(f"expert_dtype of config.json must be one of {', '.join(EXPERT_TYPES)}, got {experts!r}")
    raw = config.get("quantization_config")
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"quantization_config of config.json must be an object, got {type(raw).__name__}")
    known = {name: raw[name] for name in asdict(Quantization()) if name in raw}
    if isinstance(known.get("weight_block_size"), list):
        known["weight_block_size"] = tuple(known["weight_block_size"])
    return Quantization(**known)
