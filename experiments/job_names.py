"""Names of the jobs of a sweep in messages: what one has and not every other; knows nothing of running them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from experiments import mistakes
from specdec.errors import ConfigError, SpecDecError


def names_of(jobs: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """For each job, given by its overrides, those that not all jobs share; empty texts when they are alike."""
    shared = set(jobs[0]).intersection(*jobs) if jobs else set()
    return tuple(" ".join(line for line in job if line not in shared) for job in jobs)


@contextmanager
def naming(job: str) -> Iterator[None]:
    """Put the name of a job before a refusal in the block; raises ConfigError. An empty name is left out."""
    try:
        yield
    except SpecDecError as error:
        if not job:
            raise
        raise ConfigError(f"in job {job}: {error}") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError((f"in job {job}: " if job else "") + str(mistakes.explain(error))) from error
