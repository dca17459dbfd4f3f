"""All cases, by name."""

from benchmarks.posteriors.case import Case
from benchmarks.posteriors.cases_continuous import CONTINUOUS
from benchmarks.posteriors.cases_counts import COUNTS
from benchmarks.posteriors.cases_groups import GROUPS
from benchmarks.posteriors.cases_logistic import LOGISTIC

CASES: dict[str, Case] = {case.name: case for case in (*LOGISTIC, *COUNTS, *CONTINUOUS, *GROUPS)}
