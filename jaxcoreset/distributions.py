"""Sparse distributions on a lattice: few coordinates that vary, the others held at zero.

Zhang, Khanna, Kyrillidis and Koyejo, "Learning sparse distributions using iterative hard
thresholding" (NeurIPS 2019). A distribution p on X = {0, …, m−1}ⁿ is a table of shape (m,)·n; entry
x is its probability. For a set S of coordinates, X_S holds the x with x_i = 0 for all i outside S,
and P_S the distributions supported on X_S. The paper's k-sparse distributions are
D_k = ∪_{|S| ≤ k} P_S (its Definition 1): one of D_k is told by mᵏ numbers instead of mⁿ. Sought is

    min F[q]   subject to   q ∈ D_k

for a convex F: `SquaredDistance`, `KLDivergence` or `ExpectationDistance`. `DistributionIHT` is the
paper's Algorithm 1, `sparse_projection` its Algorithm 2, `DistributionGreedy` its Algorithm 3;
`DistributionExchange` is ours, and finds what they miss. `learn_distribution` is the front door.
`compress_distribution` keeps the expectations of given functions.

Sparsity of a distribution's own entries (the paper's appendix A) is another matter: there the
distribution is a vector of weights on the simplex, see `jaxcoreset.kernel`.
"""

import abc
import operator
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.nnls import nnls
from jaxcoreset.problem import HIGHEST, is_concrete

# Step sizes are doubled so often at most: with the first step near 0.01/β, to some 1000/β. A longer
# step would, in float32, be led by the rounding of the gradient.
_MAX_DOUBLINGS = 16
# Two scores nearer than so many roundings are a tie, which goes to the lower index.
_TIE = 32


class DistributionObjective(eqx.Module):
    """A convex functional F of distributions on one lattice.

    A subclass says what F is, what its gradient is, and where its minimum over P_S lies. `scale` is
    the curvature that step sizes are measured by: the smoothness constant β where F has one.
    """

    @property
    @abc.abstractmethod
    def lattice(self) -> tuple[int, ...]:
        """The shape of a table, (m,)·n."""

    @abc.abstractmethod
    def __call__(self, table: Float[Array, "*lattice"]) -> Float[Array, ""]:
        """F[q] for the distribution q of the table."""

    @abc.abstractmethod
    def gradient(self, table: Float[Array, "*lattice"]) -> Float[Array, "*lattice"]:
        """The variational derivative δF/δq (the paper's Definition 3)."""

    @abc.abstractmethod
    def scale(self, size: int) -> Float[Array, ""]:
        """The curvature of F on an X_S of `size` points."""

    @abc.abstractmethod
    def best_on(
        self, points: Int[Array, " p"], allowed: Bool[Array, " p"]
    ) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """The minimum of F among the distributions on some points of the lattice.

        Args:
            points: places in the flattened table.
            allowed: which of them there are.

        Returns:
            The probabilities of the points, and F but for a term that is the same for all points.
        """


class SquaredDistance(DistributionObjective):
    """F[q] = ‖q − p‖², summed over the lattice.

    Args:
        target: p, a table of shape (m,)·n. Need not be a distribution.

    Raises:
        ValueError: if the target has another shape or entries that are not finite.
    """

    target: Float[Array, "*lattice"]

    def __init__(self, target: ArrayLike):
        self.target = _checked_table("target", target)

    @property
    def lattice(self) -> tuple[int, ...]:
        """See `DistributionObjective.lattice`."""
        return self.target.shape

    def __call__(self, table: Float[Array, "*lattice"]) -> Float[Array, ""]:
        """See `DistributionObjective`."""
        return jnp.sum((table - self.target) ** 2)

    def gradient(self, table: Float[Array, "*lattice"]) -> Float[Array, "*lattice"]:
        """See `DistributionObjective.gradient`."""
        return 2 * (table - self.target)

    def scale(self, size: int) -> Float[Array, ""]:
        """See `DistributionObjective.scale`."""
        return jnp.full((), 2, self.target.dtype)

    def best_on(
        self, points: Int[Array, " p"], allowed: Bool[Array, " p"]
    ) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """The projection of p onto P_S (section 3.3); see `DistributionObjective.best_on`."""
        wanted = self.target.ravel()[points]
        values = project_simplex(wanted, allowed)
        return values, jnp.sum(jnp.where(allowed, values * (values - 2 * wanted), 0))


