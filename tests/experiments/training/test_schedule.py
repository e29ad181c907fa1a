"""The stage of a step as a function of the share of the run that has passed."""

import pytest

from experiments.training.config import ObjectiveSettings, ScheduleSettings
from experiments.training.schedule import stage_at

SCHEDULE = ScheduleSettings(warmup=0.1, decay_from=0.5, final_lr=0.0, sparse_from=0.2, quantise_from=0.75)
OBJECTIVE = ObjectiveSettings(nextn_final=0.5)


@pytest.mark.parametrize(
    ("fraction", "lr", "sparse", "quantise", "nextn"),
    [
        (0.05, 0.5, False, False, 1.0),
        (0.1, 1.0, False, False, 1.0),
        (0.5, 1.0, True, False, 1.0),
        (0.75, 0.5, True, True, 0.75),
        (1.0, 0.0, True, True, 0.5),
        (1.7, 0.0, True, True, 0.5),
    ],
)
def test_stage_at_fraction(fraction, lr, sparse, quantise, nextn):
    stage = stage_at(fraction, SCHEDULE, OBJECTIVE)
    assert stage.lr == pytest.approx(lr) and stage.nextn == pytest.approx(nextn)
    assert (stage.sparse, stage.quantise) == (sparse, quantise)


def test_learning_rate_is_never_zero_at_the_first_step():
    assert stage_at(0.0, SCHEDULE, OBJECTIVE).lr > 0
