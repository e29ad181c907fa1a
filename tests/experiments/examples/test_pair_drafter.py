"""The example of a drafter keeps to the contract, and the README's way to compare it works as written."""

import ast
import re
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path

from omegaconf import OmegaConf

from experiments.app import CONF
from experiments.examples import pair_drafter
from experiments.examples.pair_drafter import PairConfig
from experiments.run_folder import read_json
from specdec.testing import check_drafter

README = (CONF.parent / "README.md").read_text(encoding="utf-8")
TOY = ("target=toy", "+experiment=smoke", "workload.limit=1", "sampling.max_new_tokens=8")


def test_example_keeps_to_the_contract_and_drafts() -> None:
    tally = check_drafter(PairConfig())
    assert tally.num_drafted > tally.num_accepted > 0


def test_logic_is_as_short_as_the_readme_says() -> None:
    """Lines of the bodies of functions, without their descriptions."""
    tree = ast.parse(Path(pair_drafter.__file__).read_text(encoding="utf-8"))
    bodies = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    lines = {
        line
        for function in bodies
        for statement in function.body
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for line in range(statement.lineno, statement.end_lineno + 1)
    }
    assert len(lines) <= 20


def test_readme_compares_the_example_with_one_file_and_one_command(
    run_here: Callable[..., int], tmp_path: Path
) -> None:
    """The file and the command as the README has them, on the toy target."""
    ((path, text),) = re.findall(r"`(\w+/drafter/pair\.yaml)`:\n\n((?:    .*\n)+)", README)
    (command,) = re.findall(r"^    python -m experiments\.run (.*drafter=pair.*)$", README, re.MULTILINE)
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    assert len(text.splitlines()) <= 4
    assert run_here(*shlex.split(command.partition("#")[0]), *TOY) == 0
    runs = [entry for entry in (tmp_path / "multirun" / "adhoc").iterdir() if (entry / "summary.json").exists()]
    drafters = {OmegaConf.load(run / "config.resolved.yaml").drafter["_target_"] for run in runs}
    assert drafters == {
        "experiments.examples.pair_drafter.PairConfig",
        "drafters.ngram.NgramConfig",
        "drafters.nextn.NextnConfig",
    }
    assert all(read_json(run / "summary.json")["lossless"] is True for run in runs)


def test_readme_runs_the_example_with_a_parameter(run_here: Callable[..., int], tmp_path: Path) -> None:
    (command,) = re.findall(r"^    python -m experiments\.run (drafter\._target_=.*)$", README, re.MULTILINE)
    assert run_here(*shlex.split(command), *TOY, "hydra.run.dir=one") == 0
    node = OmegaConf.load(tmp_path / "one" / "config.resolved.yaml").drafter
    assert node["params"] == {"window": 64}
