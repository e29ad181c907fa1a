"""Certificate of losslessness: decoding over small tables, enumerated in exact rational arithmetic.

``certify(verifier, drafter)`` for one pair, ``certify_all`` for everything that ships and all wrong rules.
"""

from specdec.certify.certificate import Certificate, SuiteResult, certify, certify_all
from specdec.certify.findings import Counterexample, Finding

__all__ = ["Certificate", "Counterexample", "Finding", "SuiteResult", "certify", "certify_all"]