class KLDivergence(DistributionObjective):
    """F[q] = KL(q‖p) = Σ q log(q/p), in nats, with 0 log 0 = 0.

    Its gradient is log(q/p) + 1, which is −∞ where q is 0, and that is nearly everywhere for a
    sparse q. The paper does not say how it met that; here the gradient is taken at max(q, floor).

    Args:
        target: p, a table of shape (m,)·n of positive numbers.
        floor: a probability, below which the gradient falls no further.

    Raises:
        ValueError: if the target has another shape, or entries that are not positive and finite, or
            the floor is not positive.
    """

    target: Float[Array, "*lattice"]
    floor: float

    def __init__(self, target: ArrayLike, floor: float = 1e-4):
        self.target = _checked_table("target", target)
        self.floor = floor
        if not floor > 0:
            raise ValueError(f"floor is {floor}; wanted a positive number.")
        if is_concrete(self.target) and not (self.target > 0).all():
            raise ValueError(
                "target has entries that are not positive, where KL(q‖p) is infinite. Mix it with "
                "a little of the uniform distribution, or use SquaredDistance."
            )

    @property
    def lattice(self) -> tuple[int, ...]:
        """See `DistributionObjective.lattice`."""
        return self.target.shape

    def __call__(self, table: Float[Array, "*lattice"]) -> Float[Array, ""]:
        """See `DistributionObjective`."""
        safe = jnp.where(table > 0, table, 1)
        return jnp.sum(jnp.where(table > 0, table * jnp.log(safe / self.target), 0))

    def gradient(self, table: Float[Array, "*lattice"]) -> Float[Array, "*lattice"]:
        """See `DistributionObjective.gradient`."""
        return jnp.log(jnp.maximum(table, self.floor) / self.target) + 1

    def scale(self, size: int) -> Float[Array, ""]:
        """See `DistributionObjective.scale`; 1/q at the uniform distribution."""
        return jnp.full((), size, self.target.dtype)

    def best_on(
        self, points: Int[Array, " p"], allowed: Bool[Array, " p"]
    ) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """The target on the points, normalised; see `DistributionObjective.best_on`."""
        wanted = jnp.where(allowed, self.target.ravel()[points], 0)
        mass = jnp.sum(wanted)
        return wanted / mass, -jnp.log(mass)


class ExpectationDistance(DistributionObjective):
    """F[q] = ‖Aq − Ap‖²: how far q is from p in the expectations of r functions (section 4.2).

    Args:
        features: A, shape (r, m, …, m), the value of each function at each point of the lattice.
        target: p, a table of shape (m,)·n.

    Raises:
        ValueError: if a shape does not fit or an entry is not finite.
    """

    features: Float[Array, "r ..."]
    expectations: Float[Array, " r"]
    curvature: Float[Array, ""]

    def __init__(self, features: ArrayLike, target: ArrayLike):
        table = _checked_table("target", target)
        features = jnp.asarray(features, table.dtype)
        if features.ndim != table.ndim + 1 or features.shape[1:] != table.shape:
            raise ValueError(
                f"features has shape {features.shape}; wanted (r, {str(table.shape)[1:-1]}), the "
                "value of each of r functions at each point of the lattice."
            )
        if features.shape[0] == 0:
            raise ValueError("features is empty; wanted at least one function.")
        if is_concrete(features) and not jnp.isfinite(features).all():
            raise ValueError("features has entries that are not finite.")
        flat = features.reshape(features.shape[0], -1)
        self.features = features
        self.expectations = jnp.matmul(flat, table.ravel(), precision=HIGHEST)
        gram = jnp.matmul(flat, flat.T, precision=HIGHEST)
        self.curvature = 2 * jnp.linalg.eigvalsh(gram)[-1]

    @property
    def lattice(self) -> tuple[int, ...]:
        """See `DistributionObjective.lattice`."""
        return self.features.shape[1:]

    def __call__(self, table: Float[Array, "*lattice"]) -> Float[Array, ""]:
        """See `DistributionObjective`."""
        missing = self._missing(table)
        return jnp.vdot(missing, missing)

    def gradient(self, table: Float[Array, "*lattice"]) -> Float[Array, "*lattice"]:
        """See `DistributionObjective.gradient`."""
        flat = self.features.reshape(self.features.shape[0], -1)
        pull = jnp.matmul(self._missing(table), flat, precision=HIGHEST)
        return 2 * pull.reshape(table.shape)

    def scale(self, size: int) -> Float[Array, ""]:
        """See `DistributionObjective.scale`; 2‖A‖², or 1 where all functions are zero."""
        return jnp.where(self.curvature > 0, self.curvature, 1)

    def best_on(
        self, points: Int[Array, " p"], allowed: Bool[Array, " p"]
    ) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """See `DistributionObjective.best_on`; exact, by non-negative least squares.

        With c_x = A_x − Ap the sum Σ q(x) c_x is to be short. Over u ≥ 0 let
        ‖Σ u_x c_x‖² + γ²(Σ u_x − 1)² be smallest: among the multiples of a distribution q with
        d = ‖Σ q(x) c_x‖² the best has d γ²/(d + γ²), which grows with d, so u/Σu is the best q.
        """
        flat = self.features.reshape(self.features.shape[0], -1)
        apart = flat[:, points].T - self.expectations
        squares = jnp.where(allowed, jnp.sum(apart**2, axis=1), 0)
        gamma = jnp.sqrt(jnp.sum(squares) / jnp.sum(allowed))
        gamma = jnp.where(gamma > 0, gamma, 1)
        atoms = jnp.concatenate([apart, jnp.full_like(apart[:, :1], gamma)], axis=1)
        wanted = jnp.zeros_like(atoms[0]).at[-1].set(gamma)
        values = nnls(atoms, wanted, mask=allowed).weights
        total = jnp.sum(values)
        first = (jnp.arange(points.shape[0]) == jnp.argmax(allowed)).astype(values.dtype)
        values = jnp.where(total > 0, values / jnp.where(total > 0, total, 1), first)
        missing = jnp.matmul(values, apart, precision=HIGHEST)
        return values, jnp.vdot(missing, missing)

    def _missing(self, table: Float[Array, "*lattice"]) -> Float[Array, " r"]:
        flat = self.features.reshape(self.features.shape[0], -1)
        return jnp.matmul(flat, table.ravel(), precision=HIGHEST) - self.expectations


