"""Training a head: the target writes texts, the head learns from them, and its acceptance is predicted and measured."""

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.build import device_of, dtype_of, load_target, target_request
from experiments.checkpoints import folder_of
from experiments.fingerprint import checkpoint_hash
from experiments.schemas import EngineSchema
from experiments.targets import LoadedTarget
from experiments.training.heads import report
from experiments.training.heads.config import TEXTS, HeadTrainerConfig
from experiments.training.heads.frozen import FrozenTarget, frozen
from experiments.training.heads.outcome import acceptance_of, keep_training, training_of, where_from
from experiments.training.heads.run import Clock, HeadRun, Say
from experiments.training.heads.states import DumpedStates, LiveStates, check_disk, dump_bytes
from experiments.training.heads.text_files import NAME, Origin, load_texts, save_texts
from experiments.training.heads.texts import Prompts, Text, read_prompts, split_prompts, write_texts
from experiments.training.heads.trainees import Trainee, check_trainee, make_trainee, stored_trainee
from experiments.training.loop import CHECKPOINT_FOLDER, RESULT_FILE, announce, command_line
from specdec.errors import ConfigError, WorkloadError
from specdec.request import Request

Settings = Mapping[str, Any]


def train_head(
    config: HeadTrainerConfig,
    target_settings: Settings,
    folder: Path,
    *,
    clock: Clock = time.monotonic,
    say: Say = announce,
) -> dict[str, Any]:
    """Train, store in ``folder/checkpoint``, predict and measure; returns the result, which is also written.

    With ``config.checkpoint`` the head of that folder is predicted and measured, and nothing is trained.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    folder.mkdir(parents=True, exist_ok=True)
    whole = whole_settings(config, target_settings)
    device, dtype = device_of(whole), dtype_of(whole)
    rows = read_prompts(config.text)
    loaded = load_target(whole)
    prompts = split_prompts(rows, loaded, config, hold_all=_is_from_elsewhere(config))
    source = folder_of(target_settings["checkpoint"])
    began = clock()
    if config.kind == TEXTS:
        training = write_texts(loaded, prompts.training, config, dtype=dtype, clock=clock)
        return _keep_texts(config, training, source, folder, seconds=clock() - began, say=say)
    target = frozen(loaded)
    if config.checkpoint is not None:
        name = str(target_settings["checkpoint"])
        return _measure_head(config, loaded, target, prompts.heldout, folder, name=name, dtype=dtype, say=say)
    check_trainee(config, loaded, target)
    texts = _training_texts(config, loaded, prompts, source, dtype=dtype, clock=clock)
    heldout = write_texts(loaded, prompts.heldout, config, dtype=dtype)
    num_tokens = sum(len(text.tokens) for text in texts)
    how = "read" if config.text.files else "written"
    say(
        f"{len(texts)} texts of {num_tokens:,} tokens {how}, and {len(heldout)} held-out ones written, in "
        f"{clock() - began:.1f} s"
    )
    vocabulary, notes = draft_vocabulary(config, texts, vocab_size=target.lent.head.shape[0])
    trainee = make_trainee(config, loaded, target, vocabulary=vocabulary, folder=source)
    states = state_source(config, trainee, target, texts, folder, say)
    run = HeadRun(config, trainee, target, texts, states)
    seconds = run.run(folder, clock=clock, say=say)
    checkpoint = folder / CHECKPOINT_FOLDER
    trainee.save(checkpoint, dtype)
    training = {
        **where_from(device),
        "config": dataclasses.asdict(config),
        "kind": config.kind,
        "target": str(target_settings["checkpoint"]),
        "parameters": sum(p.numel() for p in run.parameters),
        "stored_as": "the target's own formats" if config.kind == "nextn" else str(dtype).removeprefix("torch."),
        "texts": {
            "training": len(texts),
            "tokens": num_tokens,
            "own_tokens": sum(len(text.tokens) - text.num_prompt for text in texts),
        },
        "steps": run.steps,
        "seconds": seconds,
        "notes": notes,
    }
    keep_training(checkpoint, training)
    measured_on = loaded if config.kind != "nextn" else load_target(_with_checkpoint(whole, checkpoint))
    drafter = trainee.drafting(checkpoint, config.depth)
    found = acceptance_of(trainee, target, drafter, measured_on, prompts.heldout, heldout, config, dtype=dtype)
    result = {**training, **found, "notes": [*notes, *found["notes"]]}
    report.write_card(checkpoint, result)
    _tell(result, result["notes"], folder, say)
    say(f"head and card: {checkpoint}")
    return result


def _measure_head(
    config: HeadTrainerConfig,
    loaded: LoadedTarget,
    target: FrozenTarget,
    requests: Sequence[Request],
    folder: Path,
    *,
    name: str,
    dtype: torch.dtype,
    say: Say,
) -> dict[str, Any]:
    """Predict and measure a head that exists for the target ``name``.

    Its folder stays as it is; result and card come into ``folder``.
    """
    head = _head_folder(config)
    trainee = stored_trainee(config, target, head)
    texts = write_texts(loaded, requests, config, dtype=dtype)
    say(f"{len(texts)} held-out texts written")
    training = training_of(head)
    drafter = trainee.drafting(head, config.depth)
    found = acceptance_of(trainee, target, drafter, loaded, requests, texts, config, dtype=dtype)
    result = {
        "kind": config.kind,
        "target": name,
        **training,
        **found,
        "notes": [*training.get("notes", ()), *found["notes"]],
        "measured": where_from(target.lent.head.device),
    }
    report.write_card(folder, result)
    _tell(result, found["notes"], folder, say)
    say(f"card: {folder / report.CARD}")
    return result


def _tell(result: Mapping[str, Any], notes: Sequence[str], folder: Path, say: Say) -> None:
    """Write the result; say its table and notes."""
    (folder / RESULT_FILE).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for line in (*report.table(result), *notes):
        say(line)


def _head_folder(config: HeadTrainerConfig) -> Path:
    assert config.checkpoint is not None, "a head that exists is asked for"
    folder = folder_of(config.checkpoint, key="trainer.checkpoint")
    if folder is None:
        raise ConfigError(f"a head lies in a folder, got {config.checkpoint} (conf: trainer.checkpoint)")
    return folder


def _is_from_elsewhere(config: HeadTrainerConfig) -> bool:
    """Whether a head that exists has learned from none of the prompts, as far as its folder tells."""
    if config.checkpoint is None:
        return False
    learned = training_of(_head_folder(config)).get("config")
    return learned is None or bool(learned["text"]["files"])


def _training_texts(
    config: HeadTrainerConfig,
    loaded: LoadedTarget,
    prompts: Prompts,
    source: Path | None,
    *,
    dtype: torch.dtype,
    clock: Clock,
) -> tuple[Text, ...]:
    """Texts to learn from, read or written now; those that continue a held-out prompt are left out."""
    if not config.text.files:
        return write_texts(loaded, prompts.training, config, dtype=dtype, clock=clock)
    heldout = {request.prompt for request in prompts.heldout}
    texts = [
        text
        for name in config.text.files
        for text in load_texts(Path(name), target=_target_hash(source))
        if text.tokens[: text.num_prompt] not in heldout
    ]
    if not texts:
        raise WorkloadError("every text continues a held-out prompt (conf: trainer.text.files, trainer.text.prompts)")
    return tuple(texts)


def _keep_texts(
    config: HeadTrainerConfig, texts: Sequence[Text], source: Path | None, folder: Path, *, seconds: float, say: Say
) -> dict[str, Any]:
    """Store what the target wrote, for heads to learn from."""
    path = folder / NAME
    save_texts(path, texts, Origin(target=_target_hash(source), temperature=config.text.temperature))
    num_tokens = sum(len(text.tokens) - text.num_prompt for text in texts)
    result = {
        "command": command_line(),
        "config": dataclasses.asdict(config),
        "texts": len(texts),
        "own_tokens": num_tokens,
        "seconds": seconds,
    }
    (folder / RESULT_FILE).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    say(f"the target wrote {num_tokens:,} tokens of {len(texts)} texts in {seconds:.1f} s: {path}")
    return result


def _target_hash(source: Path | None) -> str:
    """What tells one target's texts from another's."""
    return "" if source is None else checkpoint_hash(source)


def whole_settings(config: HeadTrainerConfig, target_settings: Settings) -> dict[str, Any]:
    """The settings of a run with this target, as ``experiments.build`` reads them."""
    dtype = config.dtype
    if dtype is None and config.kind == "nextn":
        # Its parameters are the checkpoint's own, and bf16 would swallow small updates.
        dtype = "fp32"
    engine = dataclasses.asdict(EngineSchema(device=config.device, dtype=dtype, max_batch=config.text.batch))
    return {"target": dict(target_settings), "engine": engine, "sampling": {"seed": config.seed}}


def check_head(config: HeadTrainerConfig, target_settings: Settings) -> None:
    """Raise SpecDecError for settings that cannot work, before anything is loaded."""
    read_prompts(config.text)
    if config.checkpoint is not None:
        _head_folder(config)
    whole = whole_settings(config, target_settings)
    device_of(whole)
    target_request(whole)
    if config.kind == "nextn" and config.dtype == "bf16":
        raise ConfigError(
            "trainer=nextn trains the checkpoint's own parameters in fp32, got bf16 (conf: trainer.dtype)"
        )


def draft_vocabulary(
    config: HeadTrainerConfig, texts: Sequence[Text], *, vocab_size: int
) -> tuple[torch.Tensor | None, list[str]]:
    """The commonest ids of the target's own text, ascending, and what share of the text they are; None for all."""
    size = config.shape.draft_vocab_size
    if config.kind != "eagle3" or not 0 < size < vocab_size:
        return None, []
    counts = Counter(token for text in texts for token in text.tokens[text.num_prompt :])
    # Ties, and what was never written, by id: small ids are the common ones of most tokenizers.
    order = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    chosen = sorted(order[:size])
    share = sum(counts[token] for token in chosen) / sum(counts.values())
    return torch.tensor(chosen), [f"draft vocabulary: {size} of {vocab_size} ids, {share:.1%} of the target's text"]


def state_source(
    config: HeadTrainerConfig,
    trainee: Trainee,
    target: FrozenTarget,
    texts: Sequence[Text],
    folder: Path,
    say: Say,
) -> LiveStates | DumpedStates:
    """Say what a dump takes, and make one if it was asked for and fits."""
    size = dump_bytes(texts, target, trainee.layers)
    how = "kept on disk" if config.dump else "made on the fly"
    say(f"states of {sum(len(text.tokens) for text in texts):,} tokens: {size / 2**20:,.1f} MiB, {how}")
    live = LiveStates(target, trainee.layers)
    if not config.dump:
        return live
    check_disk(size, folder)
    return DumpedStates(live, texts, folder, target.lent.embedding.device)


def _with_checkpoint(whole: Settings, checkpoint: Path) -> dict[str, Any]:
    return {**whole, "target": {**whole["target"], "checkpoint": str(checkpoint)}}
