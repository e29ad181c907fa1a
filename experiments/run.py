"""``python -m experiments.run``: decode a workload with the configured drafter and compare with plain decoding."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from experiments import mistakes
from experiments.app import App
from experiments.checkpoints import folder_of
from experiments.fingerprint import Inputs, inputs_of, run_key
from experiments.run_folder import Status, status_of
from experiments.sweep_table import show_sweep
from experiments.workloads import workload_of

if TYPE_CHECKING:
    from experiments.job import Worker

BASELINES = "baselines"


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    return app().main(sys.argv[1:] if arguments is None else arguments)


def app() -> App:
    """The application, with nothing loaded yet."""
    return App(
        name="run",
        config="config",
        run=Jobs(),
        check=check,
        key=key,
        is_done=is_done,
        added=("experiment", "sweep"),
        report=show_sweep,
    )


class Jobs:
    """Runs one job after the other; keeps the worker, and so the loaded target, between them."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def __call__(self, config: DictConfig) -> None:
        """Do the job in the folder that Hydra chose."""
        from experiments.job import Worker  # here, since it imports torch and --help must not wait for that

        if self._worker is None:
            self._worker = Worker()
        node = HydraConfig.get()
        folder = Path(node.runtime.output_dir)
        sweeping = node.mode == RunMode.MULTIRUN
        if sweeping and status_of(folder) is Status.DONE:
            return
        shared = Path(node.sweep.dir).resolve() / BASELINES if sweeping else None
        try:
            self._worker.run(plain(config), folder, shared_baselines=shared, define=not sweeping)
        except KeyboardInterrupt:
            print(f"run folder: {folder}", file=sys.stderr)
            raise


def check(config: DictConfig) -> None:
    """Raise SpecDecError for whatever can be known to be wrong before a model is loaded."""
    mistakes.check(config)
    from experiments.build import check_parts
    from experiments.job import check_job

    settings = plain(config)
    folder_of(settings["target"]["checkpoint"])
    check_job(settings, check_parts(settings, workload_of(settings["workload"])))


def key(config: DictConfig) -> str:
    """Name of the folder of a sweep's job."""
    settings = plain(config)
    return run_key(settings, inputs(settings))


def inputs(settings: dict) -> Inputs:
    """Hashes of checkpoint, prompts and code."""
    prompts = workload_of(settings["workload"]).hash
    return inputs_of(folder_of(settings["target"]["checkpoint"]), prompts)


def is_done(folder: Path) -> bool:
    """Whether the run in this folder is finished."""
    return status_of(folder) is Status.DONE


def plain(config: DictConfig) -> dict:
    """The configuration as plain values."""
    return OmegaConf.to_container(config, resolve=True)


if __name__ == "__main__":
    sys.exit(main())
