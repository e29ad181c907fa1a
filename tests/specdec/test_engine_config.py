import pytest

from specdec.cache.spec import CacheGroupSpec, Retention
from specdec.engine_config import EngineConfig, plan_cache
from specdec.errors import CapacityError, ConfigError

FULL = CacheGroupSpec(group_id="full", retention=Retention.FULL_HISTORY, rows_per_page=4)
WINDOW = CacheGroupSpec(group_id="window", retention=Retention.SLIDING_WINDOW, rows_per_page=4, sliding_window_tokens=8)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_batch", 0),
        ("max_batch", "two"),
        ("prefill_chunk", 0),
        ("max_context", 1),
        ("num_pages", 1),
        ("fixed_rows", 0),
        ("batch_invariant", 1),
    ],
)
def test_engine_config_refuses_a_value_by_its_key(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"{field} must be .*, got {value!r} \(conf: engine\.{field}\)"):
        EngineConfig(**{field: value})


def test_engine_config_names_the_key_that_sets_its_seed() -> None:
    with pytest.raises(ConfigError, match=r"seed must be .*, got 1\.5 \(conf: sampling\.seed\)"):
        EngineConfig(seed=1.5)


def test_batch_invariance_bounds_prompt_chunks() -> None:
    config = EngineConfig(batch_invariant=True, fixed_rows=16, prefill_chunk=512)
    assert (config.max_chunk_tokens, config.max_pass_tokens) == (16, 16)
    assert EngineConfig(prefill_chunk=100).max_chunk_tokens == 100
    assert EngineConfig().max_pass_tokens is None


def test_plan_cache_lets_the_number_of_pages_only_shrink() -> None:
    def pages(num_pages: int | None) -> dict[str, int]:
        config = EngineConfig(max_batch=2, num_pages=num_pages)
        return plan_cache((FULL, WINDOW), config, max_context=40, num_draft_tokens=3).num_pages

    enough = pages(None)
    assert pages(10**6) == enough
    assert pages(12) == {"full": 12, "window": 12}
    assert all(count > 12 for count in enough.values())


def test_plan_cache_gives_drafted_groups_wider_tables() -> None:
    def plan(groups: tuple[str, ...]):
        config = EngineConfig(prefill_chunk=4)
        return plan_cache((FULL, WINDOW), config, max_context=40, num_draft_tokens=9, draft_groups=groups)

    assert plan(("window",)).columns["window"] > plan(()).columns["window"]
    assert plan(("window",)).columns["full"] == plan(()).columns["full"]


@pytest.mark.parametrize(("max_tokens", "fits"), [(16, True), (17, False)])
def test_check_servable_names_pages_and_key(max_tokens: int, fits: bool) -> None:
    config = EngineConfig(num_pages=5, prefill_chunk=1)
    plan = plan_cache((FULL,), config, max_context=40, num_draft_tokens=0)
    if fits:
        plan.check_servable("a", max_tokens)
        return
    with pytest.raises(CapacityError, match=r"request a .* needs 5 pages of full, 4 are .*engine\.num_pages"):
        plan.check_servable("a", max_tokens)


@pytest.mark.parametrize(("num_pages", "fits"), [(24, True), (23, False)])
def test_check_servable_counts_a_window_with_the_longest_chunk(num_pages: int, fits: bool) -> None:
    narrow = CacheGroupSpec(
        group_id="narrow", retention=Retention.SLIDING_WINDOW, rows_per_page=1, sliding_window_tokens=4
    )
    config = EngineConfig(num_pages=num_pages, prefill_chunk=20, max_batch=2)
    plan = plan_cache((narrow,), config, max_context=40, num_draft_tokens=3)
    if fits:
        plan.check_servable("a", 40)
        return
    with pytest.raises(CapacityError, match="needs 23 pages of narrow, 22 are available"):
        plan.check_servable("a", 40)
