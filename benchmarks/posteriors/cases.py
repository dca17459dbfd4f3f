"""All cases, by name."""

from benchmarks.posteriors.case import Case
from benchmarks.posteriors.cases_logistic import LOGISTIC

CASES: dict[str, Case] = {case.name: case for case in (*LOGISTIC,)}
