"""From configuration to live objects: the only file that puts target, drafter, verifier and engine together."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from inspect import signature
from typing import Any

import torch

from drafters.common import MAX_DRAFT_TOKENS
from drafters.none import NoneConfig, NoneDrafter
from experiments.annotations import checked, declared
from experiments.checkpoints import check_head_fits, folder_of
from experiments.kernels import choose_kernels
from experiments.memory import CACHE_KEYS, check_fits, table_bytes
from experiments.mistakes import nearest
from experiments.targets import DraftRequest, Lender, LoadedTarget, TargetRequest
from experiments.workloads import Row, Workload
from specdec.api import Coupling, DraftBackend, Drafter, DrafterConfig, DrafterNeeds, DraftSetup, Verifier
from specdec.checks import integer
from specdec.engine import Engine
from specdec.engine_config import EngineConfig, plan_cache
from specdec.errors import CapacityError, ConfigError, WorkloadError
from specdec.sampling_params import SamplingParams
from specdec.trees.support import check_without_target

# Torch on the CPU raises a plain RuntimeError, which only these words tell from others.
OUT_OF_MEMORY = ("DefaultCPUAllocator", "Storage size calculation overflowed", "out of memory")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Config = Mapping[str, Any]
Reference = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a configuration asks for, checked, before any model is loaded.

    drafter   configuration of the drafter
    verifier  the rule
    engine    sizes of the engine
    sampling  of each row of the workload, in order
    """

    drafter: DrafterConfig
    verifier: Verifier
    engine: EngineConfig
    sampling: tuple[SamplingParams, ...]


def check_parts(config: Config, workload: Workload) -> Parts:
    """Make everything that needs no model; raises SpecDecError for what cannot work."""
    device_of(config)
    kernels_of(config)
    parts = Parts(
        drafter=drafter_config(config["drafter"]),
        verifier=instantiate(config["verifier"], "verifier").build(),
        engine=engine_config(config),
        sampling=tuple(sampling_params(config["sampling"], row) for row in workload.rows),
    )
    if (own := own_model(parts.drafter)) is not None:
        check_head_fits(own[1], config["target"]["checkpoint"], loader=config["target"]["_target_"])
        folder_of(own[1], key="drafter.checkpoint")
    check_combination(parts.drafter, parts.verifier, parts.engine)
    if parts.verifier.coupling is Coupling.GREEDY:
        for row, params in zip(workload.rows, parts.sampling, strict=True):
            check_greedy(row, params, verifier=parts.verifier.name)
    return parts


def check_combination(drafter: DrafterConfig, verifier: Verifier, engine: EngineConfig) -> None:
    """Raise ConfigError or UnsupportedError for parts that no target could make work together."""
    # Plain decoding ignores the length that a sweep gives it.
    engine.check_width(0 if isinstance(drafter, NoneConfig) else drafter.num_draft_tokens)
    check_without_target(drafter.needs, verifier, engine)


def check_greedy(row: Row, params: SamplingParams, *, verifier: str) -> None:
    """Raise ConfigError for a temperature that a verifier of argmaxes would not obey."""
    if params.greedy:
        return
    if "temperature" in row.overrides:
        raise ConfigError(
            f"row {row.id!r}: verifier={verifier} decodes at temperature 0, got temperature={params.temperature}; "
            f"set its temperature to 0 or verifier=gumbel"
        )
    raise ConfigError(
        f"verifier={verifier} decodes at temperature 0, got sampling.temperature={params.temperature}; "
        f"set sampling.temperature=0 or verifier=gumbel"
    )


