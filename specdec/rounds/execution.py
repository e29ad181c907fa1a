"""How the rounds of an engine run: whether they are recorded, and what of it came about; decides no token."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.api import GraphTarget, Target
from specdec.engine_config import EngineConfig
from specdec.errors import ConfigError
from specdec.rounds.parts import RoundResult

US_PER_S = 1e6
# The operators in plain torch: their shapes follow from values, which no graph can record.
READS_THE_DEVICE = "reference"


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """Whether decode rounds are recorded, and why or why not."""

    enabled: bool
    why: str


def choose_graphs(config: EngineConfig, target: Target) -> GraphChoice:
    """The choice of ``engine.graphs``; null records where there is a CUDA device and the target allows it.

    Raises ConfigError when recording is asked for and impossible.
    """
    if config.graphs is False:
        return GraphChoice(False, "engine.graphs=false")
    problem = None
    if not isinstance(target, GraphTarget):
        problem = "the target has no forward_packed"
    elif config.batch_invariant:
        problem = "engine.batch_invariant pads every pass itself"
    elif target.device.type == "cuda" and config.kernels == READS_THE_DEVICE:
        problem = f"engine.kernels={config.kernels} reads from the device within a pass"
    if problem is None and config.graphs:
        return GraphChoice(True, "engine.graphs=true")
    if config.graphs:
        raise ConfigError(f"engine.graphs=true cannot work: {problem}; leave engine.graphs at null or false")
    if problem is None and target.device.type != "cuda":
        problem = f"the device is {target.device.type}"
    if problem is not None:
        return GraphChoice(False, f"engine.graphs=null and {problem}")
    return GraphChoice(True, "engine.graphs=null on a CUDA device")


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """What ran, for the report of a run.

    kernels              implementation of the target's operators
    graphs, graphs_why   whether decode rounds are recorded, and why or why not
    captured             recordings: requests x tokens per request and variant
    num_captured_rounds  rounds that were replayed; it and ``captured`` are named as in older ``summary.json``
    num_eager_rounds     rounds of decode rows only that ran eagerly all the same
    num_tree_rounds      of them, those that verified trees, which are not recorded
    num_above_sizes      of them, those of a batch above the recorded sizes
    host_us_per_round    mean time of a replayed round before its launch and after its result, in which the host works
                         and the device does not; None without one
    """

    kernels: str
    graphs: bool
    graphs_why: str
    captured: tuple[str, ...]
    num_captured_rounds: int
    num_eager_rounds: int
    num_tree_rounds: int
    num_above_sizes: int
    host_us_per_round: float | None


class ExecutionTally:
    """Counts rounds by the way they ran."""

    def __init__(self, choice: GraphChoice, *, kernels: str) -> None:
        self._choice, self._kernels = choice, kernels
        self._num_recorded = self._num_eager = self._num_trees = self._num_above = 0
        self._host_s = 0.0

    def add(self, result: RoundResult, *, total_s: float, has_prompts: bool) -> None:
        """Count one round that took ``total_s`` seconds."""
        if result.wait_s is not None:
            self._num_recorded += 1
            self._host_s += total_s - result.wait_s
        elif not has_prompts:
            self._num_eager += 1
            self._num_trees += result.has_trees
            self._num_above += self._choice.enabled and not result.has_trees

    def report(self, keys: Sequence[object]) -> Execution:
        """What happened so far; ``keys`` of the recordings that exist."""
        num_recorded = self._num_recorded
        return Execution(
            kernels=self._kernels,
            graphs=self._choice.enabled,
            graphs_why=self._choice.why,
            captured=tuple(map(str, keys)),
            num_captured_rounds=num_recorded,
            num_eager_rounds=self._num_eager,
            num_tree_rounds=self._num_trees,
            num_above_sizes=self._num_above,
            host_us_per_round=self._host_s / num_recorded * US_PER_S if num_recorded else None,
        )
