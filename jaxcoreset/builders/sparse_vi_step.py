"""One iteration of sparse variational inference as a function of arrays.

A choice and the changes of the weights that follow it, with a static number of slots for rows, so
that one compiled program serves every iteration. The draws come from a `PosteriorSampler`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxcoreset.builders.posterior_sampler import PosteriorSampler
from jaxcoreset.builders.uniform_support import Atoms
from jaxcoreset.likelihood.embedding import centre
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.solvers.numerics import HIGHEST


class State(eqx.Module):
    """The growing coreset; the slots from `count` on are not used yet."""

    indices: Int[Array, " k"]
    weights: Float[Array, " k"]
    count: Int[Array, ""]
    sampler: PyTree


class Outcome(eqx.Module):
    """What one iteration reports beside the new state."""

    relative_error: Float[Array, ""]
    usable_draws: Float[Array, ""]
    can_choose: Bool[Array, ""]
    is_reliable: Bool[Array, ""]


class _Embedding(Atoms):
    """Atoms under draws of the coreset posterior: of rows of the data, and of the coreset's own.

    They are zero at the draws that are not `usable`, where some log-likelihood is not finite.
    """

    rows: Int[Array, " m"]
    atoms: Float[Array, "m s"]
    usable: Bool[Array, " s"]

    @property
    def num_usable(self) -> Int[Array, ""]:
        return jnp.sum(self.usable)

    @property
    def fraction_usable(self) -> Float[Array, ""]:
        return jnp.mean(self.usable, dtype=self.atoms.dtype)


class Growth(eqx.Module):
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

    def start(self, likelihood: ModelLikelihood) -> State:
        """The state with no row."""
        return State(
            indices=jnp.zeros(self.size, jnp.int32),
            weights=jnp.zeros(self.size),
            count=jnp.array(0, jnp.int32),
            sampler=self.sampler.start(likelihood),
        )

    def step(self, data: PyTree, state: State, key: PRNGKeyArray) -> tuple[State, Outcome]:
        """Choose a row, then change the weights."""
        choice_key, weights_key = jax.random.split(key)
        chosen, of_choice, can_choose, chosen_well = self._choose(data, state, choice_key)
        state, relative_error, of_steps, weighted_well = self._reweight(data, chosen, weights_key)
        return state, Outcome(
            relative_error=relative_error,
            usable_draws=jnp.minimum(of_choice, of_steps),
            can_choose=can_choose,
            is_reliable=chosen_well & weighted_well,
        )

    def _embed(
        self, data: PyTree, state: State, key: PRNGKeyArray, num_rows: int
    ) -> tuple[_Embedding, PyTree, Bool[Array, ""]]:
        """Draw from the coreset posterior, and evaluate `num_rows` rows and the coreset's."""
        draws_key, rows_key = jax.random.split(key)
        kept = _take(data, state.indices)
        draws, sampler, reliable = self.sampler.draw(
            self.likelihood, state.sampler, state.weights, kept, draws_key, self.num_draws
        )

        def evaluate(rows: PyTree) -> Float[Array, "m s"]:
            each = jax.vmap(self.likelihood.log_likelihood, in_axes=(0, None), out_axes=-1)
            return each(draws, rows)

        n = self.likelihood.num_data
        if num_rows == n:
            rows = jnp.arange(n)
            values = evaluate(data)
            of_kept = values[state.indices]
            usable = jnp.isfinite(values).all(axis=0)
        else:
            rows = jax.random.randint(rows_key, (num_rows,), 0, n)
            values, of_kept = evaluate(_take(data, rows)), evaluate(kept)
            usable = jnp.isfinite(values).all(axis=0) & jnp.isfinite(of_kept).all(axis=0)
        atoms = centre(values, usable)
        target = (n / num_rows) * jnp.sum(atoms, axis=0)
        found = _Embedding(centre(of_kept, usable), target, rows, atoms, usable)
        return found, sampler, reliable

    def _choose(
        self, data: PyTree, state: State, key: PRNGKeyArray
    ) -> tuple[State, Float[Array, ""], Bool[Array, ""], Bool[Array, ""]]:
        """Take the row whose log-likelihood has the largest correlation with the residual.

        Returns:
            The new state, the fraction of usable draws, True if they allow a choice, and True if
            they are reliable.
        """
        embedding, sampler, reliable = self._embed(data, state, key, self.num_candidates)
        residual = embedding.residual(state.weights)
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
        state = State(
            indices=jnp.where(here, chosen, state.indices),
            weights=state.weights,
            count=state.count + grows,
            sampler=sampler,
        )
        can_choose = (embedding.num_usable >= 2) & jnp.isfinite(residual).all()
        return state, embedding.fraction_usable, can_choose, reliable

    def _reweight(
        self, data: PyTree, state: State, key: PRNGKeyArray
    ) -> tuple[State, Float[Array, ""], Float[Array, ""], Bool[Array, ""]]:
        """Projected stochastic gradient steps on KL(π_w‖π) in the weights of the rows taken.

        Returns:
            The new state, the relative error after the last step, the mean fraction of usable
            draws, and True if all draws are reliable.
        """
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
            state = State(state.indices, weights, state.count, sampler)
            error = embedding.relative_error(weights)
            return (state, momenta), (error, embedding.fraction_usable, reliable)

        reuses = self.redraw_every > 1
        start = state, self.optimizer.init(state.weights)
        turns = jnp.arange(self.num_iters // self.redraw_every)
        (state, _), (errors, usable_draws, reliable) = jax.lax.scan(redraw, start, turns)
        return state, errors[-1], jnp.mean(usable_draws), reliable.all()


def _gradient(
    embedding: _Embedding,
    weights: Float[Array, " k"],
    drawn_at: Float[Array, " k"] | None,
) -> Float[Array, " k"]:
    """−Cov_{π_w}[f, L − Σ w f], from draws of π_w; or of π_v at v = `drawn_at`, reweighted."""
    residual = embedding.residual(weights)
    if drawn_at is not None:
        usable, num = embedding.usable, embedding.num_usable
        change = jnp.matmul(weights - drawn_at, embedding.kept, precision=HIGHEST)
        logs = jnp.sqrt(num) * change
        counts = num * jax.nn.softmax(logs, where=usable)
        # Σ_s c_s r_s = 0 once r is centred, so that the atoms need not be.
        residual = counts * (residual - jnp.vdot(counts, residual) / num)
    return -jnp.matmul(embedding.kept, residual, precision=HIGHEST)


def _correlations(atoms: Float[Array, "m s"], residual: Float[Array, " s"]) -> Float[Array, " m"]:
    """Up to a factor, the correlation of each atom with the residual; −∞ for an atom of zero."""
    norms = jnp.linalg.norm(atoms, axis=1)
    inner = jnp.matmul(atoms, residual, precision=HIGHEST)
    return jnp.where(norms > 0, inner / jnp.where(norms > 0, norms, 1), -jnp.inf)


def _take(data: PyTree, indices: Int[Array, " m"]) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[indices], data)
