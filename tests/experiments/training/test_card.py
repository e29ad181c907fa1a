"""The model card: the committed one is what the committed result gives, and a short result still makes one."""

import json
from pathlib import Path

import pytest

from experiments.checkpoints import EMBEDDED_FOLDER
from experiments.training.card import CARD, card_text

RESULT = Path("experiments/results/train_v4_nextn.json")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def result() -> dict:
    return json.loads((ROOT / RESULT).read_text(encoding="utf-8"))


def test_committed_card_is_rendered_from_the_committed_result(result):
    assert (EMBEDDED_FOLDER / CARD).read_text(encoding="utf-8") == card_text(result, source=f"`{RESULT}`")


def test_context_limit_of_the_card_is_that_of_the_checkpoint(result):
    config = json.loads((EMBEDDED_FOLDER / "config.json").read_text(encoding="utf-8"))
    assert f"Context limit: {config['max_position_embeddings']}," in card_text(result, source="x")


def test_curve_of_the_card_goes_from_first_to_last_step_and_may_be_short(result):
    steps = [row["step"] for row in result["curve"]]
    for curve in (result["curve"], result["curve"][:3]):
        lines = card_text({**result, "curve": curve}, source="x").partition("## Loss curve")[2].splitlines()
        shown = [int(line.split("|")[1]) for line in lines if line.startswith("| ") and "step" not in line]
        assert (shown[0], shown[-1]) == (curve[0]["step"], curve[-1]["step"]) and set(shown) <= set(steps)
        assert len(shown) == min(len(curve), 11)
    assert "Loss curve" not in card_text({**result, "curve": []}, source="x")
