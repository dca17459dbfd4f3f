"""Sparse variational inference: a coreset that needs no weighting distribution to start from.

Other builds compare log-likelihoods at draws of one distribution π̂ that is found beforehand. Here
the draws come from the *coreset posterior* π_w itself, anew for every choice and every change of
the weights, and what is made small is KL(π_w‖π) directly. With f_n the log-likelihood of datum n
and L = Σ_n f_n, its gradient in the weights is −Cov_{π_w}[f, L − Σ_m w_m f_m].

What it costs is draws: T of S for every row. So a choice and its T steps are one compiled call,
the same for every number of rows; the mode of π_w and the weights start where they were; and the
draws of a step are one batch.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxcoreset.coreset import Coreset
from jaxcoreset.embedding import centre, log_likelihood_matrix, log_likelihood_sum
from jaxcoreset.host import Clock, at_least, peak_memory, progress_bar
from jaxcoreset.laplace import Params
from jaxcoreset.likelihood import ModelLikelihood, model_likelihood
from jaxcoreset.problem import HIGHEST
from jaxcoreset.report import Report
from jaxcoreset.weighting import Laplace, Weighting

# Up to here the sums over the data are exact; beyond, over so many rows drawn anew each time.
_ALL_ROWS = 10_000
_CANDIDATES = 2_000
# The Newton decrement, in nats, from which one more full step is enough; the step lengths tried.
_DECREMENT = 1e-2
_STEP_LENGTHS = 2.0 ** -np.arange(0, 16, 2)

Sampler = Callable[[Array, PyTree, PRNGKeyArray, int], Params]


class PosteriorSampler(eqx.Module):
    """A way to draw from the coreset posterior, with a state that the next draws start from.

    Its methods are traced: they may use no Python control flow that depends on values.
    """

    @abc.abstractmethod
    def start(self, likelihood: ModelLikelihood) -> PyTree:
        """The state before anything was drawn, a pytree of arrays."""

    @abc.abstractmethod
    def draw(
        self,
        likelihood: ModelLikelihood,
        state: PyTree,
        weights: Float[Array, " k"],
        rows: PyTree,
        key: PRNGKeyArray,
        num: int,
    ) -> tuple[Params, PyTree, Bool[Array, ""]]:
        """Draw from the posterior of weighted rows.

        Args:
            likelihood: the model's likelihood.
            state: what `start` or the last call of `draw` returned.
            weights: shape (k,); a row of weight 0 does not count.
            rows: the k rows, laid out as `ModelLikelihood.data`.
            key: a JAX random key.
            num: how many draws.

        Returns:
            `num` draws, a dictionary of unconstrained parameters with that leading axis; the new
            state; and whether they can be relied on.
        """


class LaplaceSampler(PosteriorSampler):
    """Draws from the Laplace approximation of the coreset posterior.

    Its mode is found by Newton's method from where it was last, which is one or two steps while
    the weights change little. The best of several step lengths is taken, and where the Hessian is
    not positive definite its eigenvalues are made so.

    Args:
        max_iters: at most so many Newton steps per call.
    """

    max_iters: int = 50

    def start(self, likelihood: ModelLikelihood) -> Float[Array, " d"]:
        """The starting point of the model."""
        return ravel_pytree(likelihood.init_params)[0]

    def draw(
        self,
        likelihood: ModelLikelihood,
        state: Float[Array, " d"],
        weights: Float[Array, " k"],
        rows: PyTree,
        key: PRNGKeyArray,
        num: int,
    ) -> tuple[Params, Float[Array, " d"], Bool[Array, ""]]:
        """See `PosteriorSampler.draw`; the state is the mode."""
        _, unravel = ravel_pytree(likelihood.init_params)

        def energy(flat: Array) -> Float[Array, ""]:
            params = unravel(flat)
            terms = likelihood.log_likelihood(params, rows)
            return -jnp.vdot(weights, terms, precision=HIGHEST) - likelihood.log_prior(params)

        mode, factor, converged = _find_mode(energy, state, self.max_iters)
        normal = jax.random.normal(key, (num, mode.size), mode.dtype)
        flat = mode + solve_triangular(factor, normal.T, trans=1, lower=True).T
        return jax.vmap(unravel)(flat), mode, converged


class _Stateless(PosteriorSampler):
    """A function of the user as a sampler."""

    function: Sampler

    def start(self, likelihood: ModelLikelihood) -> tuple:
        return ()

    def draw(
        self,
        likelihood: ModelLikelihood,
        state: PyTree,
        weights: Float[Array, " k"],
        rows: PyTree,
        key: PRNGKeyArray,
        num: int,
    ) -> tuple[Params, PyTree, Bool[Array, ""]]:
        return self.function(weights, rows, key, num), (), jnp.array(True)


class SparseVI:
    """Builds a coreset by sparse variational inference; configured and run as `CoresetBuilder` is.

    Algorithm 1 of Campbell and Beronov, "Sparse variational inference: Bayesian coresets from
    scratch" (NeurIPS 2019, section 3), as Zhang et al. (2021, section 5) compare with it. Starting
    from no rows, `size` times: draw from the coreset posterior π_w; take the row whose
    log-likelihood f_n has the largest correlation with L − Σ w f, or the largest absolute one if it
    has weight already; then `num_iters` steps of projected stochastic gradient on KL(π_w‖π) in the
    weights of all the rows taken, each with `num_draws` draws. The best row may be one that is
    there already, so that fewer rows than `size` can come out.

    Args:
        model: a NumPyro model whose observations are independent given its parameters.
        size: at most so many rows, and so many iterations.
        num_draws: draws of the coreset posterior per choice and per gradient, S.
        num_iters: changes of the weights per row chosen, T.
        learning_rate: the step length γ_t of change t = 1, …, T; 1/t if left out, as the papers
            have it. With few rows among many data it is short: a weight of a hundred takes many
            choices to grow.
        optimizer: the steps as an optax transformation, begun anew for every choice. If left out,
            Adam with `learning_rate`, as in the authors' programs: plain ``optax.sgd`` takes steps
            as long as a gradient that grows with the data, and does worse. Weights that it makes
            negative become zero.
        sampler: how the coreset posterior is drawn from: `LaplaceSampler`, or where the model has a
            closed form any traceable function ``sampler(weights, rows, key, num)`` that returns a
            dictionary of unconstrained parameters with leading axis `num`. `rows` are the k rows
            laid out as `ModelLikelihood.data`; those that are not used yet have weight 0.
        redraw_every: so many steps use the same draws, which count π_w/π_v times after the weights
            moved from v to w. 1 is the papers'; 10 costs about a tenth.
        num_candidates: rows that each choice is made among, drawn anew for it; all where
            n ≤ 10,000, and else 2,000.
        num_gradient_rows: rows that stand for the data in a gradient, counted n/m times and drawn
            anew for it; all where n ≤ 10,000, and else 10,000.
        weighting: where the report's held-out error and divergence are measured: draws of this
            weighting distribution, which the algorithm itself does not see. None for draws of the
            coreset's own posterior.
        num_held_out: how many such draws.
        data_axes: which arguments are data; see `model_likelihood`.
        plate: the name of the data plate, if the model has several that could be it.
        progress_bar: whether to show progress on a terminal.

    Raises:
        ValueError: if a number is out of range, or both `learning_rate` and `optimizer` are given.
        TypeError: if an argument is of the wrong kind.
    """

    def __init__(
        self,
        model: Callable,
        size: int,
        *,
        num_draws: int = 100,
        num_iters: int = 100,
        learning_rate: optax.Schedule | None = None,
        optimizer: optax.GradientTransformation | None = None,
        sampler: PosteriorSampler | Sampler = LaplaceSampler(),  # noqa: B008 - frozen
        redraw_every: int = 1,
        num_candidates: int | None = None,
        num_gradient_rows: int | None = None,
        weighting: Weighting | None = Laplace(),  # noqa: B008 - frozen, like every weighting
        num_held_out: int = 1000,
        data_axes: Any = None,
        plate: str | None = None,
        progress_bar: bool = True,
    ):
        self.model = model
        self.size = at_least("size", size, 1)
        self.num_draws = at_least("num_draws", num_draws, 2)
        self.num_iters = at_least("num_iters", num_iters, 1)
        self.redraw_every = at_least("redraw_every", redraw_every, 1)
        if self.num_iters % self.redraw_every:
            raise ValueError(
                f"redraw_every is {redraw_every} and num_iters is {num_iters}; wanted a divisor of "
                "num_iters."
            )
        self.optimizer = _optimizer(learning_rate, optimizer)
        if not isinstance(sampler, PosteriorSampler):
            if not callable(sampler) or isinstance(sampler, type):
                raise TypeError(
                    f"sampler is {sampler!r}; wanted LaplaceSampler() or a function of (weights, "
                    "rows, key, num)."
                )
            sampler = _Stateless(sampler)
        self.sampler = sampler
        self.num_candidates = _optional("num_candidates", num_candidates)
        self.num_gradient_rows = _optional("num_gradient_rows", num_gradient_rows)
        if weighting is not None and not isinstance(weighting, Weighting):
            raise TypeError(f"weighting is {weighting!r}; wanted a Weighting, or None.")
        self.weighting = weighting
        self.num_held_out = at_least("num_held_out", num_held_out, 2)
        self.data_axes = data_axes
        self.plate = plate
        self.progress_bar = progress_bar

    def run(self, key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Coreset:
        """Build a coreset of the data in the model's arguments.

        Args:
            key: a JAX random key; the same key gives the same coreset.
            *args: the model's positional arguments.
            **kwargs: the model's keyword arguments.

        Returns:
            The coreset after the last iteration; its ``report.curve`` has those before it.

        Raises:
            ValueError: if the model or the data cannot be used, a log-likelihood is not finite at
                the draws, or no row has a weight in the end.
        """
        path = self.run_path(key, *args, **kwargs)
        if self.size not in path:
            raise ValueError(
                f"no row has a weight after {self.size} choices; wanted at least one. Give more "
                "iterations (num_iters), a longer step (learning_rate) or more draws (num_draws)."
            )
        return path[self.size]

    def run_path(self, key: PRNGKeyArray, *args: Any, **kwargs: Any) -> dict[int, Coreset]:
        """The coresets of every size up to `size`, from one run; arguments and errors as in `run`.

        Returns:
            From k = 1, …, `size` to the coreset after k iterations, in increasing order; a k after
            which no row has a weight is left out. Where `size` is not less than n, all the rows
            under `size` alone.
        """
        model_key, weighting_key, held_out_key, path_key = jax.random.split(key, 4)
        clock = Clock()
        with clock.stage("model"):
            likelihood = model_likelihood(
                self.model,
                args,
                kwargs,
                data_axes=self.data_axes,
                plate=self.plate,
                key=model_key,
            )
        if self.size >= likelihood.num_data:
            return {self.size: self._whole(likelihood, clock)}
        path = self._grow(likelihood, path_key, clock)
        with clock.stage("held-out error"):
            curve = self._measure(likelihood, path, weighting_key, held_out_key)
        curve["relative_error"] = path.relative_error
        return {
            at + 1: self._coreset(likelihood, path, curve, at, clock)
            for at in range(self.size)
            if path.weights[at].any()
        }

    def _grow(self, likelihood: ModelLikelihood, key: PRNGKeyArray, clock: Clock) -> "_Path":
        """The iterations, each a call of one compiled function."""
        n = likelihood.num_data
        growth = _Growth(
            likelihood=likelihood,
            sampler=self.sampler,
            optimizer=self.optimizer,
            size=self.size,
            num_draws=self.num_draws,
            num_iters=self.num_iters,
            redraw_every=self.redraw_every,
            num_candidates=min(n, self.num_candidates or (n if n <= _ALL_ROWS else _CANDIDATES)),
            num_gradient_rows=min(n, self.num_gradient_rows or _ALL_ROWS),
        )
        data = jax.tree.map(jnp.asarray, likelihood.data)
        state = growth.start()
        with clock.stage("compilation"):
            step = jax.jit(growth.step).lower(data, state, key).compile()
        weights, outcomes = [], []
        with (
            clock.stage("choices and weights"),
            progress_bar(self.size, "SparseVI", show=self.progress_bar, unit="rows") as bar,
        ):
            for at in range(self.size):
                state, outcome = step(data, state, jax.random.fold_in(key, at))
                if not outcome.is_finite:
                    raise ValueError(
                        "the log-likelihood is not finite at draws of the coreset posterior with "
                        f"{int(state.count)} rows; at first these are draws of the prior. Give a "
                        "proper prior, or a tighter one, or rescale the data, or give a sampler "
                        "that keeps to where the log-likelihood is finite."
                    )
                weights.append(np.asarray(state.weights))
                outcomes.append(outcome)
                bar.update(1)
        return _Path(
            growth, state, np.asarray(state.indices, np.int64), np.stack(weights), outcomes
        )

    def _measure(
        self,
        likelihood: ModelLikelihood,
        path: "_Path",
        weighting_key: PRNGKeyArray,
        key: PRNGKeyArray,
    ) -> dict[str, np.ndarray]:
        """The errors along the path on draws that it did not see."""
        if self.weighting is None:
            draws, _, _ = jax.jit(self.sampler.draw, static_argnums=(0, 5))(
                likelihood,
                path.state.sampler,
                path.state.weights,
                tuple(jnp.asarray(leaf) for leaf in likelihood.take(path.indices)),
                key,
                self.num_held_out,
            )
        else:
            source = self.weighting.fit(likelihood, weighting_key, show_progress=self.progress_bar)
            _, draws = source.split(key, 2, self.num_held_out)
        evaluate = likelihood.log_likelihood
        atoms = centre(log_likelihood_matrix(evaluate, draws, likelihood.take(path.indices)))
        target = np.asarray(centre(log_likelihood_sum(evaluate, draws, likelihood.data)))
        residuals = target - path.weights @ np.asarray(atoms)
        # Entries are over √S: times S, their squares are draws of the squared difference.
        squares = target.size * residuals.astype(np.float64) ** 2
        kl = squares.mean(1)
        return {
            "size": np.arange(1, self.size + 1),
            "num_used": np.count_nonzero(path.weights, axis=1),
            "held_out_error": np.sqrt(kl) / np.linalg.norm(target),
            "kl": kl,
            "kl_standard_error": squares.std(1) / np.sqrt(target.size),
        }

    def _coreset(
        self,
        likelihood: ModelLikelihood,
        path: "_Path",
        curve: dict[str, np.ndarray],
        at: int,
        clock: Clock,
    ) -> Coreset:
        """The coreset after iteration `at`, counted from 0."""
        slots = np.flatnonzero(path.weights[at])
        slots = slots[np.argsort(path.indices[slots])]
        indices = path.indices[slots]
        report = Report(
            num_data=likelihood.num_data,
            size=at + 1,
            num_used=slots.size,
            num_candidates=path.growth.num_candidates,
            num_draws=self.num_draws,
            num_held_out=self.num_held_out,
            relative_error=float(curve["relative_error"][at]),
            held_out_error=float(curve["held_out_error"][at]),
            kl=float(curve["kl"][at]),
            kl_standard_error=float(curve["kl_standard_error"][at]),
            solver="SparseVI",
            converged=all(bool(outcome.is_reliable) for outcome in path.outcomes[: at + 1]),
            weighting="its own" if self.weighting is None else type(self.weighting).__name__,
            curve=curve,
            seconds=clock.seconds,
            peak_memory=peak_memory(),
        )
        args, kwargs = likelihood.assemble(likelihood.take(indices))
        dims = likelihood.data_dims
        weights = path.weights[at, slots]
        return Coreset(self.model, indices, weights, args, kwargs, report, data_dims=dims)

    def _whole(self, likelihood: ModelLikelihood, clock: Clock) -> Coreset:
        """All rows with weight 1."""
        n = likelihood.num_data
        nothing = dict.fromkeys(
            ("relative_error", "held_out_error", "kl", "kl_standard_error"), np.zeros(1)
        )
        report = Report(
            num_data=n,
            size=self.size,
            num_used=n,
            num_candidates=n,
            num_draws=0,
            num_held_out=0,
            relative_error=0.0,
            held_out_error=0.0,
            kl=0.0,
            kl_standard_error=0.0,
            solver="all rows",
            converged=True,
            weighting="none needed",
            curve={"size": np.array([n]), "num_used": np.array([n]), **nothing},
            seconds=clock.seconds,
            peak_memory=peak_memory(),
        )
        args, kwargs = likelihood.assemble(likelihood.data)
        ones = np.ones(n, jnp.zeros(()).dtype)
        dims = likelihood.data_dims
        return Coreset(self.model, np.arange(n), ones, args, kwargs, report, data_dims=dims)


def _find_mode(
    energy: Callable[[Array], Array], start: Float[Array, " d"], max_iters: int
) -> tuple[Float[Array, " d"], Float[Array, "d d"], Bool[Array, ""]]:
    """The minimum of an energy, the Cholesky factor of its Hessian there, and whether it is one."""

    def is_far(state: tuple) -> Array:
        _, _, decrement, iteration = state
        # Written so that a decrement that is not a number ends the search.
        return (decrement > _DECREMENT) & (iteration < max_iters)

    def move(state: tuple) -> tuple:
        position, _, _, iteration = state
        factor = _factor(jax.hessian(energy)(position))
        half = solve_triangular(factor, -jax.grad(energy)(position), lower=True)
        step = solve_triangular(factor, half, trans=1, lower=True)
        decrement = jnp.vdot(half, half)

        def best_length() -> Array:
            lengths = jnp.asarray(_STEP_LENGTHS, position.dtype)
            values = jax.vmap(lambda length: energy(position + length * step))(lengths)
            return lengths[jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))]

        is_near = decrement <= _DECREMENT
        length = jax.lax.cond(is_near, lambda: jnp.ones((), position.dtype), best_length)
        return position + length * step, factor, decrement, iteration + 1

    nothing = jnp.zeros((start.size, start.size), start.dtype)
    position, factor, decrement, _ = jax.lax.while_loop(
        is_far, move, (start, nothing, jnp.full((), jnp.inf, start.dtype), jnp.array(0))
    )
    return position, factor, decrement <= _DECREMENT


def _factor(hessian: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The Cholesky factor of a matrix, or of one that is positive definite where it is not."""
    factor = jnp.linalg.cholesky(hessian)

    def repaired() -> Array:
        values, vectors = jnp.linalg.eigh(hessian)
        smallest = jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values))
        values = jnp.maximum(jnp.abs(values), smallest)
        return jnp.linalg.cholesky(
            jnp.matmul(vectors * values, vectors.T, precision=HIGHEST)
            + smallest * jnp.eye(values.size, dtype=values.dtype)
        )

    return jax.lax.cond(jnp.isfinite(factor).all(), lambda: factor, repaired)