def instantiate(node: Config, key: str) -> Any:
    """Call ``node._target_`` with the node's other settings and its ``params``; raises ConfigError.

    A setting that has a ``_target_`` itself, or is a mapping of such, is made first; others are of the declared type.
    """
    maker = locate(node["_target_"], f"{key}._target_")
    arguments = {name: value for name, value in node.items() if name not in ("_target_", "params")}
    if arguments.get("num_draft_tokens", 0) is None:
        del arguments["num_draft_tokens"]
    params = node.get("params") or {}
    arguments |= params
    try:
        signature(maker).bind(**arguments)
    except TypeError as error:
        takes = ", ".join(signature(maker).parameters) or "nothing"
        raise ConfigError(f"{node['_target_']}: {error}; it takes {takes} (conf: {key}.params)") from None
    types = declared(maker)
    for name, value in arguments.items():
        own = f"{key}.params.{name}" if name in params else f"{key}.{name}"
        arguments[name] = _made(checked(value, types.get(name, Any), own), own)
    return maker(**arguments)


def _made(value: Any, key: str) -> Any:
    if isinstance(value, list):
        return tuple(_made(item, key) for item in value)
    if not isinstance(value, Mapping):
        return value
    if "_target_" in value:
        return instantiate(value, key)
    return {name: _made(item, f"{key}.{name}") for name, item in value.items()}


def locate(path: str, key: str) -> Any:
    """The object that an importable path such as ``package.module.Name`` names; raises ConfigError."""
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise ConfigError(f"{key} must be an importable path such as package.module.Name, got {path!r}")
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"{key}: cannot import {module_name}: {error}{_looked_up(module_name, error)}") from None
    if name not in vars(module):
        raise ConfigError(f"{key}: module {module_name} has no {name}{nearest(name, vars(module))}")
    return vars(module)[name]


def _looked_up(module_name: str, error: ImportError) -> str:
    """Where a module of one's own is looked for; nothing when it was found, and what it imports was not."""
    if not isinstance(error, ModuleNotFoundError) or error.name not in (module_name, module_name.partition(".")[0]):
        return ""
    return " (looked for in the working directory, PYTHONPATH and installed packages)"


def drafter_config(node: Config) -> DrafterConfig:
    """The drafter's own configuration object; raises ConfigError for one that does not offer the seam."""
    config = instantiate(node, "drafter")
    missing = [name for name in ("num_draft_tokens", "needs", "build") if name not in dir(config)]
    if missing:
        raise ConfigError(f"{node['_target_']} is no drafter configuration: it has no {', '.join(missing)}")
    if not isinstance(config.needs, DrafterNeeds):
        raise ConfigError(f"{node['_target_']}: needs must be a specdec.api.DrafterNeeds, got {config.needs!r}")
    # A parameter of a class from elsewhere passes by the schema.
    integer("num_draft_tokens", config.num_draft_tokens, low=0, high=MAX_DRAFT_TOKENS, where="drafter")
    return config


def with_references(config: DrafterConfig, references: Sequence[Reference] | None) -> DrafterConfig:
    """A drafter that replays known text (it has a field ``references``), wrapped or not, is given the baseline's."""
    if not is_dataclass(config):
        return config
    values = {spec.name: getattr(config, spec.name) for spec in fields(config) if spec.init}
    changed = {name: _wrapped_with_references(value, references) for name, value in values.items()}
    changed = {name: value for name, value in changed.items() if value is not values[name]}
    if "references" in values:
        if references is None:
            raise ConfigError(
                "this drafter replays the baseline's output, and baseline=off leaves none (conf: baseline)"
            )
        changed["references"] = tuple(references)
    return replace(config, **changed) if changed else config


def _wrapped_with_references(value: Any, references: Sequence[Reference] | None) -> Any:
    """A setting that is a configuration, or a mapping of such, given the references; the same object otherwise."""
    if is_dataclass(value):
        return with_references(value, references)
    if not isinstance(value, Mapping):
        return value
    given = {name: _wrapped_with_references(item, references) for name, item in value.items()}
    return given if any(given[name] is not value[name] for name in value) else value


def own_model(config: DrafterConfig) -> tuple[str, str] | None:
    """Loader and checkpoint of the model that a drafter, or one that it wraps, brings itself; None without.

    Raises ConfigError for drafters with several models, of which only one would be loaded and serve them all.
    """
    found = tuple(dict.fromkeys(_models(config)))
    if len(found) > 1:
        names = " and ".join("the target's own draft model" if model is None else model[1] for model in found)
        raise ConfigError(
            f"the drafters of a run share one draft model, these use {names} (conf: drafter.drafters, drafter.wrapped)"
        )
    return found[0] if found else None


