"""Judges ``judge_tree`` of verifiers that decode: by their coupling, and against the rules of siblings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

from specdec.api import Proposal, SiblingDraws, TreeVerifier, Verdict
from specdec.certify.findings import Counterexample, Finding
from specdec.certify.judges import TOLERANCE, GivenSampling, UntiedError, point_law
from specdec.certify.tables import Pair
from specdec.certify.tree import BUSHY, THREE_SIBLINGS, TWO_SIBLINGS, Walk
from specdec.rules.siblings import judge_siblings
from specdec.sibling_verifier import RULES
from specdec.trees.draft_tree import ROOT, DraftTree

MATCHES = "trees against the target's own choice"


def judge_trees_by_coupling(
    verifier: TreeVerifier, *, vocab_size: int = 3, most: int = 3, all_greedy: bool = False
) -> Finding:
    """Every tree of up to ``most`` nodes, in any order, against every own choice of the target at every row."""
    num_cases = 0
    subject = f"verifier {verifier.name}"
    for parents in _shapes(most):
        num_nodes = len(parents)
        choices = list(product(range(vocab_size), repeat=num_nodes + 1))
        drafts = list(product(range(vocab_size), repeat=num_nodes))
        choice_BN = torch.tensor(choices).repeat_interleave(len(drafts), 0)
        drafted_BK = torch.tensor(drafts).repeat(len(choices), 1)
        logits_BNV = torch.nn.functional.one_hot(choice_BN, vocab_size).float()
        proposal = Proposal(
            tokens_BK=drafted_BK,
            num_drafted_B=torch.full((len(choice_BN),), num_nodes),
            parents_BK=torch.tensor(parents).repeat(len(choice_BN), 1),
        )
        sampling = GivenSampling(all_greedy=all_greedy, choice_BN=choice_BN, law_BNV=logits_BNV)
        verdict = verifier.judge_tree(logits_BNV, proposal, sampling, torch.full((len(choice_BN),), 7))
        num_cases += len(choice_BN)
        wrong = _wrong_choice(verdict, DraftTree(parents), choice_BN, drafted_BK, vocab_size)
        if wrong is not None:
            return Finding(subject=subject, setting=MATCHES, num_cases=num_cases, counterexample=wrong)
    setting = f"{MATCHES}: every tree of 1 to {most} nodes against every choice"
    return Finding(subject=subject, setting=setting, num_cases=num_cases, counterexample=None)


def _shapes(most: int) -> Iterator[tuple[int, ...]]:
    """Parents of every tree of 1 to ``most`` nodes in every order; those in a circle are left out."""
    for num_nodes in range(1, most + 1):
        for parents in product(range(ROOT, num_nodes), repeat=num_nodes):
            ways = list(parents)
            for _ in range(num_nodes):
                ways = [node if node == ROOT else parents[node] for node in ways]
            if all(node == ROOT for node in ways):
                yield parents


def _wrong_choice(
    verdict: Verdict, tree: DraftTree, choice_BN: torch.Tensor, drafted_BK: torch.Tensor, vocab_size: int
) -> Counterexample | None:
    """A case in which a committed token is not the target's own choice at the row that it follows."""
    assert verdict.path_BK is not None, "the verdict on a tree has a path"
    lines = zip(
        verdict.num_accepted_B.tolist(),
        verdict.tokens_BN.tolist(),
        verdict.path_BK.tolist(),
        choice_BN.tolist(),
        drafted_BK.tolist(),
        strict=True,
    )
    found: Counterexample | None = None
    for accepted, tokens, path, choices, drafted in lines:
        rows = [0, *(node + 1 for node in path[:accepted])]
        wanted = [choices[row] for row in rows]
        emitted = [*(drafted[node] for node in path[:accepted]), tokens[accepted]]
        if not tree.is_path(path[:accepted]):
            emitted = [-1]
        at = next((i for i, token in enumerate(emitted) if token != wanted[i] or tokens[i] != wanted[i]), None)
        if at is not None and (found is None or at < len(found.prefix)):
            wrong = emitted[at] if emitted[at] != wanted[at] else tokens[at]
            found = Counterexample(
                prefix=tuple(emitted[:at]),
                wanted=point_law(wanted[at], vocab_size),
                found=point_law(wrong, vocab_size),
            )
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """A drafted tree with coins on either side of its chances, and what its rule says."""

    rows: Sequence
    laws: Sequence
    tokens: tuple[int, ...]
    coins: tuple[float, ...]
    path: tuple[int, ...]
    weights: tuple[float, ...]
    is_residual: bool


def tie_trees_to_rules(verifier: TreeVerifier, pairs: Sequence[Pair]) -> int:
    """Check that ``judge_tree`` does what the rules of siblings say, with coins given; returns the number of cases.

    Raises UntiedError where tensors and fractions disagree.
    """
    num_cases = 0
    for pair, parents, draws in product(pairs, (TWO_SIBLINGS, THREE_SIBLINGS, BUSHY), RULES):
        cases = list(_cases(pair, parents, draws))
        num_cases += len(cases)
        _check(verifier, parents, draws, cases)
    return num_cases


