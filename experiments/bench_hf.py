"""Decoding SmolLM2 here and in transformers, same weights and prompts: ``python -m experiments.bench_hf [--save]``.

Greedy, one request at a time, one thread. Four ways take turns on each prompt: transformers plain and with lookup, and
plain decoding here and the n-gram drafter here. Times are CPU seconds of the process, which other work on the machine
disturbs less than the clock. ``--save`` writes the figures to ``experiments/results/hf_cpu.json``.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time

import torch

from backends.hf.gguf_llama import load_gguf
from backends.hf.load import gguf_file
from drafters.ngram import NgramConfig
from drafters.none import NoneConfig
from experiments.build import EngineMaker
from experiments.chat import Message, encode_chat
from experiments.checkpoints import SMOLLM2, folder_of
from experiments.environment import use_threads
from experiments.hf import LoadedHf, load
from experiments.measurement import obey_bench
from experiments.result_file import save_cpu_result
from experiments.targets import TargetRequest
from specdec.api import DrafterConfig
from specdec.engine import EngineConfig
from specdec.request import Request
from specdec.sampling_params import SamplingParams
from specdec.verifiers import GreedyVerifierConfig

NEW_TOKENS, MAX_CONTEXT = 96, 1024
DRAFTS, NGRAM = 10, 3
LOOKUP_DRAFTS, LOOKUP_NGRAM = 10, 2
STORY = (
    "The old lighthouse keeper climbed the stairs every evening. He lit the lamp, wrote the hour in his book, and "
    "watched the ships pass. In winter the waves reached the door, and he moved his bed upstairs."
)
CODE = """def total(items):
    result = 0
    for item in items:
        result = result + item.price
    return result
"""
PROMPTS = {
    "copy": (
        f"Repeat the following text exactly:\n{STORY}",
        f"Rename the variable result to amount in this code and show the whole code:\n{CODE}",
    ),
    "chat": ("Explain how a bicycle stays upright.", "Give me three ideas for a birthday party."),
}


@dataclass(kw_only=True, slots=True)
class Tally:
    """What one way of decoding did over the prompts of a group."""

    tokens: int = 0
    passes: int = 0
    seconds: float = 0.0
    texts: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, ids: Sequence[int], *, passes: int, seconds: float) -> None:
        """Count one decoded prompt."""
        self.tokens += len(ids)
        self.passes += passes
        self.seconds += seconds
        self.texts.append(tuple(ids))

    def as_dict(self) -> dict[str, float]:
        """Figures for the result file."""
        return {
            "tokens": self.tokens,
            "tokens_per_pass": self.tokens / self.passes,
            "tokens_per_cpu_second": self.tokens / self.seconds,
        }


class Theirs:
    """transformers' ``generate`` over the same file; counts calls of the model."""

    def __init__(self, path: Path, eos_ids: Sequence[int], dtype: torch.dtype, *, new_tokens: int = NEW_TOKENS) -> None:
        self._new_tokens = new_tokens
        self._model = load_gguf(path, dtype=dtype).eval()
        self._eos_ids = list(eos_ids)
        self._num_calls = 0
        self._model.register_forward_hook(self._count)

    def _count(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        self._num_calls += 1

    def decode(self, prompt: Sequence[int], *, lookup: bool) -> tuple[list[int], int]:
        """Output ids and calls of the model, the prompt's included."""
        settings = {"prompt_lookup_num_tokens": LOOKUP_DRAFTS, "max_matching_ngram_size": LOOKUP_NGRAM}
        ids_1T = torch.tensor([prompt])
        self._num_calls = 0
        output = self._model.generate(
            ids_1T,
            attention_mask=torch.ones_like(ids_1T),
            do_sample=False,
            max_new_tokens=self._new_tokens,
            eos_token_id=self._eos_ids,
            pad_token_id=self._eos_ids[0],
            **(settings if lookup else {}),
        )
        return output[0, len(prompt) :].tolist(), self._num_calls


class Ours:
    """An engine with a drafter over the loaded target."""

    def __init__(self, loaded: LoadedHf, drafter: DrafterConfig) -> None:
        config = EngineConfig(max_context=MAX_CONTEXT)
        self._make_engine = EngineMaker(loaded, drafter, GreedyVerifierConfig().build(), config)

    def decode(self, prompt: Sequence[int]) -> tuple[list[int], int]:
        """Output ids and passes of the target, the prompt's included."""
        engine = self._make_engine()
        sampling = SamplingParams(temperature=0.0, max_new_tokens=NEW_TOKENS)
        engine.add(Request(request_id="bench", prompt=tuple(prompt), sampling=sampling))
        (output,) = engine.run()
        return list(output.output_ids), len(engine.rounds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    return obey_bench(arguments, _measure_all, about=__doc__, without_gpu=None)


def _measure_all(arguments: Sequence[str]) -> None:
    """Measure, print, and save if asked to."""
    use_threads(1)
    folder = folder_of(SMOLLM2)
    figures = measure(folder, torch.float32)
    if "--save" in arguments:
        save_cpu_result("hf_cpu.json", "python -m experiments.bench_hf --save", {"figures": figures}, folder=folder)


def measure(folder: Path, dtype: torch.dtype) -> dict[str, object]:
    """Figures by group of prompts and way of decoding."""
    loaded = load(
        TargetRequest(folder=folder, cache_dtype="fp32", indexer_dtype="plain", device=torch.device("cpu"), dtype=dtype)
    )
    theirs = Theirs(gguf_file(folder), loaded.eos_ids, dtype)
    plain, ngram = Ours(loaded, NoneConfig()), Ours(loaded, NgramConfig(num_draft_tokens=DRAFTS, max_ngram=NGRAM))
    ways: dict[str, Callable[[Sequence[int]], tuple[list[int], int]]] = {
        "transformers": lambda prompt: theirs.decode(prompt, lookup=False),
        "transformers, prompt lookup": lambda prompt: theirs.decode(prompt, lookup=True),
        "here": plain.decode,
        "here, ngram": ngram.decode,
    }
    figures = {}
    for group, texts in PROMPTS.items():
        tallies = {way: Tally() for way in ways}
        for text in texts:
            prompt = loaded.tokenizer.encode(encode_chat([Message(role="user", content=text)], loaded.chat_format))
            for way, decode in ways.items():
                started = process_time()
                ids, passes = decode(prompt)
                tallies[way].add(ids, passes=passes, seconds=process_time() - started)
        figures[group] = {way: tally.as_dict() for way, tally in tallies.items()}
        same = tallies["here"].texts == tallies["here, ngram"].texts
        figures[group]["same_text_with_ngram"] = same
        figures[group]["same_text_as_transformers"] = tallies["here"].texts == tallies["transformers"].texts
        show(group, figures[group])
    return figures


def show(group: str, figures: dict[str, object]) -> None:
    """A line per way."""
    for way, entry in figures.items():
        if isinstance(entry, dict):
            print(
                f"{group:<6}{way:<30}{entry['tokens']:>5} tokens {entry['tokens_per_pass']:6.2f} per pass "
                f"{entry['tokens_per_cpu_second']:7.1f} per CPU second",
                flush=True,
            )
        else:
            print(f"{group:<6}{way}: {entry}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
