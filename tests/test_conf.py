"""Configuration: every option composes and is checked, every mistake is named, and no option drags torch in."""

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from backends.deepseek_v4.rows import choose
from drafters import common
from experiments import mistakes, run, schemas
from experiments.app import CONF
from experiments.extras import MissingPackageError
from specdec.errors import ConfigError

GROUPS = ("target", "drafter", "verifier", "sampling", "workload", "engine", "logger", "launcher")
# What an option needs besides its name.
COMPLETED = {
    "target=custom": ["target._target_=somewhere.load"],
    "drafter=draft_model": ["drafter.checkpoint=somewhere"],
    "drafter=custom": ["drafter._target_=somewhere.Config"],
    "workload=file": ["workload.path=prompts.jsonl"],
    "verifier=greedy": ["sampling.temperature=0"],
}
# What stands for something that is not here: code from elsewhere, a file, an optional package.
NOT_HERE = (
    "target=custom",
    "target=hf",
    "drafter=custom",
    "drafter=draft_model",
    "drafter=suffix",
    "workload=file",
)


def composed(overrides: Sequence[str]) -> DictConfig:
    schemas.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=list(overrides))
    mistakes.check(config)
    return config


def refused(overrides: Sequence[str]) -> str:
    """The one line that a bad command line ends with."""
    with pytest.raises((ConfigError, HydraException, OmegaConfBaseException)) as refusal:
        composed(overrides)
    error = refusal.value
    line = str(error if isinstance(error, ConfigError) else mistakes.explain(error))
    assert "\n" not in line
    return line


