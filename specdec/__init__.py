"""specdec: the mechanism of speculative decoding; no model code and no configuration framework."""

__version__ = "0.1.0"
