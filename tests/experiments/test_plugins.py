"""Drafters from outside: an installed package, a module in the working directory, a config folder; and broken ones."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from experiments.app import CONF, custom_options
from experiments.run_folder import read_json

DRAFTER = '''
from dataclasses import dataclass

import torch

from specdec.api import DrafterNeeds, DraftInput, DraftSetup, Proposal


@dataclass(frozen=True, kw_only=True)
class LuckyConfig:
    """Proposes the same token always."""

    num_draft_tokens: int = 2
    token: int = 7
    needs: DrafterNeeds = DrafterNeeds()

    def build(self, setup: DraftSetup) -> "Lucky":
        return Lucky(self)


class Lucky:
    def __init__(self, config: LuckyConfig) -> None:
        self.num_draft_tokens, self.needs, self._token = config.num_draft_tokens, config.needs, config.token

    def propose(self, inputs: DraftInput) -> Proposal | None:
        tokens_BK = torch.full((inputs.layout.num_reqs, self.num_draft_tokens), self._token)
        return Proposal(tokens_BK=tokens_BK, num_drafted_B=inputs.limits_B)

    def forget(self, rows) -> None:
        pass
'''
TOY = ("target=toy", "+experiment=smoke", "workload.limit=1", "sampling.max_new_tokens=4", "engine.threads=1")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def distribution(name: str, *entries: str) -> dict[str, str]:
    """What an installer leaves of a distribution, as far as its entry points go."""
    return {
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/entry_points.txt": "[specdec.plugins]\n" + "\n".join(entries) + "\n",
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages: one that works in both ways, and every way of being broken."""
    folder = tmp_path_factory.mktemp("site")
    lucky = {
        "lucky_drafts/__init__.py": "",
        "lucky_drafts/drafter.py": DRAFTER,
        "lucky_drafts/conf/__init__.py": "",
        "lucky_drafts/conf/drafter/lucky.yaml": "# Always the same token.\n_target_: lucky_drafts.drafter.LuckyConfig\n"
        "num_draft_tokens: 2\ntoken: 9\n",
    }
    broken = {"falls_over/__init__.py": "raise RuntimeError('not today')\n", "no_options/__init__.py": ""}
    entries = ("folder = lucky_drafts.conf", "plain = lucky_drafts.drafter:LuckyConfig")
    wrong = (
        "absent = absent_package.conf",
        "fallen = falls_over",
        "empty = no_options",
        "module = lucky_drafts.drafter",
        "nowhere = lucky_drafts.nowhere:Config",
        "ngram = lucky_drafts.drafter:LuckyConfig",
    )
    write(folder, {**lucky, **broken, **distribution("lucky", *entries), **distribution("broken", *wrong)})
    return folder


def command(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``python -m experiments.run`` in a process of its own, with the packages of ``site`` installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(CONF.parent)]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "experiments.run", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_help_lists_what_is_installed_and_warns_of_what_is_broken(site: Path, tmp_path: Path) -> None:
    done = command(site, tmp_path, "--help")
    assert done.returncode == 0
    assert "  folder (lucky 1.0): drafter=lucky\n" in done.stdout
    assert "  plain (lucky 1.0): drafter=plain is lucky_drafts.drafter.LuckyConfig\n" in done.stdout
    assert "  drafter=nextn*" in done.stdout
    warnings = dict(line.split(" (broken 1.0) is left out: ") for line in done.stderr.splitlines())
    assert warnings == {
        "warning: plug-in absent": "ModuleNotFoundError: No module named 'absent_package'",
        "warning: plug-in fallen": "RuntimeError: not today",
        "warning: plug-in empty": "no_options holds no option such as drafter/empty.yaml",
        "warning: plug-in module": "lucky_drafts.drafter must be a package with an __init__.py of config groups",
        "warning: plug-in nowhere": "there is no module lucky_drafts.nowhere",
        "warning: plug-in ngram": "drafter=ngram ships already",
    }


def test_options_of_an_installed_package_run_side_by_side(site: Path, tmp_path: Path) -> None:
    done = command(site, tmp_path, "-m", "drafter=lucky,plain", "drafter.num_draft_tokens=1", *TOY)
    assert done.returncode == 0, done.stderr
    nodes = [OmegaConf.load(path).drafter for path in (tmp_path / "multirun" / "adhoc").glob("*/config.resolved.yaml")]
    assert sorted(node.get("token", 0) for node in nodes) == [0, 9]
    assert {node["_target_"] for node in nodes} == {"lucky_drafts.drafter.LuckyConfig"}


def test_printed_configuration_knows_them_too(site: Path, tmp_path: Path) -> None:
    done = command(site, tmp_path, "--cfg", "job", "drafter=lucky")
    assert "token: 9" in done.stdout, done.stderr


def test_a_class_of_a_module_in_the_working_directory_needs_no_option(
    run_here: Callable[..., int], tmp_path: Path
) -> None:
    write(tmp_path, {"my_lucky_module.py": DRAFTER})
    named = "drafter._target_=my_lucky_module.LuckyConfig"
    assert run_here(named, "drafter.num_draft_tokens=1", "drafter.params.token=5", *TOY, "hydra.run.dir=one") == 0
    node = OmegaConf.load(tmp_path / "one" / "config.resolved.yaml").drafter
    assert (node["_target_"], node["params"]) == ("my_lucky_module.LuckyConfig", {"token": 5})
    assert read_json(tmp_path / "one" / "summary.json")["lossless"] is True


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "needs: DrafterNeeds = DrafterNeeds()",
            "needs: None = None",
            "needs must be a specdec.api.DrafterNeeds, got None",
        ),
        ("return Lucky(self)", "Lucky(self)", "LuckyConfig.build must return a specdec.api.Drafter, got None"),
    ],
)
def test_a_class_that_breaks_the_seam_is_named_in_one_line(
    run_here: Callable[..., int], tmp_path: Path, monkeypatch, capsys, old: str, new: str, said: str
) -> None:
    module = f"broken_{len(new)}"
    write(tmp_path, {f"{module}.py": DRAFTER.replace(old, new)})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run_here("drafter=custom", f"drafter._target_={module}.LuckyConfig", *TOY) != 0
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_a_config_folder_on_the_command_line_adds_options(run_here: Callable[..., int], tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "my_other_module.py": DRAFTER,
            "my_conf/drafter/mine.yaml": "_target_: my_other_module.LuckyConfig\nnum_draft_tokens: 2\ntoken: 3\n",
        },
    )
    assert run_here("--config-dir", "my_conf", "drafter=mine", "drafter.token=4", *TOY, "hydra.run.dir=one") == 0
    assert OmegaConf.load(tmp_path / "one" / "config.resolved.yaml").drafter["token"] == 4


@pytest.mark.parametrize(
    ("overrides", "implied"),
    [
        (["drafter._target_=a.B"], ["drafter=custom"]),
        (["target._target_=a.load", "drafter._target_=a.B"], ["target=custom", "drafter=custom"]),
        (["drafter=adaptive", "drafter.wrapped._target_=a.B"], ["drafter@drafter.wrapped=custom"]),
        (["drafter=custom", "drafter._target_=a.B"], []),
        (["~drafter", "+drafter._target_=a.B"], []),
        (["verifier._target_=a.B", "drafter.num_draft_tokens=2"], []),
    ],
)
def test_a_class_implies_the_option_that_takes_any_class(overrides: list[str], implied: list[str]) -> None:
    assert custom_options(overrides) == implied
