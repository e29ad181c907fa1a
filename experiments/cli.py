"""The console command ``specdec``: names of sub-commands and where they live; imports them only when called."""

import ast
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

COMMANDS = {
    "run": ("experiments.run", "decode a workload with speculation and without, and compare"),
    "report": ("experiments.report.command", "a table and one offline page over all runs below some folders"),
    "dash": ("experiments.dash.command", "the report's figures live in a browser while a sweep runs"),
    "query": ("experiments.query", "ask all runs below some folders in SQL"),
    "certify": ("experiments.certify", "is a verifier with a drafter exact? else the smallest counterexample"),
    "compare": ("experiments.compare", "two runs on the same prompts: what differs, with intervals"),
    "gate": ("experiments.gate", "exit code 1 if a run is worse than an earlier one on the same prompts"),
    "reproduce": ("experiments.reproduce", "run a finished run again: the same rows and outputs?"),
    "fetch": ("experiments.fetch", "download a small real model into the cache: specdec fetch smollm2"),
    "evidence": ("experiments.evidence.command", "every drafter on two small models, beside transformers' lookup"),
    "train": ("experiments.train", "train a target, or a drafter head for a target"),
    "import_logs": ("experiments.import_logs", "statistics of vLLM or SGLang as a run folder for report and compare"),
    "bench_cpu": ("experiments.bench_cpu", "how fast decoding on one CPU thread is"),
    "bench_acceptance": ("experiments.bench_acceptance", "what cache formats cost in acceptance on a GPU"),
    "bench_hf": ("experiments.bench_hf", "decoding SmolLM2 here and in transformers on a CPU"),
    "bench_report": ("experiments.bench_report", "how long a report over a large sweep takes, and how much memory"),
    "bench_decode": ("experiments.bench_decode", "a decode step of a V4-Flash-width model on a GPU"),
    "bench_verify": ("experiments.bench_verify", "what verification costs by its width on a GPU"),
    "bench_prefill": ("experiments.bench_prefill", "attention of a prompt chunk on a GPU"),
    "bench_round": ("experiments.bench_round", "a whole round of speculative decoding on a GPU"),
    "bench_kernels": ("experiments.bench_kernels", "each kernel of a decode step on a GPU against a copy"),
    "bench_linear": ("experiments.bench_linear", "how fast products of few rows read their weights on a GPU"),
}
# Measurements; their module docstring is their help, since importing them takes seconds.
BENCHES = tuple(name for name in COMMANDS if name.startswith("bench_"))
COMPLETION = ("-sc", "--shell-completion")
# Commands of Hydra, which completes their settings.
COMPLETED = ("run", "certify", "train")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``specdec COMMAND ...``; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(usage())
        return 0
    if given[0] in COMPLETION:
        return complete(given)
    if given[0] not in COMMANDS:
        close = get_close_matches(given[0], COMMANDS, n=1)
        hint = f"; nearest: {close[0]}" if close else ""
        print(f"error: there is no command {given[0]!r}{hint} (commands: {', '.join(COMMANDS)})", file=sys.stderr)
        return 2
    if given[0] in BENCHES:
        return bench(given[0], given[1:])
    module, _ = COMMANDS[given[0]]
    return import_module(module).main(given[1:])


def bench(name: str, arguments: Sequence[str]) -> int:
    """Run a measurement, or print its help without importing it."""
    module, _ = COMMANDS[name]
    if {"-h", "--help"} & set(arguments):
        found = find_spec(module)
        assert found is not None and found.origin is not None, "a command lies in a file"
        told = ast.get_docstring(ast.parse(Path(found.origin).read_text(encoding="utf-8"))) or ""
        print(told)
        return 0
    return import_module(module).main(list(arguments))


def complete(arguments: Sequence[str]) -> int:
    """Hydra's shell completion below a sub-command: ``eval "$(specdec -sc install=bash)"`` installs it.

    Hydra asks with the line typed so far in COMP_LINE, and knows an application of one word.
    """
    if not any(word.startswith("query=") for word in arguments):
        return import_module("experiments.run").main(arguments)
    line = os.environ.get("COMP_LINE", "")
    line = line[: int(os.environ.get("COMP_POINT") or len(line))]
    program, _, rest = line.lstrip().partition(" ")
    command, space, settings = rest.lstrip().partition(" ")
    if not space:
        print(" ".join(name for name in COMMANDS if name.startswith(command)))
        return 0
    if command not in COMPLETED:
        return 0
    os.environ["COMP_LINE"] = f"{program} {settings}"
    os.environ["COMP_POINT"] = str(len(os.environ["COMP_LINE"]))
    return import_module(COMMANDS[command][0]).main(arguments)


def usage() -> str:
    """The commands, one a line."""
    lines = [f"  {name:<18}{what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: specdec COMMAND [KEY=VALUE ...]",
            "",
            "commands:",
            *lines,
            "",
            'Completion: eval "$(specdec -sc install=bash)", or fish or zsh.',
            "specdec COMMAND --help lists the settings of a command; python -m experiments.COMMAND is the same.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