def _cases(pair: Pair, parents: tuple[int, ...], draws: SiblingDraws | None) -> Iterator[_Case]:
    tree, num_nodes = DraftTree(parents), len(parents)
    # Of the larger trees every third; all tokens come at all nodes.
    drafts = list(product(range(pair.target.vocab_size), repeat=num_nodes))
    for tokens in drafts[:: 1 if num_nodes < 4 else 5]:
        before = [(0, *(tokens[n] for n in tree.path(node))) for node in range(ROOT, num_nodes)]
        laws = [pair.draft.law(before[parent + 1]) for parent in parents]
        distinct = all(len({tokens[n] for n in c}) == len(c) for c in tree.children.values())
        possible = all(law[token] > 0 for law, token in zip(laws, tokens, strict=True))
        if draws is not None and not possible or draws is SiblingDraws.WITHOUT_REPLACEMENT and not distinct:
            continue
        walk = Walk(
            target=pair.target,
            rule=RULES[draws],
            judge=judge_siblings,
            parents=parents,
            known=(0,),
            tokens=dict(enumerate(tokens)),
            law_of=None if draws is None else lambda node, _, laws=laws: laws[node],
        )
        chances = [0.0] * num_nodes
        for node, children in tree.children.items():
            for child, chance in zip(children, walk.judge(node, list(children))[0], strict=True):
                chances[child] = min(max(float(chance), 0.0), 1.0)
        sides = [tuple(u for u in (c / 2, (1 + c) / 2) if 0 < u < 1) for c in chances]
        rows = [pair.target.law(way) for way in before]
        for coins in product(*sides):
            yield _case(walk, tree, rows, laws, tokens, coins)


def _case(
    walk: Walk, tree: DraftTree, rows: Sequence, laws: Sequence, tokens: tuple[int, ...], coins: tuple[float, ...]
) -> _Case:
    """What the walk does with these coins, each tossed for the node that it belongs to."""
    tossed: list[int] = []
    node = ROOT

    def accepts(chance: object) -> bool:
        # The walk asks for siblings in their order, and goes down to the first that is accepted.
        nonlocal node
        child = tree.children[node][len(tossed)]
        tossed.append(child)
        if coins[child] < float(chance):
            node = child
            tossed.clear()
            return True
        return False

    path, weights = walk.walk(accepts)
    scale = sum(weights)
    return _Case(
        rows=rows,
        laws=laws,
        tokens=tokens,
        coins=coins,
        path=tuple(path),
        weights=tuple(float(w / scale) for w in weights),
        is_residual=(path[-1] if path else ROOT) in tree.children,
    )


def _check(
    verifier: TreeVerifier, parents: tuple[int, ...], draws: SiblingDraws | None, cases: Sequence[_Case]
) -> None:
    def table(rows: list) -> torch.Tensor:
        return torch.from_numpy(np.array(rows, dtype=object).astype(np.float64))

    law_BNV = table([case.rows for case in cases])
    sampling = GivenSampling(law_BNV=law_BNV, coins_BX=torch.tensor([case.coins for case in cases]).double())
    proposal = Proposal(
        tokens_BK=torch.tensor([case.tokens for case in cases]),
        num_drafted_B=torch.full((len(cases),), len(parents)),
        probs_BKV=None if draws is None else table([case.laws for case in cases]),
        parents_BK=torch.tensor(parents).repeat(len(cases), 1),
        sibling_draws=draws,
    )
    positions_B = torch.arange(len(cases))
    verdict = verifier.judge_tree(law_BNV, proposal, sampling, positions_B)
    assert verdict.path_BK is not None, "the verdict on a tree has a path"
    counts = verdict.num_accepted_B.tolist()
    paths = [tuple(path[:count]) for path, count in zip(verdict.path_BK.tolist(), counts, strict=True)]
    _tied(verifier, paths == [case.path for case in cases], "another path is accepted")
    assert sampling.weights_BV is not None, "the last token is drawn"
    weights_BV = sampling.weights_BV / sampling.weights_BV.sum(-1, keepdim=True)
    wanted_BV = torch.tensor([case.weights for case in cases], dtype=weights_BV.dtype)
    close = bool((weights_BV - wanted_BV).abs().max() < TOLERANCE)
    _tied(verifier, close, "the last token is drawn from another law")
    same_place = sampling.positions_B.equal(positions_B + verdict.num_accepted_B)
    _tied(verifier, same_place, "the last token is drawn with the noise of another position")
    residual = sampling.is_residual_B.tolist()
    _tied(verifier, residual == [case.is_residual for case in cases], "correction and bonus are confused")
    final_B = sampling.weights_BV.argmax(-1)
    emitted = [[*(case.tokens[n] for n in case.path), int(final_B[b])] for b, case in enumerate(cases)]
    found = [line[: len(case.path) + 1] for line, case in zip(verdict.tokens_BN.tolist(), cases, strict=True)]
    _tied(verifier, found == emitted, "other tokens are committed")


def _tied(verifier: TreeVerifier, holds: bool, otherwise: str) -> None:
    if not holds:
        raise UntiedError(f"verifier {verifier.name}: judge_tree() does not do what its rule says: {otherwise}")
