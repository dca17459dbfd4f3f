"""Constraint sets on the weights, with the operations that hard thresholding needs.

A constraint is a set of non-negative, sparse vectors. It computes the Euclidean projection of a
vector onto the set, the projection within a given support, and the directions in which a vector may
grow. `k` may be traced; `max_k` is its static upper bound and the length of the results. In every
set k bounds the number of rows; some sets have further bounds:

| set | besides w ≥ 0 and at most k rows |
| --- | --- |
| `TopK` | nothing |
| `GroupTopK` | a maximum number of groups |
| `StratifiedTopK` | a maximum number of rows of each group, or slots reserved for each group |
| `SimplexTopK` | the weights sum to a given total |
"""

from jaxcoreset.solvers.constraints.base import Constraint as Constraint
from jaxcoreset.solvers.constraints.base import Sparse as Sparse
from jaxcoreset.solvers.constraints.base import TopK as TopK
from jaxcoreset.solvers.constraints.groups import GroupTopK as GroupTopK
from jaxcoreset.solvers.constraints.groups import StratifiedTopK as StratifiedTopK
from jaxcoreset.solvers.constraints.simplex import SimplexTopK as SimplexTopK
