"""App: from a command line to checked jobs in Hydra's launchers; knows nothing of what a job does.

Hydra composes, names the folders and launches. Added here: the whole grid is composed and checked before the first
job starts, finished jobs are not started again, a failing job does not end the others, and a mistake is one line.
"""

import os
import re
import secrets
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra import version

# Hydra has no public way to run its command line with a sweeper and a refusal of one's own: hydra.main ends the
# process on an error. pyproject.toml pins hydra-core below 1.4, since these names may change with any minor release.
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_automatic_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, run_job
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from experiments import mistakes, plugins, schemas
from experiments.children import children_ended
from experiments.help import help_text
from experiments.job_names import names_of, naming
from experiments.kept import Kept
from experiments.run_folder import FolderLock, failure_of, status_of
from experiments.sweep_plan import write_plan
from experiments.termination import EXIT_TERMINATED, Terminated, termination_interrupts
from specdec.errors import ConfigError, SpecDecError

CONF = Path(__file__).resolve().parents[1] / "conf"
VERSION_BASE = "1.3"
# A class of one's own for a group, or for what an option of it wraps.
OWN_CLASS = re.compile(r"(?P<group>drafter|target)(?P<rest>(?:\.\w+)*)\._target_=")
EXIT_MISTAKE = 2
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
NUM_JOBS = "SPECDEC_NUM_JOBS"
"""Environment variable of a sweep's job: how many the sweep has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job of the grid: its command-line overrides, its composed configuration, and its folder."""

    overrides: tuple[str, ...]
    config: DictConfig
    folder: Path


