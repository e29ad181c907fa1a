"""Result files of measurements: figures with command, commit and hardware; knows nothing of what was measured.

``git_commit`` is the commit of the checkout, with ``-dirty`` behind it when tracked files that matter differ from it;
null in a copy that is no checkout. ``code_hash`` names the sources in every case, and a checkout finds their commit:

    python -m experiments.result_file experiments/results/h200_round.json ...
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from backends.vendor.flash_mla import is_available
from experiments.commit import DIRTY, ROOT, commit_with
from experiments.environment import environment_of
from experiments.fingerprint import inputs_of
from specdec.errors import SpecDecError

RESULTS = Path(__file__).parent / "results"
KEPT = ("git_commit", "code_hash", "processor", "platform", "python", "packages")
KEPT_ON_CPU = ("checkpoint_hash", "threads", "dtype")
FLASH_MLA = "tokenspeed-flashmla"
DRIVER_FILE = Path("/proc/driver/nvidia/version")
DRIVER_COMMAND = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
DRIVER_S = 20


class UnknownCodeError(SpecDecError, ValueError):
    """No commit has the code that a result was measured with."""


def save_gpu_result(name: str, command: str, figures: Mapping[str, object]) -> None:
    """Write ``experiments/results/NAME`` of a measurement of the first GPU, without a checkpoint."""
    environment = environment_of(
        device=torch.device("cuda"), dtype=torch.bfloat16, threads=1, seed=0, inputs=inputs_of(None, prompts="")
    )
    kept = {key: environment[key] for key in KEPT}
    _write(name, {"command": command, **gpu_facts(), **kept, **figures})


def save_cpu_result(name: str, command: str, figures: Mapping[str, object], *, folder: Path) -> None:
    """Write ``experiments/results/NAME`` of a measurement of the checkpoint ``folder`` on one thread, in fp32."""
    environment = environment_of(
        device=torch.device("cpu"), dtype=torch.float32, threads=1, seed=0, inputs=inputs_of(folder, prompts="")
    )
    kept = {key: environment[key] for key in (*KEPT, *KEPT_ON_CPU)}
    _write(name, {"command": command, **kept, **figures})


def gpu_facts() -> dict[str, str | None]:
    """The first GPU and what drives it; torch and triton are among the packages."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "flash_mla": _flash_mla_version(),
    }


def driver_version() -> str | None:
    """Version of the NVIDIA driver; None where neither its tool nor its file says."""
    try:
        said = subprocess.run(DRIVER_COMMAND, capture_output=True, text=True, check=True, timeout=DRIVER_S).stdout
    except (OSError, subprocess.SubprocessError):
        try:
            said = DRIVER_FILE.read_text(encoding="utf-8")
        except OSError:
            return None
    return first_version(said)


def first_version(text: str) -> str | None:
    """The first number of a driver in a text, as 580.95.05; None without one."""
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return None if found is None else found.group()


def name_commit(path: Path, root: Path = ROOT) -> str:
    """Write into a result the commit of ``root`` whose sources it was measured with, unless it names a clean one.

    Returns the commit. Raises UnknownCodeError when no commit has these sources, and leaves the file as it is.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    named = content.get("git_commit")
    if named and not named.endswith(DIRTY):
        return named
    code = content.get("code_hash", "")
    commit = commit_with(code, root)
    if commit is None:
        raise UnknownCodeError(f"{path}: no commit here has the code {code or 'that it does not name'}")
    # A file without the entry gets it at its end.
    path.write_text(json.dumps({**content, "git_commit": commit}, indent=1) + "\n", encoding="utf-8")
    return commit


def _flash_mla_version() -> str | None:
    if not is_available(torch.device("cuda")):
        return None
    try:
        return version(FLASH_MLA)
    except PackageNotFoundError:
        return "of another name"


def _write(name: str, content: Mapping[str, object]) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / name
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")
    commit = content["git_commit"]
    if commit is None:
        print("it names no commit, for this is no checkout: python -m experiments.result_file FILE in one names it")
    elif str(commit).endswith(DIRTY):
        print(f"it names {commit}: tracked files differ from that commit")


def main(arguments: Sequence[str]) -> int:
    """Name the commits of result files; the exit status is 1 when one has none."""
    failed = 0
    for each in arguments:
        try:
            print(f"{each}: {name_commit(Path(each))}")
        except UnknownCodeError as error:
            print(error, file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
