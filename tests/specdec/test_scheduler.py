"""Which requests a pass serves, in which order, and who gives way when pages run out."""

from specdec.api import ForwardMode
from specdec.cache.allocator import CacheManager
from specdec.engine_config import EngineConfig, plan_cache
from specdec.request import LiveRequest, Request
from specdec.sampling_params import SamplingParams
from specdec.scheduler import Batch, Scheduler
from specdec.stops import FinishReason, StopChecker
from specdec.testing import TableTarget


def live_request(name: str, num_prompt: int, max_new_tokens: int = 10) -> LiveRequest:
    sampling = SamplingParams(max_new_tokens=max_new_tokens)
    return LiveRequest(
        request=Request(request_id=name, prompt=(1,) * num_prompt, sampling=sampling),
        stops=StopChecker(sampling, eos_ids=(), max_output=90, detokenize=None),
        stream=0,
        tokens=[1] * num_prompt,
        num_prompt=num_prompt,
        max_tokens=num_prompt + max_new_tokens,
        prefill_end=num_prompt,
    )


def make_scheduler(**options: int | None) -> Scheduler:
    return scheduler_and_cache(**options)[0]


def scheduler_and_cache(
    *,
    max_batch: int = 4,
    prefill_chunk: int = 8,
    num_pages: int | None = None,
    max_pass_tokens: int | None = None,
    num_draft_tokens: int = 0,
) -> tuple[Scheduler, CacheManager]:
    config = EngineConfig(max_batch=max_batch, prefill_chunk=prefill_chunk, num_pages=num_pages)
    plan = plan_cache(
        TableTarget(rows_per_page=4, window=8).cache_groups,
        config,
        max_context=96,
        num_draft_tokens=num_draft_tokens,
    )
    cache = CacheManager(plan.specs, plan.num_pages, max_rows=max_batch)
    scheduler = Scheduler(
        cache,
        max_batch=max_batch,
        prefill_chunk=prefill_chunk,
        max_pass_tokens=max_pass_tokens,
        num_draft_tokens=num_draft_tokens,
    )
    return scheduler, cache


def step(scheduler: Scheduler, draft: int = 0) -> Batch:
    """Select, then commit one token per emitting request, as a round without acceptance does."""
    batch = scheduler.select()
    for index, live in enumerate(batch.requests):
        if batch.is_chunk(index):
            live.num_computed += batch.layout.query_lens[index]
        if index in batch.emitting:
            live.num_computed += not batch.is_chunk(index)
            live.tokens.append(1)
            live.draft = [1] * draft
            if live.remaining == 0:
                live.finish_reason = FinishReason.LENGTH
    scheduler.settle(batch)
    scheduler.check_integrity()
    return batch


def names(batch: Batch) -> list[str]:
    return [live.request.request_id for live in batch.requests]


def test_select_without_requests_gives_nothing() -> None:
    assert make_scheduler().select() is None


def test_prompts_share_the_budget_oldest_first() -> None:
    scheduler = make_scheduler(prefill_chunk=8)
    for name, length in (("a", 5), ("b", 6), ("c", 2)):
        scheduler.add(live_request(name, length))
    first = step(scheduler)
    assert (names(first), first.layout.query_lens) == (["a", "b"], (5, 3))
    assert (first.emitting, first.widths) == ((0,), (1,))
    assert first.layout.logit_rows == (4,)
    second = step(scheduler)
    assert (names(second), second.layout.query_lens) == (["b", "c", "a"], (3, 2, 1))
    assert second.layout.num_prefill_reqs == 2
    assert second.layout.mode is ForwardMode.MIXED
    assert second.layout.start_positions == (3, 0, 5)


def test_decode_rows_carry_their_drafts() -> None:
    scheduler = make_scheduler(num_draft_tokens=3)
    scheduler.add(live_request("a", 2))
    step(scheduler, draft=3)
    batch = step(scheduler)
    assert (batch.layout.query_lens, batch.widths, batch.layout.logit_rows) == ((4,), (4,), (0, 1, 2, 3))
    assert batch.layout.mode is ForwardMode.DECODE


def test_no_more_requests_run_than_rows_exist() -> None:
    scheduler = make_scheduler(max_batch=2)
    for name in "abc":
        scheduler.add(live_request(name, 1, max_new_tokens=2))
    assert names(step(scheduler)) == ["a", "b"]
    assert names(step(scheduler)) == ["a", "b"]
    assert names(step(scheduler)) == ["c"]


def test_budget_of_a_pass_counts_decode_rows_first() -> None:
    scheduler = make_scheduler(max_pass_tokens=6, num_draft_tokens=2)
    scheduler.add(live_request("a", 2))
    step(scheduler, draft=2)
    scheduler.add(live_request("b", 9))
    batch = step(scheduler)
    assert (names(batch), batch.layout.query_lens) == (["b", "a"], (3, 3))


def test_admission_waits_for_the_pages_of_the_whole_prompt() -> None:
    scheduler = make_scheduler(num_pages=9, prefill_chunk=4)
    scheduler.add(live_request("a", 10, max_new_tokens=4))
    scheduler.add(live_request("b", 24, max_new_tokens=2))
    while scheduler.running or scheduler.waiting:
        batch = step(scheduler)
        assert len(batch.requests) == 1


def test_youngest_request_gives_way_and_comes_back_first() -> None:
    scheduler = make_scheduler(num_pages=7, prefill_chunk=8)
    for name in "abc":
        scheduler.add(live_request(name, 4, max_new_tokens=12))
    preempted: list[int] = []
    while not preempted:
        batch = step(scheduler)
        preempted.extend(batch.preempted)
    assert names(batch) == ["a", "b"]
    assert scheduler.waiting[0].request.request_id == "c"
    victim = scheduler.waiting[0]
    assert victim.num_preemptions == 1
    assert victim.prefill_end == len(victim.tokens) - 1
    while scheduler.has_work:
        step(scheduler)
    assert victim.num_output == 12


def test_settle_gives_back_the_pages_of_rejected_tokens() -> None:
    scheduler, cache = scheduler_and_cache(num_draft_tokens=9)
    scheduler.add(live_request("a", 3, max_new_tokens=30))
    free = cache.num_free
    step(scheduler, draft=9)
    for num_computed in range(4, 20):
        step(scheduler, draft=9)
        used = {name: free[name] - left for name, left in cache.num_free.items()}
        first_visible = max(0, num_computed - 7) // 4
        assert used["toy.history"] == -(-num_computed // 4)
        assert used["toy.window"] == -(-num_computed // 4) - first_visible


def test_recomputed_prefix_emits_nothing() -> None:
    scheduler = make_scheduler()
    live = live_request("a", 3)
    live.tokens.extend([1, 1])
    live.draft = [1]
    live.preempt()
    assert live.draft == ()
    scheduler.add(live)
    first = step(scheduler)
    assert (first.layout.query_lens, first.emitting, first.layout.logit_rows) == ((4,), (), ())
    second = step(scheduler)
    assert (second.layout.start_positions, second.emitting) == ((4,), (0,))