class _State(eqx.Module):
    """The coreset while it grows; the slots from `count` on are not used yet."""

    indices: Int[Array, " k"]
    weights: Float[Array, " k"]
    count: Int[Array, ""]
    sampler: PyTree


class _Outcome(eqx.Module):
    """What is to be known of one iteration, beside the state that it left."""

    relative_error: Float[Array, ""]
    is_finite: Bool[Array, ""]
    is_reliable: Bool[Array, ""]


class _Embedding(eqx.Module):
    """Atoms under draws of the coreset posterior: of rows of the data, and of the coreset's own."""

    rows: Int[Array, " m"]
    atoms: Float[Array, "m s"]
    kept: Float[Array, "k s"]
    target: Float[Array, " s"]


class _Growth(eqx.Module):
    """One iteration of the algorithm as a function of arrays: choose a row, change the weights."""

    likelihood: ModelLikelihood = eqx.field(static=True)
    sampler: PosteriorSampler
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    size: int = eqx.field(static=True)
    num_draws: int = eqx.field(static=True)
    num_iters: int = eqx.field(static=True)
    redraw_every: int = eqx.field(static=True)
    num_candidates: int = eqx.field(static=True)
    num_gradient_rows: int = eqx.field(static=True)

    def start(self) -> _State:
        return _State(
            indices=jnp.zeros(self.size, jnp.int32),
            weights=jnp.zeros(self.size),
            count=jnp.array(0, jnp.int32),
            sampler=self.sampler.start(self.likelihood),
        )

    def step(self, data: PyTree, state: _State, key: PRNGKeyArray) -> tuple[_State, _Outcome]:
        choice_key, weights_key = jax.random.split(key)
        chosen, is_finite, chosen_well = self._choose(data, state, choice_key)
        state, relative_error, weighted_well = self._reweight(data, chosen, weights_key)
        return state, _Outcome(relative_error, is_finite, chosen_well & weighted_well)

    def _embed(
        self, data: PyTree, state: _State, key: PRNGKeyArray, num_rows: int
    ) -> tuple[_Embedding, PyTree, Bool[Array, ""]]:
        """Draw from the coreset posterior, and evaluate `num_rows` rows and the coreset's."""
        draws_key, rows_key = jax.random.split(key)
        kept = _take(data, state.indices)
        draws, sampler, reliable = self.sampler.draw(
            self.likelihood, state.sampler, state.weights, kept, draws_key, self.num_draws
        )

        def evaluate(rows: PyTree) -> Float[Array, "m s"]:
            each = jax.vmap(self.likelihood.log_likelihood, in_axes=(0, None), out_axes=-1)
            return centre(each(draws, rows))

        n = self.likelihood.num_data
        if num_rows == n:
            rows = jnp.arange(n)
            atoms = evaluate(data)
            embedding = _Embedding(rows, atoms, atoms[state.indices], jnp.sum(atoms, axis=0))
        else:
            rows = jax.random.randint(rows_key, (num_rows,), 0, n)
            atoms = evaluate(_take(data, rows))
            target = (n / num_rows) * jnp.sum(atoms, axis=0)
            embedding = _Embedding(rows, atoms, evaluate(kept), target)
        return embedding, sampler, reliable

    def _choose(
        self, data: PyTree, state: _State, key: PRNGKeyArray
    ) -> tuple[_State, Bool[Array, ""], Bool[Array, ""]]:
        """Take the row whose log-likelihood has the largest correlation with the residual."""
        embedding, sampler, reliable = self._embed(data, state, key, self.num_candidates)
        residual = embedding.target - _combine(state.weights, embedding.kept)
        used = jnp.arange(self.size) < state.count
        # A row with weight may be taken for either sign, as its weight can also fall.
        of_kept = jnp.abs(_correlations(embedding.kept, residual))
        best_kept = jnp.max(jnp.where(used & (state.weights > 0), of_kept, 0))
        weighted = jnp.zeros(self.likelihood.num_data).at[state.indices].add(state.weights)
        scores = _correlations(embedding.atoms, residual)
        scores = jnp.where(weighted[embedding.rows] > 0, -jnp.inf, scores)
        best = jnp.argmax(scores)
        chosen = embedding.rows[best].astype(state.indices.dtype)
        # A row whose weight has fallen to zero still has its slot.
        grows = (scores[best] > best_kept) & ~(used & (state.indices == chosen)).any()
        here = (jnp.arange(self.size) == state.count) & grows
        state = _State(
            indices=jnp.where(here, chosen, state.indices),
            weights=state.weights,
            count=state.count + grows,
            sampler=sampler,
        )
        return state, jnp.isfinite(residual).all(), reliable

    def _reweight(
        self, data: PyTree, state: _State, key: PRNGKeyArray
    ) -> tuple[_State, Float[Array, ""], Bool[Array, ""]]:
        """Projected stochastic gradient steps on KL(π_w‖π) in the weights of the rows taken."""
        used = jnp.arange(self.size) < state.count

        def redraw(carry: tuple, turn: Array) -> tuple[tuple, tuple]:
            state, momenta = carry
            turn_key = jax.random.fold_in(key, turn)
            embedding, sampler, reliable = self._embed(
                data, state, turn_key, self.num_gradient_rows
            )
            drawn_at = state.weights

            def move(_: Array, carry: tuple) -> tuple:
                weights, momenta = carry
                gradient = _gradient(embedding, weights, drawn_at if reuses else None)
                usable = used & jnp.isfinite(gradient)
                updates, momenta = self.optimizer.update(
                    jnp.where(usable, gradient, 0), momenta, weights
                )
                moved = jnp.maximum(weights + jnp.asarray(updates), 0)
                return jnp.where(usable, moved, weights), momenta

            weights, momenta = jax.lax.fori_loop(0, self.redraw_every, move, (drawn_at, momenta))
            residual = embedding.target - _combine(weights, embedding.kept)
            error = jnp.linalg.norm(residual) / jnp.linalg.norm(embedding.target)
            state = _State(state.indices, weights, state.count, sampler)
            return (state, momenta), (error, reliable)

        reuses = self.redraw_every > 1
        start = state, self.optimizer.init(state.weights)
        turns = jnp.arange(self.num_iters // self.redraw_every)
        (state, _), (errors, reliable) = jax.lax.scan(redraw, start, turns)
        return state, errors[-1], reliable.all()


def _gradient(
    embedding: _Embedding,
    weights: Float[Array, " k"],
    drawn_at: Float[Array, " k"] | None,
) -> Float[Array, " k"]:
    """−Cov_{π_w}[f, L − Σ w f], from draws of π_w; or of π_v at v = `drawn_at`, reweighted."""
    residual = embedding.target - _combine(weights, embedding.kept)
    if drawn_at is not None:
        root = np.sqrt(residual.size)
        counts = residual.size * jax.nn.softmax(root * _combine(weights - drawn_at, embedding.kept))
        # Σ_s c_s r_s = 0 once r is centred, so that the atoms need not be.
        residual = counts * (residual - jnp.mean(counts * residual))
    return -jnp.matmul(embedding.kept, residual, precision=HIGHEST)


def _correlations(atoms: Float[Array, "m s"], residual: Float[Array, " s"]) -> Float[Array, " m"]:
    """Up to a factor, the correlation of each atom with the residual; −∞ for an atom of zero."""
    norms = jnp.linalg.norm(atoms, axis=1)
    inner = jnp.matmul(atoms, residual, precision=HIGHEST)
    return jnp.where(norms > 0, inner / jnp.where(norms > 0, norms, 1), -jnp.inf)


def _combine(weights: Float[Array, " k"], atoms: Float[Array, "k s"]) -> Float[Array, " s"]:
    return jnp.matmul(weights, atoms, precision=HIGHEST)


def _take(data: PyTree, indices: Int[Array, " m"]) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[indices], data)


