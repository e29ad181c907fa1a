"""``python -m experiments.run``: decode a workload with the configured drafter and compare with plain decoding."""

import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from experiments import mistakes
from experiments.app import NUM_JOBS, App, without_hydra
from experiments.checkpoints import folder_of
from experiments.fingerprint import Inputs, inputs_of, run_key
from experiments.job_names import naming
from experiments.run_folder import Status, status_of
from experiments.supervised import Check, Task, supervisor
from experiments.sweep_table import show_sweep
from experiments.workloads import workload_of

BASELINES = "baselines"


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    try:
        return app().main(sys.argv[1:] if arguments is None else arguments)
    finally:
        supervisor().close()


def app() -> App:
    """The application, with nothing loaded yet."""
    return App(
        name="run",
        config="config",
        run=Jobs(),
        check=check,
        check_grid=check_grid,
        key=key,
        is_done=is_done,
        added=("experiment", "sweep"),
        report=show_sweep,
    )


class Jobs:
    """Does jobs: a single one in this process, those of a sweep in one that is supervised; keeps nothing itself."""

    def __call__(self, config: DictConfig) -> None:
        """Do the job in the folder that Hydra chose."""
        node = HydraConfig.get()
        folder = Path(node.runtime.output_dir)
        if node.mode == RunMode.MULTIRUN:
            self._of_sweep(config, folder)
        else:
            self._alone(config, folder)

    def _alone(self, config: DictConfig, folder: Path) -> None:
        # Imported here, since it imports torch and --help must not wait for that.
        from experiments.job import Worker

        try:
            Worker().run(plain(config), folder)
        except KeyboardInterrupt:
            print(f"run folder: {folder}", file=sys.stderr)
            raise

    def _of_sweep(self, config: DictConfig, folder: Path) -> None:
        if is_done(folder):
            # Another process has done it in the meantime.
            return
        node = HydraConfig.get()
        supervisor().run(
            Task(
                config=plain(config),
                folder=folder,
                shared_baselines=Path(node.sweep.dir).resolve() / BASELINES,
                cwd=Path.cwd(),
                label=_label(node.job.num + 1, node.job.env_set.get(NUM_JOBS)),
            )
        )


def _label(number: int, total: str | None) -> str:
    return f"job {number}" if total is None else f"job {number}/{total}"


def check(config: DictConfig) -> None:
    """Raise SpecDecError for whatever can be known to be wrong before a model is loaded."""
    settings = _checked_here(config)
    # Imported here, since it imports torch and --help must not wait for that.
    from experiments.job import check_settings

    check_settings(settings)


def check_grid(configs: Sequence[DictConfig], names: Sequence[str]) -> None:
    """The same for every job of a sweep, whose runs have a process of their own: torch is imported there alone."""
    settings = []
    for config, name in zip(configs, names, strict=True):
        with naming(name):
            settings.append(_checked_here(without_hydra(config)))
    supervisor().check(Check(configs=tuple(settings), names=tuple(names), cwd=Path.cwd()))
    if not all(config.hydra.launcher["_target_"].endswith("BasicLauncher") for config in configs):
        # The jobs have processes elsewhere.
        supervisor().close()


def _checked_here(config: DictConfig) -> dict:
    """Plain settings, of which names, types, values and loggers are checked."""
    mistakes.check(config)
    from experiments.sinks.publish import sinks_of

    settings = plain(config)
    for _ in sinks_of(settings["logger"]):
        # Each can be made, and its package is there.
        pass
    return settings


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
