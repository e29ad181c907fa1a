"""Measurement: the command line of a ``bench_`` module, whose docstring is its help; does not know what is measured."""

from collections.abc import Callable, Collection, Sequence

from experiments.command import obey
from experiments.mistakes import nearest
from specdec.errors import ConfigError, UnsupportedError

SAVE = "--save"
DRY = "--dry"


def obey_bench(
    arguments: Sequence[str] | None,
    do: Callable[[list[str]], None],
    *,
    about: str | None,
    options: Collection[str] = (SAVE,),
    words: Collection[str] | None = (),
    without_gpu: Collection[str] | None = (),
) -> int:
    """Call ``do`` with a command line, or print ``about`` for ``--help``; returns the exit code.

    A mistake, an option that is not allowed and a missing GPU leave one line on stderr.

    options      flags; one that takes a value is written ``--seeds=``
    words        the other words that are allowed; None: any
    without_gpu  options with which no GPU is needed; None: it never is
    """

    def checked(given: list[str]) -> None:
        _check(given, options, words)
        if without_gpu is not None and not set(without_gpu) & set(given):
            _check_gpu(DRY in options)
        do(given)

    assert about is not None, "a measurement's docstring is its help"
    return obey(arguments, about, checked)


def _check(given: Sequence[str], options: Collection[str], words: Collection[str] | None) -> None:
    for word in given:
        key, equals, _ = word.partition("=")
        if word.startswith("-") and key + equals not in options:
            allowed = ", ".join(f"{each}N" if each.endswith("=") else each for each in options)
            raise ConfigError(f"unknown option {word}{nearest(word, options)} (options: {allowed or 'none'})")
        if not word.startswith("-") and words is not None and word not in words:
            allowed = f"(words: {', '.join(words)})" if words else "(it takes options only; --help tells which)"
            raise ConfigError(f"unknown word {word!r}{nearest(word, words)} {allowed}")


def _check_gpu(can_be_dry: bool) -> None:
    # Imported here, since --help and mistakes need not wait for it.
    import torch

    if not torch.cuda.is_available():
        hint = f" ({DRY} runs small sizes on a CPU)" if can_be_dry else ""
        raise UnsupportedError(f"this measures an NVIDIA GPU, and none was found{hint}")