@dataclass(frozen=True, kw_only=True)
class App:
    """What a Hydra application does.

    name     of the command, for Hydra's own messages
    config   of the primary configuration in conf/
    run      does one job, given its configuration without the ``hydra`` node
    check    raises SpecDecError for a configuration that cannot work, before any job starts
    check_grid  the same for all jobs of a sweep, given with their ``hydra`` nodes and by name; None: ``check`` for each
    key      names the folder of a sweep's job
    is_done  whether the job of this folder need not run again
    added    groups outside of the defaults list
    report   called at the end of a sweep with every job of it, finished or not
    failures errors with which a job has failed (exit code 1); any other of its SpecDecErrors is a mistake (2)
    """

    name: str
    config: str
    run: Callable[[DictConfig], object]
    check: Callable[[DictConfig], None]
    key: Callable[[DictConfig], str]
    is_done: Callable[[Path], bool]
    check_grid: Callable[[Sequence[DictConfig], Sequence[str]], None] | None = None
    added: tuple[str, ...] = ()
    report: Callable[[Sequence[Job]], None] | None = None
    failures: tuple[type[SpecDecError], ...] = (SpecDecError,)

    def main(self, arguments: Sequence[str]) -> int:
        """Obey a command line; returns the exit code and leaves one line on stderr for a mistake."""
        schemas.register()
        self._register_resolvers()
        found = plugins.register(CONF)
        for line in found.warnings:
            print(f"warning: {line}", file=sys.stderr)
        try:
            with termination_interrupts():
                return self._dispatch(list(arguments), found.plugins)
        except SpecDecError as error:
            return _complain(error)
        except (HydraException, OmegaConfBaseException) as error:
            return _complain(mistakes.explain(error))
        except OSError as error:
            # A full disk or a folder that cannot be written; the traceback of a job is in its status.json.
            told = SpecDecError(f"a file cannot be used: {error} (conf: hydra.run.dir, of a sweep hydra.sweep.dir)")
            return _complain(told, EXIT_FAILED)
        except KeyboardInterrupt as interrupt:
            print("interrupted", file=sys.stderr)
            return EXIT_TERMINATED if isinstance(interrupt, Terminated) else EXIT_INTERRUPTED

    def _register_resolvers(self) -> None:
        OmegaConf.register_new_resolver("run_suffix", _run_suffix, use_cache=True, replace=True)

        def run_key(*, _root_: DictConfig) -> str:
            return self.key(without_hydra(_root_))

        OmegaConf.register_new_resolver("run_key", run_key, replace=True)

    def _dispatch(self, arguments: list[str], installed: Sequence[plugins.Plugin]) -> int:
        args = _parse(arguments)
        if args.help:
            command = f"python -m experiments.{self.name}"
            print(help_text(CONF, self.config, command=command, added=self.added, plugins=installed))
            return 0
        if args.hydra_help or args.cfg or args.info or args.shell_completion:
            return self._delegate([*custom_options(arguments), *arguments])
        version.setbase(VERSION_BASE)
        try:
            application = _create(self.name, args)
            return self._launch(application, args.config_name or self.config, args)
        finally:
            GlobalHydra.instance().clear()

    def _delegate(self, arguments: list[str]) -> int:
        """Let Hydra answer what starts no job: printed configuration, its own help, completion."""
        sys.argv[1:] = arguments
        # Mistakes then reach ``main`` instead of Hydra's own printer.
        os.environ["HYDRA_FULL_ERROR"] = "1"
        hydra.main(version_base=VERSION_BASE, config_path=str(CONF), config_name=self.config)(self.run)()
        return 0

    def _launch(self, application: Hydra, config_name: str, args: Namespace) -> int:
        overrides = list(args.overrides)
        if args.multirun or (_may_set_mode(overrides) and _asks_for_sweep(application, config_name, overrides)):
            return self._sweep(application, config_name, [*overrides, "hydra.mode=MULTIRUN"])
        return self._single(application, config_name, [*overrides, "hydra.mode=RUN"])

    def _single(self, application: Hydra, config_name: str, overrides: list[str]) -> int:
        composed = application.compose_config(
            config_name=config_name, overrides=overrides, run_mode=RunMode.RUN, with_log_configuration=False
        )
        if composed.get("shard") is not None:
            raise ConfigError("shard picks a part of a sweep: add -m (conf: shard)")
        self.check(without_hydra(composed))
        self._check_free(Path(composed.hydra.run.dir))
        capture = Capture(self.run)
        run_job(
            task_function=capture,
            config=composed,
            job_dir_key="hydra.run.dir",
            job_subdir_key=None,
            hydra_context=HydraContext(config_loader=application.config_loader, callbacks=Callbacks(composed)),
            configure_logging=False,
        )
        if capture.error is None:
            return 0
        if isinstance(capture.error, SpecDecError):
            return _complain(capture.error, EXIT_FAILED if isinstance(capture.error, self.failures) else EXIT_MISTAKE)
        raise capture.error

    def _check_free(self, folder: Path) -> None:
        """Raise SpecDecError before Hydra writes into a folder whose files belong to another run."""
        if self.is_done(folder):
            raise ConfigError(f"{folder} holds a finished run, and nothing is overwritten (conf: hydra.run.dir)")
        if folder.exists():
            with FolderLock(folder, wait=False):
                pass

    def _sweep(self, application: Hydra, config_name: str, overrides: list[str]) -> int:
        base = application.compose_config(
            config_name=config_name, overrides=overrides, run_mode=RunMode.MULTIRUN, with_log_configuration=True
        )
        jobs = self._grid(application, base)
        waiting = _first_of_each_folder([job for job in jobs if not self.is_done(job.folder)])
        skipped = len(jobs) - len(waiting)
        if skipped:
            print(f"{skipped} of {len(jobs)} jobs need not run: done, or the same as another", file=sys.stderr)
        errors = self._start(application, base, waiting) if waiting else {}
        if self.report is not None:
            self.report(jobs)
        return _report_failures([job for job in jobs if not self.is_done(job.folder)], errors)

    def _grid(self, application: Hydra, base: DictConfig) -> list[Job]:
        """Every job of the sweep that belongs to this shard, composed; raises before anything has run."""
        wanted = [f"{key}={value}" for key, value in (base.hydra.sweeper.get("params") or {}).items()]
        wanted += list(base.hydra.overrides.task)
        parsed = OverridesParser.create(config_loader=application.config_loader).parse_overrides(wanted)
        (grid,) = BasicSweeper.split_arguments(parsed, None)
        share = shard_of(base.get("shard"))
        chosen = grid[share]
        names = names_of(chosen)
        configs = []
        for name, lines in zip(names, chosen, strict=True):
            with naming(name):
                configs.append(application.config_loader.load_sweep_config(base, list(lines)))
        if self.check_grid is not None and configs:
            self.check_grid(configs, names)
        return [self._job(*job) for job in zip(names, configs, chosen, strict=True)]

    def _job(self, name: str, config: DictConfig, overrides: Sequence[str]) -> Job:
        if self.check_grid is None:
            with naming(name):
                self.check(without_hydra(config))
        folder = Path(config.hydra.sweep.dir) / self.key(without_hydra(config))
        return Job(overrides=tuple(overrides), config=config, folder=folder)

    def _start(self, application: Hydra, base: DictConfig, jobs: Sequence[Job]) -> dict[Path, str]:
        """Launch the jobs; returns the error of each that has one, by its folder."""
        sweep_dir = Path(base.hydra.sweep.dir)
        sweep_dir.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(base, sweep_dir / "multirun.yaml")
        context = HydraContext(config_loader=application.config_loader, callbacks=Callbacks(base))
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=Capture(self.run), config=base
        )
        # The folders by name: other processes need neither this one's resolvers nor the hashes behind a name.
        # In quotes: Hydra reads a bare 4675e82215186753 as a number, infinity.
        total = f"+hydra.job.env_set.{NUM_JOBS}={len(jobs)}"
        lines = [[*job.overrides, f"hydra.sweep.subdir='{job.folder.name}'", total] for job in jobs]
        write_plan(sweep_dir, {job.folder.name: job.overrides for job in jobs})
        with Kept() as kept, children_ended():
            returns: Sequence[JobReturn] = launcher.launch(lines, initial_job_idx=0)
        if kept.error is not None:
            # A launcher that lost a process of its own; what the others have done is done.
            print(f"error: the launcher failed: {kept.line}", file=sys.stderr)
            return {}
        assert len(returns) == len(jobs), "a launcher returns one result a job"
        return {job.folder: str(result.return_value or "") for job, result in zip(jobs, returns, strict=True)}


