"""Memory: what a device has left, and the refusal of what does not fit; allocates nothing.

Systems grant more memory than they have and end the process when it is written to, so waiting for an error is too
late.
"""

import os
from pathlib import Path

import torch

from specdec.engine_config import CachePlan
from specdec.errors import CapacityError

MEMINFO = Path("/proc/meminfo")
GIB = 1 << 30
CACHE_KEYS = "engine.max_batch, engine.max_context, engine.num_pages"
# A page is an integer in the list of free ones; a row has a few dictionaries besides its block tables of int32.
PAGE_BYTES = 40
ROW_BYTES = 1024
COLUMN_BYTES = 4


def available_bytes(device: torch.device) -> int | None:
    """Bytes that may still be allocated on ``device``; None where the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if MEMINFO.exists():
        sizes = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="utf-8").splitlines() if ":" in line)
        if "MemAvailable" in sizes:
            return int(sizes["MemAvailable"].split()[0]) * 1024
    names = ("SC_PHYS_PAGES", "SC_PAGE_SIZE")
    if not set(names) <= os.sysconf_names.keys():
        return None
    pages, page_bytes = map(os.sysconf, names)
    return pages * page_bytes if pages > 0 else None


def check_fits(what: str, num_bytes: int, device: torch.device, *, conf: str) -> None:
    """Raise CapacityError when ``what`` takes more than is available; ``conf`` names the settings that decide it."""
    available = available_bytes(device)
    if available is not None and num_bytes > available:
        raise CapacityError(
            f"the {what} do not fit into memory: they take {num_bytes / GIB:,.1f} GiB and {available / GIB:,.1f} GiB "
            f"are available on {device} (conf: {conf})"
        )


def table_bytes(plan: CachePlan, *, max_batch: int) -> int:
    """About how many bytes of host memory an engine takes for its page lists and block tables."""
    columns = sum(plan.columns.values())
    return sum(plan.num_pages.values()) * PAGE_BYTES + max_batch * (ROW_BYTES + columns * COLUMN_BYTES)
