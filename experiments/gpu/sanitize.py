"""Every operator once on small sizes, for ``compute-sanitizer``; needs a GPU and no test runner.

    python -m experiments.gpu.sanitize
    compute-sanitizer --tool memcheck python -m experiments.gpu.sanitize
    compute-sanitizer --tool racecheck python -m experiments.gpu.sanitize

The first line compiles the kernels, which is slow under the sanitizer. Every tensor is an allocation of its own, so
that an access past its end is seen. The exit status is 1 if a pass gave values that are not finite.
``--tool initcheck`` is of use for kernels of this project only (``--kernel-regex kns=_``): library products read the
padding of their operands.
"""

import os
import sys
from collections.abc import Mapping

import torch

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.stored_weight import WeightFormat
from backends.vendor.flash_mla import is_available
from experiments.gpu.models import FLASH_WIDTH
from experiments.gpu.op_calls import OpSetting, Storage, run_ops, run_others

# Head and cache row sizes are V4's, because row formats and FlashMLA allow no others; the rest is small and odd.
SMALL: Mapping[str, object] = {
    **FLASH_WIDTH,
    "vocab_size": 300,
    "hidden_size": 192,
    "num_attention_heads": 4,
    "q_lora_rank": 96,
    "o_groups": 2,
    "o_lora_rank": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 160,
    "index_n_heads": 32,
    "index_topk": 64,
    "num_hidden_layers": 3,
    "compress_ratios": [0, 4, 128, 0],
}
PLAIN = Storage(cache_dtype="bf16", indexer_dtype="mxfp4")
QUANTISED = Storage(cache_dtype="fp8", indexer_dtype="fp8", linears=WeightFormat.FP8, experts=WeightFormat.FP4)
# Its last position closes a compressed row of both kinds, and its indexer has more rows than it may select.
CONTEXT = 640
# (storage, tokens): one block of rows with padding, and experts that are sorted over several blocks.
POINTS = ((PLAIN, 5), (QUANTISED, 5), (QUANTISED, 40))


def setting_of(storage: Storage, num_tokens: int, device: torch.device) -> OpSetting:
    """A small pass of two requests."""
    return OpSetting(
        config=DeepseekV4Config.from_dict(SMALL),
        storage=storage,
        num_tokens=num_tokens,
        num_reqs=2,
        context=CONTEXT,
        device=device,
    )


def main() -> int:
    """Run all points with all kernels that this machine has."""
    # Read by torch at its first allocation.
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    device, failed = torch.device("cuda"), 0
    for storage, num_tokens in POINTS:
        choices = [Kernels.TRITON]
        if storage.cache_dtype == "fp8" and is_available(device):
            choices.append(Kernels.FLASH_MLA)
        for kernels in choices:
            setting = setting_of(storage, num_tokens, device)
            results = (run_ops(setting, kernels), *run_others(setting))
            is_finite = all(bool(result.isfinite().all()) for result in results)
            failed += not is_finite
            state = "finite" if is_finite else "NOT FINITE"
            print(f"{kernels.value}, {storage.cache_dtype} rows, {num_tokens} tokens: {state}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