def options() -> list[str]:
    return [f"{group}={path.stem}" for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


@pytest.mark.parametrize("option", options())
def test_option_composes_with_its_schema_and_can_be_made(option: str) -> None:
    group, _, name = option.partition("=")
    if group == "launcher" and not plugin_is_installed(name):
        pytest.skip(f"the plug-in of {option} is not installed")
    config = composed([option, *COMPLETED.get(option, [])])
    if group not in ("launcher", "logger"):
        assert OmegaConf.get_type(config[group]) in schemas.SCHEMAS.values()
    if option in NOT_HERE:
        return
    try:
        run.check(config)
    except MissingPackageError as missing:
        pytest.skip(str(missing))


def plugin_is_installed(launcher: str) -> bool:
    plugins = Path(find_spec("hydra").origin).parents[1] / "hydra_plugins"
    return launcher == "basic" or (plugins / f"hydra_{launcher.partition('_')[0]}_launcher").is_dir()


@pytest.mark.parametrize("path", sorted((CONF / "experiment").glob("*.yaml")), ids=lambda path: path.stem)
def test_experiment_composes_and_can_be_made(path: Path) -> None:
    run.check(composed([f"+experiment={path.stem}"]))


@pytest.mark.parametrize("path", sorted((CONF / "sweep").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_value_of_a_sweep_composes_and_can_be_made(path: Path) -> None:
    axes = {key: str(value).split(",") for key, value in OmegaConf.load(path).hydra.sweeper.params.items()}
    first = {key: values[0] for key, values in axes.items()}
    points = {tuple({**first, key: value}.items()) for key, values in axes.items() for value in values}
    for point in sorted(points):
        run.check(composed([f"+sweep={path.stem}", *(f"{key}={value}" for key, value in point)]))


def test_defaults_are_the_documented_ones() -> None:
    config = composed([])
    assert config.target.checkpoint == "embedded"
    assert config.target.cache_dtype == "fp32"
    assert config.drafter == {
        "_target_": "drafters.nextn.NextnConfig",
        "num_draft_tokens": 3,
        "proposals": "sampled",
    }
    assert config.verifier["_target_"].endswith("GumbelVerifierConfig")
    expected = {"temperature": 0.8, "seed": 0, "max_new_tokens": 128, "top_p": 1.0, "min_p": 0.0, "top_k": 0}
    assert {key: config.sampling[key] for key in expected} == expected
    assert (config.workload.name, config.workload.limit) == ("builtin", 12)
    assert (config.engine.max_batch, config.engine.prefill_chunk, config.engine.repeats) == (1, 512, 1)
    assert (config.baseline, config.require_lossless, config.shard) == ("auto", False, None)
    assert composed(["workload=file", "workload.path=x"]).workload.limit is None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("drafter.num_draft_tokenz=3", "nearest: drafter.num_draft_tokens"),
        ("sampling.temprature=1", "nearest: sampling.temperature"),
        ("draftr=ngram", "nearest: drafter"),
        ("drafter=ngramm", "nearest: ngram (options: adaptive"),
        ("drafter=pair", "there is no such option; a file of your own needs --config-dir FOLDER (options: adaptive"),
        ("+experiment=smok", "nearest: smoke"),
        ("experiment=smoke", "experiment=smoke needs a plus sign before it: write +experiment=smoke"),
        ("sweep=draft_length", "write +sweep=draft_length"),
        ("+experimnt=smoke", "nearest: experiment"),
        ("+drafter.tokens=3", "unknown key drafter.tokens"),
        ("drafter.num_draft_tokens=four", "drafter.num_draft_tokens must be an integer, 1 to 31, got 'four'"),
        ("drafter.num_draft_tokens=32", "drafter.num_draft_tokens must be an integer, 1 to 31, got 32"),
        ("drafter.num_draft_tokens=0", "1 to 31, got 0"),
        ("drafter.num_draft_tokens=true", "must be an integer"),
        ("sampling.temperature=nan", "sampling.temperature must be a number, at least 0, got nan"),
        ("sampling.temperature=-0.5", "got -0.5"),
        ("sampling.top_p=1.5", "sampling.top_p must be a number, 0 to 1, got 1.5"),
        ("sampling.stop=abc", "sampling.stop must be a list"),
        ("target.cache_dtype=fp7", "target.cache_dtype must be one of fp32, bf16, fp8, got 'fp7'"),
        ("drafter.proposals=best", "drafter.proposals must be one of sampled, greedy, got 'best'"),
        ("engine.max_batch=2.5", "engine.max_batch must be an integer, at least 1, got '2.5'"),
        ("engine.threads=1000000", "engine.threads must be an integer or null, 1 to 1024, got 1000000"),
        ("require_lossless=maybe", "require_lossless must be true or false, got 'maybe'"),
        ("workload=file", "workload.path must be set"),
        ("drafter=custom", "drafter._target_ must be set"),
        ("engine.device=[", "cannot read the override 'engine.device=['"),
        ("~drafter", "drafter must be set"),
        (
            "drafter._target_=my.Config",
            "drafters.nextn.NextnConfig, got my.Config: write drafter=custom drafter._target_=my.Config",
        ),
        (
            "drafter=adaptive drafter@drafter.wrapped=ngram drafter.wrapped._target_=my.Config",
            "write drafter@drafter.wrapped=custom drafter.wrapped._target_=my.Config",
        ),
        ("drafter=adaptive drafter.wrapped.proposals=best", "drafter.wrapped.proposals must be one of sampled, greedy"),
        ("drafter=adaptive drafter.wrapped.tokens=1", "unknown key drafter.wrapped.tokens"),
        (
            "drafter=adaptive drafter.wrapped=ngram",
            "drafter.wrapped must be a drafter, got 'ngram': write drafter@drafter.wrapped=ngram",
        ),
        ("drafter=cascade drafter.drafters.a=ngram", "write drafter@drafter.drafters.a=ngram"),
        ("drafter=cascade +drafter.drafters.c=ngram", "write +drafter@drafter.drafters.c=ngram"),
        (
            "drafter=cascade drafter@drafter.drafters.b=adaptive drafter.drafters.b.wrapped=ngram",
            "write drafter@drafter.drafters.b.wrapped=ngram",
        ),
        ("drafter=adaptive drafter.policy=best", "drafter.policy must be one of fixed, average, ucb, confidence"),
        ("drafter=cascade drafter.drafters.a.max_ngram=99", "drafter.drafters.a.max_ngram must be an integer, 1 to 16"),
        ("drafter=my.Config", "a class is given as drafter=custom drafter._target_=my.Config"),
        ("target=my.load", "a class is given as target=custom target._target_=my.load"),
    ],
)
def test_mistake_names_key_value_and_what_is_allowed(override: str, said: str) -> None:
    assert said in refused(override.split())


@pytest.mark.parametrize("override", ["drafter=none,ngram", "drafter.num_draft_tokens=1,2"])
def test_several_values_without_a_sweep_name_the_flag(override: str) -> None:
    key, _, value = override.partition("=")
    said = refused([override])
    assert said.startswith(f"{override}: to run once for each of these values add -m")
    assert f"{key}=[{value}]" in said


def test_key_of_another_option_is_unknown_here() -> None:
    assert "unknown key drafter.proposals" in refused(["drafter=ngram", "drafter.proposals=greedy"])
    said = refused(["drafter=nextn", "drafter.min_ngram=1"])
    assert "unknown key drafter.min_ngram (this drafter has num_draft_tokens, proposals)" in said


def test_custom_drafter_takes_free_parameters_with_and_without_plus() -> None:
    base = ["drafter=custom", "drafter._target_=my_module.MyConfig"]
    for override in ("drafter.params.depth=4", "+drafter.params.depth=4"):
        assert composed([*base, override]).drafter.params == {"depth": 4}


def test_drafter_without_any_yaml_is_composed() -> None:
    config = composed(["~drafter", "+drafter._target_=my_module.MyConfig", "+drafter.token=9"])
    assert config.drafter == {"_target_": "my_module.MyConfig", "token": 9}


def test_every_setting_with_a_range_says_what_it_allows() -> None:
    config = composed([])
    described = {key: mistakes.describe(spec) for key, _, spec in mistakes.settings_of(config)}
    assert described["engine.repeats"] == "an integer, at least 1"
    assert described["drafter.num_draft_tokens"] == "an integer, 1 to 31"
    assert described["engine.max_context"] == "an integer or null, at least 2"


def test_schemas_name_the_limits_of_the_parts_that_they_configure() -> None:
    """Schemas import no torch, so they repeat what the parts say themselves."""
    assert schemas.MAX_DRAFT_TOKENS == common.MAX_DRAFT_TOKENS
    assert set(schemas.CACHE_DTYPES) == set(choose.CACHE_DTYPES)
    assert set(schemas.INDEXER_DTYPES) == set(choose.INDEXER_DTYPES)


def test_composing_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from hydra import compose, initialize_config_dir\n"
        "from experiments import mistakes, run, schemas\n"
        "from experiments.app import CONF\n"
        "schemas.register()\n"
        "with initialize_config_dir(str(CONF), version_base='1.3'):\n"
        "    mistakes.check(compose('config'))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CONF.parent, timeout=60)