def borrows_draft(config: DrafterConfig) -> bool:
    """Whether a drafter, or one that it wraps, drafts with the target's own draft model."""
    return None in _models(config)


def _models(config: object) -> Iterator[tuple[str, str] | None]:
    """Loader and checkpoint of every drafter that brings a model, None for every one that uses the target's own."""
    if isinstance(config, Mapping):
        config = tuple(config.values())
    if isinstance(config, tuple | list):
        for each in config:
            yield from _models(each)
        return
    if not is_dataclass(config):
        return
    values = {spec.name: getattr(config, spec.name) for spec in fields(config)}
    if {"loader", "checkpoint"} <= set(values):
        yield values["loader"], values["checkpoint"]
        return
    wrapped = tuple(_models(tuple(values.values())))
    yield from wrapped
    needs = config.needs if "needs" in dir(config) else None
    if not wrapped and isinstance(needs, DrafterNeeds) and needs.draft_backend:
        yield None


def engine_config(config: Config) -> EngineConfig:
    """The engine's settings; the run's seed comes from ``sampling.seed``."""
    node = config["engine"]
    return EngineConfig(
        max_batch=node["max_batch"],
        max_context=node["max_context"],
        prefill_chunk=node["prefill_chunk"],
        num_pages=node["num_pages"],
        batch_invariant=node["batch_invariant"],
        fixed_rows=node["fixed_rows"],
        graphs=node["graphs"],
        graph_batch_sizes=None if node["graph_batch_sizes"] is None else tuple(node["graph_batch_sizes"]),
        kernels=kernels_of(config),
        record_probs=node["record_probs"],
        seed=config["sampling"]["seed"],
    )


def sampling_params(node: Config, row: Row) -> SamplingParams:
    """How a row samples; without a seed of its own it derives one from the run's seed and its id."""
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in node.items() if name != "seed"}
    try:
        return SamplingParams(**{**settings, **row.overrides})
    except ConfigError as error:
        if not row.overrides:
            raise
        raise WorkloadError(f"row {row.id!r}: {error}") from None


def device_of(config: Config) -> torch.device:
    """``engine.device``, or cuda where there is one; raises ConfigError for a device that is not there."""
    name = config["engine"]["device"]
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu" or (name.partition(":")[0] == "cuda" and torch.cuda.is_available()):
        return torch.device(name)
    offered = "cpu or cuda" if torch.cuda.is_available() else "cpu (no GPU was found)"
    raise ConfigError(f"engine.device must be {offered}, got {name!r}")


def dtype_of(config: Config) -> torch.dtype:
    """``engine.dtype``, or fp32 on a CPU and bf16 on a GPU."""
    name = config["engine"]["dtype"]
    if name is None:
        return torch.float32 if device_of(config).type == "cpu" else torch.bfloat16
    return DTYPES[name]


def indexer_dtype_of(config: Config) -> str:
    """``target.indexer_dtype``, or fp8 under an fp8 cache and plain under any other."""
    node = config["target"]
    return node["indexer_dtype"] or ("fp8" if node["cache_dtype"] == "fp8" else "plain")


def target_request(config: Config) -> TargetRequest:
    """What a configuration asks of the loader; equal for configurations that one loaded target serves."""
    node = config["target"]
    return TargetRequest(
        folder=folder_of(node["checkpoint"]),
        cache_dtype=node["cache_dtype"],
        indexer_dtype=indexer_dtype_of(config),
        device=device_of(config),
        dtype=dtype_of(config),
        batch_invariant=config["engine"]["batch_invariant"],
        fixed_rows=config["engine"]["fixed_rows"],
        kernels=kernels_of(config),
        params=node["params"],
    )


def kernels_of(config: Config) -> str:
    """``engine.kernels``, or what the device and the cache allow; raises ConfigError for what cannot run."""
    return choose_kernels(
        config["engine"]["kernels"], device=device_of(config), cache_dtype=config["target"]["cache_dtype"]
    )


