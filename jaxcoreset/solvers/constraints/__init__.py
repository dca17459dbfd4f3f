"""Constraint sets on the weights, as what hard thresholding needs to know of them.

A constraint is a set of non-negative, sparse vectors. A solver asks it for the Euclidean projection
of a vector onto the set, for the projection within a given support, and for the directions that it
would let a vector grow into. `k` may be traced; `max_k` is its static upper bound and the length of
what comes back. In every set here k bounds the number of rows; the structured ones bound more:

| set | beside w ≥ 0 and at most k rows |
| --- | --- |
| `TopK` | nothing |
| `GroupTopK` | rows of at most so many groups |
| `StratifiedTopK` | at most so many rows of each group, or slots held for each group |
| `SimplexTopK` | the weights sum to a given total |
"""

from jaxcoreset.solvers.constraints.base import Constraint as Constraint
from jaxcoreset.solvers.constraints.base import Sparse as Sparse
from jaxcoreset.solvers.constraints.base import TopK as TopK
from jaxcoreset.solvers.constraints.groups import GroupTopK as GroupTopK
from jaxcoreset.solvers.constraints.groups import StratifiedTopK as StratifiedTopK
from jaxcoreset.solvers.constraints.simplex import SimplexTopK as SimplexTopK
