"""What a step does, from the share of the run that has passed; knows no clock."""

from dataclasses import dataclass

from experiments.training.config import ObjectiveSettings, ScheduleSettings


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step's settings: factor on every learning rate, whether CSA selects, whether weights are rounded to their
    storage format, factor on the NextN weights."""

    lr: float
    sparse: bool
    quantise: bool
    nextn: float


def stage_at(fraction: float, schedule: ScheduleSettings, objective: ObjectiveSettings) -> Stage:
    """The stage at ``fraction`` (0 to 1) of the run: warm-up, constant, linear decay to ``final_lr``."""
    fraction = min(max(fraction, 0.0), 1.0)
    decayed = 0.0
    if fraction > schedule.decay_from:
        decayed = (fraction - schedule.decay_from) / (1 - schedule.decay_from)
    lr = 1 - decayed * (1 - schedule.final_lr)
    if fraction < schedule.warmup:
        lr = max(fraction / schedule.warmup, 0.02)
    return Stage(
        lr=lr,
        sparse=fraction >= schedule.sparse_from,
        quantise=fraction >= schedule.quantise_from,
        nextn=1 - decayed * (1 - objective.nextn_final),
    )
