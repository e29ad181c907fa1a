"""Lines of ``steps.jsonl`` and ``outputs.jsonl``: the same names and order in every run."""

from dataclasses import fields
from operator import attrgetter

from specdec.request import RequestOutput
from specdec.step_row import SCHEMA_VERSION, StepRow

# Fields that a line has only when they exist or were asked for.
OPTIONAL = ("overlap", "draft_probs", "target_probs", "parents")


def step_record(row: StepRow) -> dict[str, object]:
    """One line of ``steps.jsonl``."""
    record = {spec.name: attrgetter(spec.name)(row) for spec in fields(row)}
    return {name: value for name, value in record.items() if value is not None or name not in OPTIONAL}


def output_record(output: RequestOutput) -> dict[str, object]:
    """One line of ``outputs.jsonl``."""
    record: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "request_id": output.request_id,
        "turn": output.turn,
        "category": output.category,
        "prompt_ids": output.prompt_ids,
        "output_ids": output.output_ids,
        "text": output.text,
        "finish_reason": output.finish_reason.value,
        "num_steps": output.num_steps,
        "num_preemptions": output.num_preemptions,
        "first_token_us": output.first_token_us,
        "total_us": output.total_us,
    }
    if output.logprobs is not None:
        record["logprobs"] = output.logprobs
    return record
