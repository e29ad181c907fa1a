"""Worker: does one run after the other, each in its folder, with its baseline; knows nothing of Hydra's launching."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import OmegaConf

from experiments import baseline as baselines
from experiments.baseline import Baseline
from experiments.build import (
    Config,
    EngineMaker,
    Parts,
    borrows_draft,
    check_parts,
    device_of,
    drafter_config,
    dtype_of,
    load_target,
    target_request,
    with_references,
)
from experiments.checkpoints import folder_of
from experiments.compact import compact
from experiments.decode import Conversation, Decoded, decode
from experiments.environment import compared, environment_of, use_threads
from experiments.fingerprint import baseline_key, inputs_of
from experiments.lossless import Judgement, judge, require
from experiments.mode import drafter_of, mode_of
from experiments.near_ties import Examiner
from experiments.progress import Progress
from experiments.records import output_record, step_record
from experiments.run_folder import PROGRESS, FolderLock, RunFolder
from experiments.schemas import PLAIN_DRAFTER
from experiments.sinks.publish import Published, group_of
from experiments.summary import Run, summarise
from experiments.table import drafter_text, show
from experiments.target_checks import check_target
from experiments.targets import LoadedTarget
from experiments.workloads import Workload, workload_of
from specdec.engine import Engine
from specdec.engine_config import MIN_PAGES
from specdec.errors import ConfigError
from specdec.request import RequestOutput

WARM_UP_TOKENS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Everything of a run that is known before a model is loaded.

    environment  content of env.json
    shared_name  name of the baseline among those that a sweep shares
    """

    config: Config
    workload: Workload
    parts: Parts
    environment: Mapping[str, object]
    shared_name: str


def check_settings(config: Config) -> None:
    """Raise SpecDecError for whatever can be known to be wrong before a model is loaded, loggers aside."""
    folder_of(config["target"]["checkpoint"])
    check_job(config, check_parts(config, workload_of(config["workload"])))


def check_job(config: Config, parts: Parts) -> None:
    """Raise ConfigError for settings that contradict each other, UnsupportedError for what the target cannot do."""
    if config["require_lossless"] and not parts.verifier.lossless:
        raise ConfigError(f"require_lossless=true, and the verifier {parts.verifier.name} is lossy (conf: verifier)")
    check_target(config, parts.drafter, borrows_draft=borrows_draft(parts.drafter))
    if config["baseline"] == baselines.OFF:
        with_references(parts.drafter, None)
    elif config["baseline"] != baselines.AUTO:
        baselines.given_baseline(config["baseline"])


class Worker:
    """Keeps the target of the last run, so that a sweep loads it once."""

    def __init__(self) -> None:
        self._loaded: tuple[tuple[object, ...], LoadedTarget] | None = None

    def run(
        self,
        config: Config,
        folder: Path,
        *,
        shared_baselines: Path | None = None,
        label: str = "",
        define: bool = True,
    ) -> dict[str, object]:
        """Do a run in ``folder`` and print its table; returns its summary.

        shared_baselines  where a sweep keeps baselines; None: in the sub-folder ``baseline`` of ``folder``
        label             stands before the progress of the run
        define            whether the definitions of the figures follow the table

        Raises SpecDecError, and whatever a drafter raises; status.json then says ``failed``.
        """
        told = Published(config["logger"], folder, group=group_of(shared_baselines))
        with FolderLock(folder, wait=False):
            with told, RunFolder(folder) as out:
                with Progress(label=label, file=folder / PROGRESS) as progress:
                    progress.begin("loading")
                    setting = self._setting(config)
                    _begin(out, setting)
                    loaded = self._target(setting)
                    plain = self._baseline(setting, loaded, folder, shared_baselines, progress)
                    summary = _decode_into(out, setting, loaded, plain, progress)
                show(summary, folder, drafter=drafter_text(summary["drafter"]), define=define)
                if config["require_lossless"]:
                    require(Judgement(lossless=summary["lossless"], how=summary["lossless_how"]))
            return summary

    def _setting(self, config: Config) -> Setting:
        workload = workload_of(config["workload"])
        parts = check_parts(config, workload)
        check_job(config, parts)
        inputs = inputs_of(folder_of(config["target"]["checkpoint"]), workload.hash)
        environment = environment_of(
            device=device_of(config),
            dtype=dtype_of(config),
            threads=use_threads(config["engine"]["threads"]),
            seed=config["sampling"]["seed"],
            inputs=inputs,
        )
        return Setting(
            config=config,
            workload=workload,
            parts=parts,
            environment=environment,
            shared_name=baseline_key(config, inputs, compared(environment)),
        )

    def _target(self, setting: Setting) -> LoadedTarget:
        """The target of a run, loaded unless the last run had the same."""
        target = setting.config["target"]["_target_"]
        wanted = (target, setting.environment["checkpoint_hash"], target_request(setting.config))
        if self._loaded is None or self._loaded[0] != wanted:
            # The old weights go before the new ones come.
            self._loaded = None
            self._loaded = (wanted, load_target(setting.config))
        return self._loaded[1]

    def _baseline(
        self, setting: Setting, loaded: LoadedTarget, folder: Path, shared: Path | None, progress: Progress
    ) -> Baseline | None:
        """The plain run to compare with, made now if there is none yet."""
        choice = setting.config["baseline"]
        if choice == baselines.OFF:
            return None
        if choice != baselines.AUTO:
            given = baselines.given_baseline(choice)
            reason = baselines.unusable(given, setting.config, setting.environment)
            if reason is not None:
                raise ConfigError(f"baseline: {choice} cannot be compared with this run: {reason}")
            return baselines.read_baseline(given)
        place = folder / baselines.SUB_FOLDER if shared is None else shared / setting.shared_name
        if baselines.unusable(place, setting.config, setting.environment) is not None:
            _try_engine(setting, loaded)
        with FolderLock(place, wait=True):
            if baselines.unusable(place, setting.config, setting.environment) is not None:
                with RunFolder(place) as out:
                    plain = _as_plain(setting)
                    _begin(out, plain)
                    _decode_into(out, plain, loaded, None, progress)
            return baselines.read_baseline(place)


