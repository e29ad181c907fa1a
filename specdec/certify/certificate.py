"""The certificate of a verifier with a drafter, or of all that ships: exact, or the smallest counterexample."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from specdec.api import Coupling, DrafterConfig, TreeVerifier, Verifier
from specdec.certify.chain import ChainGame
from specdec.certify.drafter import DrafterSource
from specdec.certify.drafts import Past, TableDrafts
from specdec.certify.findings import Finding
from specdec.certify.judges import judge_by_coupling, tie_to_rule
from specdec.certify.mutants import Mutant, all_mutants
from specdec.certify.proposed_trees import ProposedTreeGame
from specdec.certify.tables import BIGRAM, IID, PAIRS, Pair, argmax_table
from specdec.certify.tree import BUSHY, CHAIN, KINDS, THREE_SIBLINGS, TWO_SIBLINGS, TreeGame
from specdec.certify.tree_judges import judge_trees_by_coupling, tie_trees_to_rules
from specdec.errors import UnsupportedError
from specdec.rules.chain import BlockRule, TokenRatioRule
from specdec.verifiers import RuleVerifier

LEAST_TOKENS = 3
MOST_NODES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """What was judged.

    findings  one a setting, in the order in which they were judged
    notes     what else was checked, and what stood in for what
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether every finding is exact."""
        return all(finding.exact for finding in self.findings)

    @property
    def counterexample(self) -> Finding | None:
        """The finding with the shortest prefix; None if everything is exact."""
        wrong = [finding for finding in self.findings if finding.counterexample is not None]
        return min(wrong, key=lambda finding: len(finding.counterexample.prefix), default=None)

    @property
    def num_cases(self) -> int:
        """Outcomes that were enumerated."""
        return sum(finding.num_cases for finding in self.findings)

    @property
    def verdict(self) -> str:
        """Exact, or the smallest counterexample, in one line."""
        worst = self.counterexample
        if worst is None:
            return f"exact: {len(self.findings)} settings, {self.num_cases} outcomes in rational arithmetic"
        return f"not exact: {worst.subject}: {worst.setting}: {worst.counterexample}"

    @property
    def details(self) -> tuple[str, ...]:
        """Every finding and every note."""
        return (*map(str, self.findings), *self.notes)

    def __str__(self) -> str:
        return "\n".join([*self.details, self.verdict])


def certify(
    verifier: Verifier, drafter: DrafterConfig, *, num_tokens: int = 4, pairs: Sequence[Pair] = PAIRS
) -> Certificate:
    """Judge a verifier with a drafter over the joint law of the first ``num_tokens`` tokens, at least 3.

    A verifier made of a rule is judged with the drafter's own proposals, as it draws and reports them. One whose
    output is the target's own choice (greedy, or noise shared by position) is judged by that, for every draft.

    Raises UnsupportedError, naming it, for a verifier or a drafter that cannot be enumerated, and UntiedError for a
    verifier that does not do what its rule says.
    """
    assert num_tokens >= LEAST_TOKENS, "fewer tokens leave out rounds after rounds"
    by_verifier = _certify_verifier(verifier, pairs)
    if not isinstance(verifier, RuleVerifier):
        return by_verifier
    with_drafter = _certify_drafter(verifier, drafter, num_tokens, pairs)
    return Certificate(
        findings=with_drafter.findings + by_verifier.findings, notes=with_drafter.notes + by_verifier.notes
    )


def _certify_verifier(verifier: Verifier, pairs: Sequence[Pair]) -> Certificate:
    """What does not depend on the drafter."""
    if isinstance(verifier, RuleVerifier):
        note = f"judge() does what its rule says in {tie_to_rule(verifier, pairs)} cases with given uniforms"
        findings = [judge_by_coupling(verifier, all_greedy=True)]
        if isinstance(verifier, TreeVerifier):
            note += f", judge_tree() in {tie_trees_to_rules(verifier, pairs)}"
            findings.append(judge_trees_by_coupling(verifier, all_greedy=True))
        return Certificate(findings=tuple(findings), notes=(f"verifier {verifier.name}: {note}",))
    if verifier.coupling is Coupling.INDEPENDENT:
        raise UnsupportedError(
            f"verifier {verifier.name} draws by a rule that cannot be read: make it a specdec.verifiers.RuleVerifier"
        )
    note = "judged by its coupling: the output is the target's own choice whatever any drafter proposes"
    findings = [judge_by_coupling(verifier)]
    if isinstance(verifier, TreeVerifier):
        findings.append(judge_trees_by_coupling(verifier))
    return Certificate(findings=tuple(findings), notes=(f"verifier {verifier.name}: {note}",))


def _certify_drafter(
    verifier: RuleVerifier, drafter: DrafterConfig, num_tokens: int, pairs: Sequence[Pair]
) -> Certificate:
    trees = drafter.needs.trees
    if trees and not isinstance(verifier, TreeVerifier):
        raise UnsupportedError(f"verifier {verifier.name} judges chains, and {type(drafter).__name__} proposes trees")
    most = min(drafter.num_draft_tokens, MOST_NODES if trees else num_tokens - 1)
    findings, has_stand_in = [], False
    for pair in pairs:
        source = DrafterSource(drafter, pair.draft, most=most)
        if trees:
            game = ProposedTreeGame(
                target=pair.target, source=source, rule=verifier.rule, num_tokens=num_tokens, most_nodes=most
            )
        else:
            game = ChainGame(target=pair.target, source=source, rule=verifier.rule, num_tokens=num_tokens)
        subject = f"verifier {verifier.name}, drafter {source.name}"
        kind = f"trees of up to {most} nodes" if trees else f"drafts of up to {most}"
        findings.append(game.finding(subject, f"{pair.name}, {kind}"))
        has_stand_in |= source.has_stand_in
    stand_in = f"drafter {type(drafter).__name__}: a table stood in for the draft model"
    return Certificate(findings=tuple(findings), notes=(stand_in,) if has_stand_in else ())


def shorter_after_rejection(past: Past, most: int) -> int:
    """A policy for draft lengths: one token after a round that rejected some."""
    return most if not past or past[-1][0] == past[-1][1] else 1


def average_of_past(past: Past, most: int) -> int:
    """A policy for draft lengths: one more than was accepted on average in the newest rounds."""
    return min(most, 1 + sum(accepted for _, accepted in past) // len(past)) if past else most


def through_token_two(tokens: Sequence[int]) -> int:
    """Stops after the first token 2 and keeps it: whether a token is verified depends on those before it."""
    return next((i + 1 for i, token in enumerate(tokens) if token == 2), len(tokens))


def exact_rules() -> Iterator[Finding]:
    """Every exact rule: chains with sampled and argmax drafts, adaptive lengths, siblings and trees."""
    for rule, name in ((TokenRatioRule(), "token ratio test"), (BlockRule(), "block verification")):
        for pair in PAIRS:
            for how, source in _sources(pair):
                game = ChainGame(target=pair.target, source=source, rule=rule)
                yield game.finding(name, f"{pair.name}, {how}")
    for name, (draw, sibling_rule) in KINDS.items():
        for pair, shapes in ((IID, (TWO_SIBLINGS, THREE_SIBLINGS)), (BIGRAM, (CHAIN, TWO_SIBLINGS, BUSHY))):
            for parents in shapes:
                tree = TreeGame(target=pair.target, draft=pair.draft, parents=parents, draw=draw, rule=sibling_rule)
                yield tree.finding(name, f"{pair.name}, tree of parents {list(parents)}")


def _sources(pair: Pair) -> Iterator[tuple[str, TableDrafts]]:
    sampled = TableDrafts(drawn=pair.draft, reported=pair.draft, most=3)
    for most in (1, 2, 3):
        yield f"{most} sampled drafts", replace(sampled, most=most)
    yield "3 argmax drafts as point masses", TableDrafts(drawn=argmax_table(pair.draft), reported=None, most=3)
    yield "3 sampled drafts as point masses", TableDrafts(drawn=pair.draft, reported=None, most=3)
    for policy in (shorter_after_rejection, average_of_past):
        name = policy.__name__.replace("_", " ")
        yield f"up to 3 sampled drafts, {name}", replace(sampled, policy=policy)
    yield "sampled drafts while the draft is sure", replace(sampled, confidence=Fraction(2, 5))
    yield "sampled drafts through the first token 2", replace(sampled, keeps=through_token_two)


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteResult:
    """The default set.

    certificate  of all exact rules, verifiers and drafters
    mutants      wrong rules with what was found of each
    """

    certificate: Certificate
    mutants: tuple[tuple[Mutant, Finding], ...]

    @property
    def missed(self) -> tuple[str, ...]:
        """Names of wrong rules that no counterexample was found for."""
        return tuple(mutant.name for mutant, finding in self.mutants if finding.exact)

    @property
    def holds(self) -> bool:
        """Whether no exact rule is faulted and no wrong one is missed."""
        return self.certificate.exact and not self.missed


def certify_all(verifiers: Sequence[Verifier], drafters: Sequence[DrafterConfig]) -> SuiteResult:
    """Judge every exact rule, every verifier with every drafter over 3 tokens, and every wrong rule."""
    findings, notes = list(exact_rules()), []
    for verifier in verifiers:
        certificates = [_certify_verifier(verifier, PAIRS)]
        if isinstance(verifier, RuleVerifier):
            certificates += [
                _certify_drafter(verifier, drafter, LEAST_TOKENS, PAIRS)
                for drafter in drafters
                if isinstance(verifier, TreeVerifier) or not drafter.needs.trees
            ]
        for certificate in certificates:
            findings += certificate.findings
            notes += certificate.notes
    return SuiteResult(
        certificate=Certificate(findings=tuple(findings), notes=tuple(dict.fromkeys(notes))),
        mutants=tuple((mutant, mutant.finding()) for mutant in all_mutants()),
    )