class Capture:
    """Calls a job and keeps its error, so that the jobs after it still run; an interrupt passes through.

    Returns the error in one line, which launchers carry from one process to another.
    """

    def __init__(self, run: Callable[[DictConfig], object]) -> None:
        self._run = run
        self.error: BaseException | None = None

    def __call__(self, config: DictConfig) -> str:
        with Kept() as kept:
            self._run(config)
        self.error = kept.error
        return kept.line


def without_hydra(config: DictConfig) -> DictConfig:
    """The configuration of the job alone; shares nothing with ``config``."""
    copied = config.copy()
    if "hydra" in copied:
        OmegaConf.set_readonly(copied, False)
        with open_dict(copied):
            del copied["hydra"]
    return copied


def shard_of(text: str | None) -> slice:
    """The jobs of part i of n, given as ``i/n`` counted from 0; everything for None. Raises ConfigError."""
    if text is None:
        return slice(None)
    index, slash, count = str(text).partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise ConfigError(f"shard must be i/n with 0 <= i < n, such as 0/4, got {text!r}")
    return slice(int(index), None, int(count))


def _may_set_mode(overrides: Sequence[str]) -> bool:
    """Whether it is worth composing once more to learn the mode: only a file or Hydra's own key can set it."""
    return any(word in line for line in overrides for word in ("sweep", "hydra.mode", "experiment"))


def _asks_for_sweep(application: Hydra, config_name: str, overrides: list[str]) -> bool:
    return application.get_mode(config_name=config_name, overrides=overrides) == RunMode.MULTIRUN


def _run_suffix() -> str:
    return secrets.token_hex(3)


def _first_of_each_folder(jobs: Sequence[Job]) -> list[Job]:
    """Jobs that differ only in what does not matter to them are one run."""
    return list({job.folder: job for job in reversed(jobs)}.values())[::-1]


def _report_failures(jobs: Sequence[Job], errors: Mapping[Path, str]) -> int:
    if not jobs:
        return 0
    print(f"error: {len(jobs)} jobs did not finish:", file=sys.stderr)
    for job in jobs:
        reason = errors.get(job.folder) or failure_of(job.folder) or status_of(job.folder).value
        print(f"  {job.folder}  {' '.join(job.overrides)}  {reason}", file=sys.stderr)
    return EXIT_FAILED


def _complain(error: SpecDecError, code: int = EXIT_MISTAKE) -> int:
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _parse(arguments: list[str]) -> Namespace:
    """Hydra's own flags and the overrides; raises ConfigError for a flag that Hydra does not have."""
    args, rest = get_args_parser().parse_known_args(arguments)
    # Argparse takes the words before the first flag and leaves those after it.
    args.overrides += rest
    flags = [word for word in args.overrides if word.startswith("-")]
    if flags:
        raise ConfigError(f"unknown flag {flags[0]}: settings are KEY=VALUE; --help lists them")
    args.overrides = [*custom_options(args.overrides), *args.overrides]
    return args


def custom_options(overrides: Sequence[str]) -> list[str]:
    """The options that a class of one's own implies: ``drafter=custom`` for ``drafter._target_=module.Config``."""
    chosen = {word.lstrip("+").partition("=")[0] for word in overrides if "=" in word}
    keys = [match.group("group", "rest") for match in map(OWN_CLASS.match, overrides) if match]
    groups = [f"{group}@{group}{rest}" if rest else group for group, rest in keys]
    return [f"{group}=custom" for group in dict.fromkeys(groups) if group not in chosen]


def _create(name: str, args: Namespace) -> Hydra:
    search_path = create_automatic_config_search_path(None, None, args.config_path or str(CONF))
    if args.config_dir is not None:
        folder = Path(args.config_dir).resolve()
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {args.config_dir} is not a folder")
        search_path.prepend(provider="command-line", path=f"file://{folder}", anchor=SearchPathQuery(provider="schema"))
    return Hydra.create_main_hydra2(task_name=name, config_search_path=search_path)