def project_simplex(vector: Float[Array, " p"], allowed: Bool[Array, " p"]) -> Float[Array, " p"]:
    """The nearest vector that is non-negative, sums to one, and is zero where not allowed.

    The projection of the paper's section 3.3. By Michelot, "A finite algorithm for finding the
    projection of a point onto the canonical simplex of Rⁿ" (J. Optim. Theory Appl. 1986): entries
    that would be negative are dropped until there are none, a few rounds, where sorting takes a
    vectorised machine far longer.

    Args:
        vector: shape (p,).
        allowed: shape (p,), at least one of them true.
    """
    # The projection does not change when a constant is added. With a largest entry of 0, the
    # threshold is below 0 in any arithmetic, so that entry stays.
    vector = vector - jnp.max(jnp.where(allowed, vector, -jnp.inf))

    def drop(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        kept, _, _ = state
        size = jnp.sum(kept)
        threshold = (jnp.sum(jnp.where(kept, vector, 0)) - 1) / size
        fewer = kept & (vector > threshold)
        return fewer, threshold, jnp.sum(fewer) == size

    begin = (allowed, jnp.zeros((), vector.dtype), jnp.zeros((), bool))
    kept, threshold, _ = jax.lax.while_loop(lambda s: ~s[2], drop, begin)
    return jnp.where(kept, vector - threshold, 0)


class DistributionSolution(eqx.Module):
    """A sparse distribution; under ``vmap``, arrays with the leading axes of the batch.

    Attributes:
        table: the distribution, shape (m,)·n.
        support: shape (n,), the coordinates S that may differ from zero.
        objective: F of the table.
        num_iters: iterations of the start that gave the solution.
        converged: whether the solver stopped by its own rule rather than by a limit.
        history: shape (max_iters,), F of every iterate, the last one repeated after the stop;
            ``None`` where it was not asked for.
        solver: the name of the solver.
    """

    table: Float[Array, "..."]
    support: Bool[Array, "*b n"]
    objective: Float[Array, "*b"]
    num_iters: Int[Array, "*b"]
    converged: Bool[Array, "*b"]
    history: Float[Array, "*b t"] | None = None
    solver: str = eqx.field(static=True, default="")

    def compact(self) -> tuple[np.ndarray, np.ndarray]:
        """The coordinates of S in increasing order, and the table over them alone, on the host.

        Raises:
            ValueError: if this is a batch of solutions.
        """
        if self.support.ndim != 1:
            raise ValueError(
                f"support has shape {self.support.shape}; compact takes one solution, so pick it "
                "with jax.tree.map(lambda x: x[i], solution)."
            )
        support = np.asarray(self.support)
        return np.flatnonzero(support), np.asarray(self.table)[
            tuple(slice(None) if varies else 0 for varies in support)
        ]


class DistributionSolver(eqx.Module):
    """A method that finds a k-sparse distribution; a frozen module of hyperparameters."""

    @property
    def needs_key(self) -> bool:
        """Whether the solver draws random numbers."""
        return False

    @abc.abstractmethod
    def run(
        self,
        objective: DistributionObjective,
        k: Int[Array, ""],
        max_k: int,
        key: PRNGKeyArray | None = None,
        start: Float[Array, "*lattice"] | None = None,
    ) -> DistributionSolution:
        """Solve, under jit; users call `learn_distribution`.

        Args:
            objective: F.
            k: the number of coordinates allowed, between 1 and `max_k`; may be traced.
            max_k: static upper bound of `k`; tables of mᵏ entries are sized by it.
            key: for solvers that draw random numbers.
            start: a k-sparse distribution to start from, for solvers that iterate.
        """


class DistributionGreedy(DistributionSolver):
    """Forward greedy selection: Algorithm 3 of Zhang et al. (2019).

    Starts with no coordinate and lets in, k times, the one that lets F fall furthest when F is
    minimised over P_S exactly; a tie goes to the lower index. Where most of the target's mass is on
    points with many coordinates that are not zero, the first choices see next to nothing of it.
    """

    def run(
        self,
        objective: DistributionObjective,
        k: Int[Array, ""],
        max_k: int,
        key: PRNGKeyArray | None = None,
        start: Float[Array, "*lattice"] | None = None,
    ) -> DistributionSolution:
        """See `DistributionSolver.run`; a start has no use here."""
        table, support = _grow(objective, k, max_k)
        return DistributionSolution(
            table=table,
            support=support,
            objective=objective(table),
            num_iters=jnp.asarray(k, jnp.int32),
            converged=jnp.ones((), bool),
            solver=type(self).__name__,
        )


class _Point(eqx.Module):
    """A sparse distribution, its coordinates, and F."""

    table: Float[Array, "*lattice"]
    support: Bool[Array, " n"]
    objective: Float[Array, ""]


class IHTState(eqx.Module):
    """Where `DistributionIHT` is: its iterate, the step size, and the best point so far."""

    table: Float[Array, "*lattice"]
    doublings: Int[Array, ""]
    best: _Point
    num_iters: Int[Array, ""]
    history: Float[Array, " t"]


class DistributionIHT(DistributionSolver):
    """Distribution IHT: p ← Π(p − μ δF/δp) with the greedy projection.

    Algorithm 1 of Zhang et al. (2019) with Algorithm 2 for Π. As in their section 4, the step is
    doubled while the iterate is stuck and falls back to its first size once it moves, and the best
    distribution on the way is returned. What "stuck" means is not printed; here it is
    ‖p_{t+1} − p_t‖ ≤ stuck_tol · ‖p_t‖. If not even a step of 2¹⁶ times the first size moves the
    iterate, the solver stops.

    Args:
        start: "random", from k random coordinates and a uniformly random distribution on their X_S,
            or "greedy", from the result of `DistributionGreedy` (the paper's "IHT after Greedy").
        num_starts: how many random starts, run as one batch; the best result is returned.
        step_fraction: the first step size as a fraction of 1/β, with β the objective's
            `DistributionObjective.scale`. For the squared distance, 0.016 is the paper's μ = 0.008.
        stuck_tol: see above.
        max_iters: at most so many iterations, the paper's T.
        refit: whether the supports on the way are compared by the minimum of F on each, which is
            then returned, rather than by F of the iterates. False is the paper's way.
        record_history: whether the solution carries F of every iterate.
    """

    start: Literal["random", "greedy"] = "random"
    num_starts: int = 1
    step_fraction: float = 0.016
    stuck_tol: float = 1e-3
    max_iters: int = 400
    refit: bool = True
    record_history: bool = False

    def __check_init__(self) -> None:
        if self.start not in ("random", "greedy"):
            raise ValueError(f'start is {self.start!r}; wanted "random" or "greedy".')
        _check_at_least_one("num_starts", self.num_starts)
        _check_at_least_one("max_iters", self.max_iters)
        if self.start == "greedy" and self.num_starts != 1:
            raise ValueError(
                f'num_starts is {self.num_starts}; start="greedy" is one start, so leave it at 1.'
            )
        if not self.step_fraction > 0:
            raise ValueError(f"step_fraction is {self.step_fraction}; wanted a positive number.")
        if not self.stuck_tol >= 0:
            raise ValueError(f"stuck_tol is {self.stuck_tol}; wanted a number not negative.")

    @property
    def needs_key(self) -> bool:
        """See `DistributionSolver.needs_key`."""
        return self.start == "random"

    def run(
        self,
        objective: DistributionObjective,
        k: Int[Array, ""],
        max_k: int,
        key: PRNGKeyArray | None = None,
        start: Float[Array, "*lattice"] | None = None,
    ) -> DistributionSolution:
        """See `DistributionSolver.run`; a `start` takes the place of the solver's own."""
        if start is not None:
            return self._descend(objective, start, _varying(start), k, max_k)
        if self.start == "greedy":
            return self._descend(objective, *_grow(objective, k, max_k), k, max_k)
        assert key is not None

        def from_random(key: PRNGKeyArray) -> DistributionSolution:
            table, support = _draw(key, objective.lattice, k, max_k)
            dtype = objective.scale(1).dtype
            return self._descend(objective, table.astype(dtype), support, k, max_k)

        return _best_of(jax.vmap(from_random)(jax.random.split(key, self.num_starts)))

    def begin(
        self, objective: DistributionObjective, table: Array, support: Array, max_k: int
    ) -> IHTState:
        """The state before the first iteration."""
        history_length = self.max_iters if self.record_history else 0
        return IHTState(
            table=table,
            doublings=jnp.zeros((), jnp.int32),
            best=self._judged(objective, table, support, max_k),
            num_iters=jnp.zeros((), jnp.int32),
            history=jnp.zeros(history_length, table.dtype),
        )

    def iterate(
        self, objective: DistributionObjective, state: IHTState, k: Int[Array, ""], max_k: int
    ) -> IHTState:
        """Lines 4 and 5 of Algorithm 1, and the rule for the step size."""
        table = state.table
        first = self.step_fraction / objective.scale(objective.lattice[0] ** max_k)
        step = jnp.ldexp(first, state.doublings)
        target = table - step * objective.gradient(table)
        new, support = _grow(SquaredDistance(target), k, max_k)
        moved = jnp.linalg.norm((new - table).ravel())
        stuck = moved <= self.stuck_tol * jnp.linalg.norm(table.ravel())
        judged = self._judged(objective, new, support, max_k)
        better = judged.objective < state.best.objective
        history = state.history
        if self.record_history:
            history = history.at[state.num_iters].set(objective(new))
        return IHTState(
            table=new,
            doublings=jnp.where(stuck, state.doublings + 1, 0),
            best=jax.tree.map(lambda a, b: jnp.where(better, a, b), judged, state.best),
            num_iters=state.num_iters + 1,
            history=history,
        )

    def _judged(
        self, objective: DistributionObjective, table: Array, support: Array, max_k: int
    ) -> _Point:
        if self.refit:
            table = _best_table(objective, _slots(support, max_k))
        return _Point(table, support, objective(table))

    def _descend(
        self,
        objective: DistributionObjective,
        table: Array,
        support: Array,
        k: Int[Array, ""],
        max_k: int,
    ) -> DistributionSolution:
        state = jax.lax.while_loop(
            lambda s: (s.num_iters < self.max_iters) & (s.doublings <= _MAX_DOUBLINGS),
            lambda s: self.iterate(objective, s, k, max_k),
            self.begin(objective, table, support, max_k),
        )
        history = None
        if self.record_history:
            done = jnp.arange(self.max_iters) < state.num_iters
            history = jnp.where(done, state.history, state.history[state.num_iters - 1])
        return DistributionSolution(
            table=state.best.table,
            support=state.best.support,
            objective=state.best.objective,
            num_iters=state.num_iters,
            converged=state.doublings > _MAX_DOUBLINGS,
            history=history,
            solver=type(self).__name__,
        )


class _Exchange(eqx.Module):
    slots: Int[Array, " k"]
    score: Float[Array, ""]
    num_iters: Int[Array, ""]
    stopped: Bool[Array, ""]


class DistributionExchange(DistributionSolver):
    """Exchange of coordinates from many starts: ours, not the paper's.

    From a support S each iteration looks at all supports that differ from S in one coordinate,
    minimises F over each exactly, and goes to the best one, until none is better. The first start
    is the support that `DistributionGreedy` finds, the others are random; all run as one batch and
    the best end is returned. An iteration of a start costs k·n minimisations over mᵏ points.

    On the paper's first experiment (n = 15, m = 2, k = 7) exchange leads from 4 to 19 in 100 of the
    supports to the best of all 6435, so that 64 starts find it nearly always.

    Args:
        num_starts: how many starts; 1 needs no key.
        max_iters: at most so many exchanges from a start.
    """

    num_starts: int = 64
    max_iters: int = 100

    def __check_init__(self) -> None:
        _check_at_least_one("num_starts", self.num_starts)
        _check_at_least_one("max_iters", self.max_iters)

    @property
    def needs_key(self) -> bool:
        """See `DistributionSolver.needs_key`."""
        return self.num_starts > 1

    def run(
        self,
        objective: DistributionObjective,
        k: Int[Array, ""],
        max_k: int,
        key: PRNGKeyArray | None = None,
        start: Float[Array, "*lattice"] | None = None,
    ) -> DistributionSolution:
        """See `DistributionSolver.run`; a `start` takes the place of the greedy one."""
        lattice = objective.lattice
        first = _grow(objective, k, max_k)[1] if start is None else _varying(start)
        slots = _slots(first, max_k)[None]
        if self.num_starts > 1:
            assert key is not None
            keys = jax.random.split(key, self.num_starts - 1)
            others = jax.vmap(lambda key: _draw_slots(key, len(lattice), k, max_k))(keys)
            slots = jnp.concatenate([slots, others])
        return _best_of(jax.vmap(lambda s: self._descend(objective, s, max_k))(slots))

    def _descend(
        self, objective: DistributionObjective, slots: Array, max_k: int
    ) -> DistributionSolution:
        n = len(objective.lattice)

        def exchange(state: _Exchange) -> _Exchange:
            replaced = jnp.eye(max_k, dtype=bool)[:, None, :]
            rivals = jnp.where(replaced, jnp.arange(n)[None, :, None], state.slots)
            rivals = rivals.reshape(max_k * n, max_k)
            out, into = state.slots[:, None], jnp.arange(n)[None, :]
            # A coordinate put in for itself leaves S as it is, and so gives S its own score.
            valid = (out < n) & ((into == out) | ~jnp.isin(into, state.slots))
            scores = jax.vmap(lambda slots: _score(objective, slots))(rivals)
            scores = jnp.where(valid.ravel(), scores, jnp.inf)
            best = _lowest(scores)
            slack = _TIE * jnp.finfo(dtype).eps * jnp.abs(scores[best])
            better = scores[best] < state.score - slack
            return _Exchange(
                slots=jnp.where(better, rivals[best], state.slots),
                score=jnp.where(better, scores[best], state.score),
                num_iters=state.num_iters + 1,
                stopped=~better,
            )

        slots, dtype = slots.astype(jnp.int32), objective.scale(1).dtype
        unscored = jnp.full((), jnp.inf, dtype)
        state = jax.lax.while_loop(
            lambda s: ~s.stopped & (s.num_iters < self.max_iters),
            exchange,
            _Exchange(slots, unscored, jnp.zeros((), jnp.int32), jnp.zeros((), bool)),
        )
        table = _best_table(objective, state.slots)
        return DistributionSolution(
            table=table,
            support=jnp.isin(jnp.arange(n), state.slots),
            objective=objective(table),
            num_iters=state.num_iters,
            converged=state.stopped,
            solver=type(self).__name__,
        )


def learn_distribution(
    objective: DistributionObjective,
    k: int | Int[Array, ""],
    solver: DistributionSolver | None = None,
    key: PRNGKeyArray | None = None,
    *,
    start: ArrayLike | None = None,
    max_k: int | None = None,
) -> DistributionSolution:
    """Minimise F[q] over the k-sparse distributions of a lattice.

    Works under ``jax.jit`` and ``jax.vmap``, over objectives, keys and k. The problem (equation 1
    of Zhang et al. 2019) is NP-hard even for the squared distance (their Theorem 1), so no solver
    promises the optimum.

    Args:
        objective: F, for instance ``SquaredDistance(p)``.
        k: how many coordinates may vary, 1 ≤ k ≤ n. May be traced.
        solver: `DistributionExchange`, the default, `DistributionIHT` or `DistributionGreedy`.
        key: a JAX random key, for random starts.
        start: a k-sparse distribution to start from, of shape (m,)·n; not for
            `DistributionGreedy`.
        max_k: static upper bound of k, k itself if that is a plain number and n if it is traced.
            The work grows with m to the power of it.

    Returns:
        A `DistributionSolution`. With a traced k out of range, it is that of the nearest k in range
        and `converged` is false.

    Raises:
        TypeError: if `objective` or `solver` is something else, or k is no whole number.
        ValueError: if k is out of range, `start` is no k-sparse distribution or of no use, or a key
            is wanted and missing.
    """
    if not isinstance(objective, DistributionObjective):
        raise TypeError(
            f"objective is a {type(objective).__name__}; wanted a DistributionObjective, for "
            "instance SquaredDistance(p)."
        )
    solver = DistributionExchange() if solver is None else solver
    if not isinstance(solver, DistributionSolver):
        raise TypeError(
            f"solver is {solver!r}; wanted a DistributionSolver, for instance DistributionIHT()."
        )
    n = len(objective.lattice)
    max_k = _checked_max_k(k, max_k, n)
    if start is not None:
        start = _checked_start(start, objective, k, solver)
    own_start = start is not None and isinstance(solver, DistributionIHT)
    if solver.needs_key and key is None and not own_start:
        raise ValueError(
            f"key is missing; {type(solver).__name__} has random starts, so pass "
            "key=jax.random.key(seed)."
        )
    return _learn(objective, jnp.asarray(k, jnp.int32), solver, max_k, key, start)


def compress_distribution(
    table: ArrayLike,
    k: int | Int[Array, ""],
    features: ArrayLike,
    solver: DistributionSolver | None = None,
    key: PRNGKeyArray | None = None,
) -> DistributionSolution:
    """A k-sparse distribution that keeps the expectations of given functions.

    Minimises ‖Aq − Ap‖² (Zhang et al. 2019, section 4.2): mᵏ numbers, from
    `DistributionSolution.compact`, in place of mⁿ.

    Args:
        table: p, of shape (m,)·n.
        k: how many coordinates may vary.
        features: A, shape (r, m, …, m): the value of each of r functions at each point. There
            should be many more of them than mᵏ, or q fits them and no others.
        solver: as in `learn_distribution`.
        key: a JAX random key, for random starts.

    Raises:
        ValueError: if a shape does not fit or `table` is not a distribution.
    """
    table = _checked_table("table", table)
    if is_concrete(table):
        _check_distribution("table", table)
    return learn_distribution(ExpectationDistance(features, table), k, solver, key)


def sparse_projection(
    table: ArrayLike, k: int | Int[Array, ""], *, max_k: int | None = None
) -> Float[Array, "*lattice"]:
    """A k-sparse distribution near a table, by greedy sparse projection.

    Algorithm 2 (GSProj) of Zhang et al. (2019). The nearest one is NP-hard to find (Theorem 1).

    Args:
        table: shape (m,)·n; need not be a distribution.
        k: how many coordinates may vary, 1 ≤ k ≤ n. May be traced; then it is taken into range.
        max_k: static upper bound of k, see `learn_distribution`.

    Raises:
        ValueError: if a shape does not fit or k is out of range.
    """
    objective = SquaredDistance(table)
    max_k = _checked_max_k(k, max_k, len(objective.lattice))
    return _learn(
        objective, jnp.asarray(k, jnp.int32), DistributionGreedy(), max_k, None, None
    ).table


def random_sparse_distribution(
    key: PRNGKeyArray, lattice: tuple[int, ...], k: int | Int[Array, ""], max_k: int | None = None
) -> Float[Array, "*lattice"]:
    """A k-sparse distribution: k random coordinates, and a uniformly random one on their X_S.

    Args:
        key: a JAX random key.
        lattice: the shape of the table, (m,)·n.
        k: how many coordinates may vary, 1 ≤ k ≤ n.
        max_k: static upper bound of k, see `learn_distribution`.

    Raises:
        ValueError: if `lattice` is no lattice or k is out of range.
    """
    lattice = _checked_lattice("lattice", tuple(lattice))
    max_k = _checked_max_k(k, max_k, len(lattice))
    allowed = jnp.clip(jnp.asarray(k, jnp.int32), 1, max_k)
    return eqx.filter_jit(_draw)(key, lattice, allowed, max_k)[0]


@eqx.filter_jit
def _learn(
    objective: DistributionObjective,
    k: Array,
    solver: DistributionSolver,
    max_k: int,
    key: PRNGKeyArray | None,
    start: Array | None,
) -> DistributionSolution:
    allowed = jnp.clip(k, 1, max_k)
    solution = solver.run(objective, allowed, max_k, key, start)
    return eqx.tree_at(lambda s: s.converged, solution, solution.converged & (k == allowed))


def _best_of(solutions: DistributionSolution) -> DistributionSolution:
    best = jnp.argmin(solutions.objective)
    return jax.tree.map(lambda x: x[best], solutions)


def _lowest(scores: Float[Array, " c"]) -> Int[Array, ""]:
    """The first place of the smallest score, rounding aside."""
    least = jnp.min(scores)
    return jnp.argmax(scores <= least + _TIE * jnp.finfo(scores.dtype).eps * jnp.abs(least))


def _strides(lattice: tuple[int, ...]) -> Int[Array, " n"]:
    """How far apart in the flattened table two points are that differ by 1 in a coordinate."""
    return jnp.asarray([lattice[0] ** i for i in reversed(range(len(lattice)))], jnp.int32)


def _grow(
    objective: DistributionObjective, k: Int[Array, ""], max_k: int
) -> tuple[Float[Array, "*lattice"], Bool[Array, " n"]]:
    """Algorithm 3; with the squared distance as F, Algorithm 2. The table and its support."""
    coordinates = jnp.arange(len(objective.lattice), dtype=jnp.int32)
    n = coordinates.shape[0]

    def add(size: Array, slots: Array) -> Array:
        rivals = jnp.where(jnp.arange(max_k) == size, coordinates[:, None], slots)
        scores = jax.vmap(lambda slots: _score(objective, slots))(rivals)
        return rivals[_lowest(jnp.where(jnp.isin(coordinates, slots), jnp.inf, scores))]

    slots = jax.lax.fori_loop(0, k, add, jnp.full(max_k, n, jnp.int32))
    return _best_table(objective, slots), jnp.isin(coordinates, slots)


def _score(objective: DistributionObjective, slots: Int[Array, " k"]) -> Float[Array, ""]:
    return objective.best_on(*_points(slots, objective.lattice))[1]


def _best_table(
    objective: DistributionObjective, slots: Int[Array, " k"]
) -> Float[Array, "*lattice"]:
    points, allowed = _points(slots, objective.lattice)
    return _scatter(points, objective.best_on(points, allowed)[0], objective.lattice)


def _slots(support: Bool[Array, " n"], max_k: int) -> Int[Array, " k"]:
    """The coordinates of a support, then n in slots not used."""
    n = support.shape[0]
    return jnp.nonzero(support, size=max_k, fill_value=n)[0].astype(jnp.int32)


def _points(
    slots: Int[Array, " k"], lattice: tuple[int, ...]
) -> tuple[Int[Array, " p"], Bool[Array, " p"]]:
    """X_S as places in the flattened table, and which of them there are."""
    n, m = len(lattice), lattice[0]
    digits = jnp.asarray(np.indices((m,) * slots.shape[0]).reshape(slots.shape[0], -1).T, jnp.int32)
    strides = jnp.append(_strides(lattice), 0)
    allowed = ((digits == 0) | (slots < n)).all(axis=1)
    return jnp.sum(digits * strides[slots], axis=1), allowed


def _scatter(
    points: Int[Array, " p"], values: Float[Array, " p"], lattice: tuple[int, ...]
) -> Float[Array, "*lattice"]:
    flat = jnp.zeros(int(np.prod(lattice)), values.dtype)
    return flat.at[points].add(values).reshape(lattice)


def _varying(table: Float[Array, "*lattice"]) -> Bool[Array, " n"]:
    """The coordinates that are not zero somewhere on the table's support."""
    sums = [
        jnp.any(jax.lax.slice_in_dim(table, 1, table.shape[i], axis=i) > 0)
        for i in range(table.ndim)
    ]
    return jnp.stack(sums)


def _draw_slots(key: PRNGKeyArray, n: int, k: Int[Array, ""], max_k: int) -> Int[Array, " k"]:
    slots = jax.random.permutation(key, n)[:max_k]
    return jnp.where(jnp.arange(max_k) < k, slots, n).astype(jnp.int32)


def _draw(
    key: PRNGKeyArray, lattice: tuple[int, ...], k: Int[Array, ""], max_k: int
) -> tuple[Float[Array, "*lattice"], Bool[Array, " n"]]:
    key_support, key_values = jax.random.split(key)
    slots = _draw_slots(key_support, len(lattice), k, max_k)
    points, allowed = _points(slots, lattice)
    masses = jnp.where(allowed, jax.random.exponential(key_values, points.shape), 0)
    support = jnp.isin(jnp.arange(len(lattice)), slots)
    return _scatter(points, masses / jnp.sum(masses), lattice), support


def _checked_lattice(name: str, lattice: tuple[int, ...]) -> tuple[int, ...]:
    if not lattice or len(set(lattice)) != 1 or lattice[0] < 2:
        raise ValueError(
            f"{name} has shape {lattice}; wanted (m, …, m), one axis for each of the n coordinates "
            "and m ≥ 2 values along each. A table with unequal axes can be padded with zeros."
        )
    if lattice[0] ** len(lattice) >= 2**31:
        raise ValueError(f"{name} has shape {lattice}; wanted fewer than 2³¹ entries.")
    return lattice


def _checked_table(name: str, value: ArrayLike) -> Array:
    table = jnp.asarray(value)
    if not jnp.issubdtype(table.dtype, jnp.floating):
        table = table.astype(float)
    _checked_lattice(name, table.shape)
    if is_concrete(table) and not jnp.isfinite(table).all():
        raise ValueError(f"{name} has entries that are not finite.")
    return table


def _check_distribution(name: str, table: Array) -> None:
    total, least = float(table.sum()), float(table.min())
    if least < 0 or abs(total - 1) > 1e-3:
        raise ValueError(
            f"{name} sums to {total:.6g} and its least entry is {least:.6g}; wanted a "
            "distribution: nothing negative, and a sum of 1."
        )


def _checked_start(
    start: ArrayLike, objective: DistributionObjective, k: Any, solver: DistributionSolver
) -> Array:
    if isinstance(solver, DistributionGreedy):
        raise ValueError("start is of no use to DistributionGreedy, which starts from nothing.")
    table = _checked_table("start", start).astype(objective.scale(1).dtype)
    if table.shape != objective.lattice:
        raise ValueError(f"start has shape {table.shape}; wanted {objective.lattice}.")
    if is_concrete(table):
        _check_distribution("start", table)
        varying = int(_varying(table).sum())
        if is_concrete(k) and varying > k:
            raise ValueError(
                f"start varies in {varying} coordinates; wanted at most k = {k}. "
                "sparse_projection(start, k) is such a distribution."
            )
    return table


def _checked_max_k(k: Any, max_k: int | None, n: int) -> int:
    bound = n if max_k is None else _as_index("max_k", max_k)
    if not 1 <= bound <= n:
        raise ValueError(f"max_k is {bound}; wanted 1 ≤ max_k ≤ n = {n}.")
    if not is_concrete(k):
        return bound
    k = _as_index("k", k)
    if not 1 <= k <= bound:
        raise ValueError(f"k is {k}; wanted 1 ≤ k ≤ {bound}, the number of coordinates or max_k.")
    return k if max_k is None else bound


def _as_index(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; wanted a whole number.") from None


def _check_at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} is {value}; wanted at least 1.")
