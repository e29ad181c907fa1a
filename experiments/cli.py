"""The console command ``specdec``: names of sub-commands and where they live; imports them only when called."""

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

COMMANDS = {
    "run": ("experiments.run", "decode a workload with speculation and without, and compare"),
    "report": ("experiments.report.command", "a table and one offline page over all runs below some folders"),
    "query": ("experiments.query", "ask all runs below some folders in SQL"),
    "certify": ("experiments.certify", "is a verifier with a drafter exact? else the smallest counterexample"),
    "compare": ("experiments.compare", "two runs on the same prompts: what differs, with intervals"),
    "gate": ("experiments.gate", "exit code 1 if a run is worse than an earlier one on the same prompts"),
    "reproduce": ("experiments.reproduce", "run a finished run again: the same rows and outputs?"),
    "fetch": ("experiments.fetch", "download a small real model into the cache: specdec fetch smollm2"),
    "train": ("experiments.train", "train a target, or a drafter head for a target"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``specdec COMMAND ...``; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(usage())
        return 0
    if given[0] not in COMMANDS:
        close = get_close_matches(given[0], COMMANDS, n=1)
        hint = f"; nearest: {close[0]}" if close else ""
        print(f"error: there is no command {given[0]!r}{hint} (commands: {', '.join(COMMANDS)})", file=sys.stderr)
        return 2
    module, _ = COMMANDS[given[0]]
    return import_module(module).main(given[1:])


def usage() -> str:
    """The commands, one a line."""
    lines = [f"  {name:<11}{what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: specdec COMMAND [KEY=VALUE ...]",
            "",
            "commands:",
            *lines,
            "",
            "specdec COMMAND --help lists the settings of a command; python -m experiments.COMMAND is the same.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
