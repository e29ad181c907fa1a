"""Verdict: what a certificate says to a reader, in short and in full; does not know how it was found."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec.certify import Certificate, Finding, SuiteResult

ALL_GOOD = "every exact rule is exact, and every wrong rule was found"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A judged pair, or all that ships.

    holds    whether all is as it should be
    line     the verdict in one line
    notes    what a reader must know first
    summary  one line a rule or verifier, and how many wrong rules were found
    details  every setting that was judged, and how
    """

    holds: bool
    line: str
    notes: tuple[str, ...] = ()
    summary: tuple[str, ...]
    details: tuple[str, ...]

    def told(self, *, verbose: bool) -> str:
        """All but the verdict, in lines."""
        return "\n".join([*self.notes, *(self.details if verbose else ()), *self.summary])


def verdict_of(certificate: "Certificate", notes: Sequence[str] = ()) -> Verdict:
    """The verdict on one pair; ``notes`` are told first."""
    return Verdict(
        holds=certificate.exact,
        line=certificate.verdict,
        notes=tuple(notes),
        summary=tuple(_by_rule(certificate)),
        details=certificate.details,
    )


def verdict_of_all(result: "SuiteResult") -> Verdict:
    """The verdict on all that ships and on the wrong rules."""
    missed = f"; missed: {', '.join(result.missed)}" if result.missed else ""
    found = f"wrong rules found: {len(result.mutants) - len(result.missed)} of {len(result.mutants)}{missed}"
    line = result.certificate.verdict
    if result.certificate.exact:
        line = f"wrong rules were not found{missed}" if missed else ALL_GOOD
    return Verdict(
        holds=result.holds,
        line=line,
        summary=(*_by_rule(result.certificate), found),
        details=(*result.certificate.details, *(f"wrong rule: {finding}" for _, finding in result.mutants)),
    )


def _by_rule(certificate: "Certificate") -> Iterator[str]:
    """One line a rule or verifier: that it is exact, or after which prefix it first differs; no laws."""
    rules: dict[str, list[Finding]] = {}
    for finding in certificate.findings:
        rules.setdefault(finding.subject.partition(",")[0].partition(":")[0], []).append(finding)
    for rule, findings in rules.items():
        own = replace(certificate, findings=tuple(findings))
        worst = own.counterexample
        drafters = {finding.subject.partition(", ")[2] for finding in findings} - {""}
        if worst is not None:
            where = worst.subject.removeprefix(rule).lstrip(",: ")
            where = f"{where}: {worst.setting}" if where else worst.setting
            yield f"{rule}: NOT EXACT, first after {list(worst.counterexample.prefix)} ({where})"
        else:
            who = f"{rule}, {drafters.pop()}" if len(drafters) == 1 else rule
            yield f"{who}: exact in {len(findings)} settings, {own.num_cases} outcomes"