def load_target(config: Config) -> LoadedTarget:
    """Load the target of a configuration; raises SpecDecError."""
    load = locate(config["target"]["_target_"], "target._target_")
    with fitting_into_memory("weights that config.json describes", conf="target.checkpoint, engine.dtype"):
        return load(target_request(config))


@contextmanager
def fitting_into_memory(what: str, *, conf: str) -> Iterator[None]:
    """Turn torch's failure to allocate ``what`` into a CapacityError that names the keys ``conf``."""
    try:
        yield
    except RuntimeError as error:
        if not any(words in str(error) for words in OUT_OF_MEMORY):
            raise
        raise CapacityError(f"the {what} do not fit into memory (conf: {conf})") from None


class EngineMaker:
    """Makes one engine after the other over the same caches: timing repeats differ in nothing but the clock."""

    def __init__(
        self,
        loaded: LoadedTarget,
        drafter: DrafterConfig,
        verifier: Verifier,
        config: EngineConfig,
        *,
        draft_dtype: torch.dtype = torch.float32,
    ) -> None:
        self._loaded, self._drafter, self._verifier, self._config = loaded, drafter, verifier, config
        self.max_context = config.context_limit(loaded.max_context)
        self._draft_groups = loaded.draft_groups if drafter.needs.draft_backend else ()
        plan = plan_cache(
            loaded.cache_groups,
            config,
            max_context=self.max_context,
            num_draft_tokens=drafter.num_draft_tokens,
            draft_groups=[spec.group_id for spec in self._draft_groups],
        )
        of_requests = f"of {config.max_batch} requests of {self.max_context} tokens"
        tables = table_bytes(plan, max_batch=config.max_batch)
        check_fits(f"block tables {of_requests}", tables, torch.device("cpu"), conf=CACHE_KEYS)
        with fitting_into_memory(f"caches {of_requests}", conf=CACHE_KEYS):
            self._served = loaded.serve(plan.num_pages, max_context=self.max_context, max_batch=config.max_batch)
        own = own_model(drafter)
        self._draft_backend = self._served.draft_backend if own is None else self._load_draft(*own, draft_dtype)

    def _load_draft(self, loader: str, checkpoint: str, dtype: torch.dtype) -> DraftBackend:
        request = DraftRequest(
            folder=folder_of(checkpoint, key="drafter.checkpoint"),
            device=self._served.target.device,
            dtype=dtype,
            vocab_size=self._served.target.vocab_size,
            tokenizer=self._loaded.tokenizer,
            max_context=self.max_context,
            max_batch=self._config.max_batch,
            lent=self._loaded.lend() if isinstance(self._loaded, Lender) else None,
        )
        with fitting_into_memory("weights of the draft model", conf="drafter.checkpoint, engine.dtype"):
            return locate(loader, "drafter.loader")(request)

    def plain(self, verifier: Verifier) -> Engine:
        """A fresh engine over the same caches that decodes one request at a time, eagerly and without a drafter."""
        config = replace(self._config, max_batch=1, graphs=False, graph_batch_sizes=None)
        loaded = self._loaded
        return Engine(self._served.target, NoneDrafter(), verifier, config, loaded.eos_ids, bos_id=loaded.bos_id)

    def __call__(self) -> Engine:
        """A fresh engine with a fresh drafter."""
        target = self._served.target
        setup = DraftSetup(
            device=target.device,
            vocab_size=target.vocab_size,
            max_batch=self._config.max_batch,
            max_context=self.max_context,
            draft_backend=self._draft_backend,
        )
        tokenizer = self._loaded.tokenizer
        drafter: object = self._drafter.build(setup)
        if not isinstance(drafter, Drafter):
            name = type(self._drafter).__name__
            raise ConfigError(f"{name}.build must return a specdec.api.Drafter, got {drafter!r} (conf: drafter)")
        return Engine(
            target,
            drafter,
            self._verifier,
            self._config,
            self._loaded.eos_ids,
            None if tokenizer is None else tokenizer.decode,
            bos_id=self._loaded.bos_id,
            draft_groups=self._draft_groups,
        )