@dataclass(frozen=True)
class _Path:
    """What the iterations left: the slots' rows, and their weights after each iteration."""

    growth: _Growth
    state: _State
    indices: np.ndarray
    weights: np.ndarray
    outcomes: list[_Outcome]

    @property
    def relative_error(self) -> np.ndarray:
        return np.array([float(outcome.relative_error) for outcome in self.outcomes])


def _optimizer(
    learning_rate: optax.Schedule | None, optimizer: optax.GradientTransformation | None
) -> optax.GradientTransformation:
    """The optimizer asked for; optax counts steps from 0 and the papers from 1."""
    if optimizer is not None:
        if learning_rate is not None:
            raise ValueError(
                "both learning_rate and optimizer are given; wanted one of them: put the learning "
                "rate into the optimizer."
            )
        if not isinstance(optimizer, optax.GradientTransformation):
            raise TypeError(
                f"optimizer is {optimizer!r}; wanted an optax transformation, for instance "
                "optax.sgd(0.01)."
            )
        return optimizer
    if learning_rate is None:
        return optax.adam(lambda count: 1 / (count + 1))
    if not callable(learning_rate):
        raise TypeError(
            f"learning_rate is {learning_rate!r}; wanted a function of the step t = 1, 2, …, for "
            "instance lambda t: 1 / t."
        )
    return optax.adam(lambda count: learning_rate(count + 1))


def _optional(name: str, value: int | None) -> int | None:
    return None if value is None else at_least(name, value, 1)
