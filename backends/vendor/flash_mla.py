"""The only door to FlashMLA: finds the package, or says by name what is missing.

The module ``flash_mla`` comes with the distribution ``tokenspeed-flashmla`` (the name ``flash-mla`` holds nothing that
installs).
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from specdec.errors import UnsupportedError

MODULE = "flash_mla"


@dataclass(frozen=True, kw_only=True, slots=True)
class FlashMla:
    """The three calls that V4 attention needs, as the package defines them."""

    get_mla_metadata: Callable[..., object]
    flash_mla_with_kvcache: Callable[..., object]
    flash_mla_sparse_fwd: Callable[..., object]


def load() -> FlashMla:
    """The package's calls. Raises UnsupportedError naming the package, or the call that it lacks."""
    try:
        module = importlib.import_module(MODULE)
    except ImportError as error:
        raise UnsupportedError(
            f"{MODULE} is not installed: pip install tokenspeed-flashmla, or use the Triton kernels"
        ) from error
    names = tuple(FlashMla.__slots__)
    missing = [name for name in names if not callable(vars(module).get(name))]
    if missing:
        raise UnsupportedError(f"{MODULE} has no {', '.join(missing)}: install another version of tokenspeed-flashmla")
    return FlashMla(**{name: vars(module)[name] for name in names})