def _as_plain(setting: Setting) -> Setting:
    """The same run without a drafter and without a baseline of its own."""
    config = {
        **setting.config,
        "drafter": {"_target_": PLAIN_DRAFTER},
        "baseline": baselines.OFF,
        "require_lossless": False,
    }
    return replace(setting, config=config, parts=replace(setting.parts, drafter=drafter_config(config["drafter"])))


def _try_engine(setting: Setting, loaded: LoadedTarget) -> None:
    """Make the engine of a run once: what its target cannot do is refused before a baseline is decoded for it.

    Its caches have a page each, and a drafter that replays the baseline's text replays nothing here.
    """
    parts = setting.parts
    drafter, engine = with_references(parts.drafter, ()), replace(parts.engine, num_pages=MIN_PAGES)
    EngineMaker(loaded, drafter, parts.verifier, engine, draft_dtype=dtype_of(setting.config))()


def _begin(out: RunFolder, setting: Setting) -> None:
    out.write_config(OmegaConf.to_yaml(OmegaConf.create(dict(setting.config))))
    out.write_environment(setting.environment)


def _decode_into(
    out: RunFolder, setting: Setting, loaded: LoadedTarget, plain: Baseline | None, progress: Progress
) -> dict[str, object]:
    """Decode the workload as often as asked for; write rows, outputs and summary; returns the summary."""
    parts = setting.parts
    drafter = with_references(parts.drafter, plain.references if plain else None)
    make_engine = EngineMaker(loaded, drafter, parts.verifier, parts.engine, draft_dtype=dtype_of(setting.config))
    drafts = drafter_of(setting.config, parts.drafter)
    progress.begin(f"{drafter_text(drafts)}: warm-up")
    _warm_up(make_engine, setting, loaded)
    num_repeats = setting.config["engine"]["repeats"]
    repeats = [
        _decode_once(
            out if repeat == 0 else None,
            make_engine(),
            _conversations(setting, loaded),
            progress,
            what=drafter_text(drafts) + (f", repeat {repeat + 1} of {num_repeats}" if num_repeats > 1 else ""),
        )
        for repeat in range(num_repeats)
    ]
    progress.begin("summary")
    first = repeats[0]
    judgement = judge(parts.verifier, first.outputs, plain.outputs if plain else None)
    examiner = Examiner(
        make_engine=make_engine.plain,
        verifier=parts.verifier,
        sampling={row.id: each for row, each in zip(setting.workload.rows, parts.sampling, strict=True)},
        eos_ids=loaded.eos_ids,
        run_seed=parts.engine.seed,
        dtype=dtype_of(setting.config),
    )
    run = Run(
        mode=mode_of(setting.config, setting.environment, verifier=parts.verifier.name),
        drafter=drafts,
        rows=tuple(row for output in first.outputs for row in output.steps),
        outputs=first.outputs,
        execution=first.execution,
        timings=tuple(repeat.timing for repeat in repeats),
        num_skipped_turns=len(first.skipped_turns),
        repeats_agree=all(_ids(repeat) == _ids(first) for repeat in repeats),
        judgement=judgement,
        partings=examiner.examine(first.outputs, judgement.differences or ()),
        dtype=dtype_of(setting.config),
    )
    summary = summarise(run, plain.timings if plain else None)
    out.write_summary(summary)
    compact(out.path)
    return summary


def _decode_once(
    out: RunFolder | None, engine: Engine, conversations: list[Conversation], progress: Progress, *, what: str
) -> Decoded:
    """One decode of the workload, written to ``out`` if there is one; all of it but the rounds is outside of times."""

    def finish(output: RequestOutput) -> None:
        if out is not None:
            _write(out, output)
        progress.advance()

    progress.begin(what, total=sum(conversation.num_turns for conversation in conversations))
    return decode(engine, conversations, on_finish=finish)


def _conversations(setting: Setting, loaded: LoadedTarget) -> list[Conversation]:
    rows = zip(setting.workload.rows, setting.parts.sampling, strict=True)
    return [Conversation(row, sampling, loaded) for row, sampling in rows]


def _warm_up(make_engine: EngineMaker, setting: Setting, loaded: LoadedTarget) -> None:
    """A few tokens of the first prompt, so that the first timing does not pay for first calls."""
    sampling = setting.parts.sampling[0]
    few = min(WARM_UP_TOKENS, sampling.max_new_tokens)
    short = replace(sampling, max_new_tokens=few, min_new_tokens=min(few, sampling.min_new_tokens))
    engine = make_engine()
    engine.add(Conversation(setting.workload.rows[0], short, loaded).first())
    engine.run()


def _write(out: RunFolder, output: RequestOutput) -> None:
    out.append_steps([step_record(row) for row in output.steps])
    out.append_outputs([output_record(output)])


def _ids(decoded: Decoded) -> dict[tuple[str, int], tuple[int, ...]]:
    return {(output.request_id, output.turn): output.output_ids for output in decoded.outputs}
