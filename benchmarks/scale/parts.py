"""The parts of `benchmarks.scale` that measure numbers rather than processes: sums and pricing."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import jaxcoreset as jc
from benchmarks import common
from benchmarks.scale.data import BATCH, logistic
from jaxcoreset import sources
from jaxcoreset.command.flights import late_arrival, load_flights
from jaxcoreset.data.blocks import column_sums
from jaxcoreset.data.rows import Rows
from jaxcoreset.likelihood.passes import Features, feature_sum


class _Itself(Features):
    """A number of a row, as it is."""

    quantity: ClassVar[str] = "the term"

    @property
    def width(self) -> int:
        return 1

    def block(self, log_likelihood: Callable, chunk: Any) -> tuple[jax.Array, jax.Array]:
        values = log_likelihood(None, chunk)
        return values[:, None], ~jnp.isfinite(values)

    def sum(self, log_likelihood: Callable, chunk: Any, counted: jax.Array) -> jax.Array:
        # As log-likelihoods are added, but not centred.
        values = log_likelihood(None, chunk)[None] * counted
        return jnp.sum(column_sums(values), axis=-1)


@dataclass(frozen=True)
class _Terms:
    """Numbers to add up, in batches, the same ones in every pass."""

    kind: str
    count: int

    def __iter__(self) -> Iterator[np.ndarray]:
        random = np.random.Generator(np.random.Philox(5))
        for at in range(0, self.count, BATCH):
            size = min(BATCH, self.count - at)
            if self.kind == "constant":
                yield np.full(size, -0.1, np.float32)
            elif self.kind == "uniform":
                yield -random.random(size, np.float32)
            else:  # as heavy as a log-likelihood's tail may be, and of either sign
                yield -np.exp(2 * random.standard_normal(size, np.float32)) + np.float32(0.5)


def sums(quick: bool) -> list[dict[str, Any]]:
    """The error of a fold over many float32 terms, and of adding them one after the other."""
    count = 10**6 if quick else 10**8
    rows = []
    for kind in ("constant", "uniform", "log-normal"):
        terms = _Terms(kind, count)
        running, exact = np.float32(0), []
        for batch in terms:
            exact.append(math.fsum(batch))
            running = np.cumsum(np.concatenate([[running], batch]), dtype=np.float32)[-1]
        total = math.fsum(exact)
        data = Rows(sources.batches(terms, count).arrays)
        start = time.perf_counter()
        folded = data.map_reduce(
            _sum_block,
            _Itself(),
            1,
            {"total": np.zeros(1)},
            lambda state, values, first, num: {
                "total": state["total"] + values.sum(axis=0, dtype=np.float64)
            },
            what="terms",
        )[0]["total"][0]
        spent = time.perf_counter() - start
        handed_on = float(feature_sum(_row, _Itself(), data, None, lambda rows: None)[0])
        rows.append(
            {
                "terms": kind,
                "count": count,
                "relative error": abs(float(folded) / total - 1),
                "relative error, as float32": abs(handed_on / total - 1),
                "one after the other": abs(float(running) / total - 1),
                "seconds": spent,
            }
        )
        print("  ", rows[-1], flush=True)
    return rows


def _row(draw: None, values: jax.Array) -> jax.Array:
    return values


def _sum_block(features: _Itself, rows: tuple, counted: jax.Array) -> jax.Array:
    return features.sum(_row, rows[0], counted)


def pricing(quick: bool) -> list[dict[str, Any]]:
    """What passes for further candidates bring, from few candidates and from many."""
    features, late, _ = load_flights()
    if quick:
        chosen = np.random.default_rng(0).choice(len(late), 12_000, replace=False)
        features, late = features[chosen], late[chosen]
    size = 20 if quick else 250
    tables: dict[str, tuple] = {"flights": (late_arrival, features, late)}
    if not quick and (found := common.load("phishing", None)) is not None:
        tables["phishing"] = found
    counts = (100,) if quick else (250, 1000, 2000, 10_000)
    rows = []
    for name, (model, x, y) in tables.items():
        for num_candidates in counts:
            for passes in (0, 1) if quick else (0, 1, 2, 3):
                start = time.perf_counter()
                report = (
                    jc.CoresetBuilder(
                        model,
                        size=size,
                        candidates=jc.Candidates(num_candidates, passes),
                        rounds=1,
                        progress_bar=False,
                        proxy=None,
                    )
                    .run(jax.random.key(0), x, y)
                    .report
                )
                rows.append(
                    {
                        "data": name,
                        "rows": len(y),
                        "k": size,
                        "candidates": num_candidates,
                        "passes allowed": passes,
                        "passes made": len(report.candidate_searches),
                        "candidates at the end": report.num_candidates,
                        "relative error": report.relative_error,
                        "held-out error": report.held_out_error,
                        "estimated KL": report.kl,
                        "seconds": time.perf_counter() - start,
                        "pricing": report.candidate_searches,
                    }
                )
                print("  ", {k: v for k, v in rows[-1].items() if k != "pricing"}, flush=True)
    return rows


def merging(quick: bool) -> list[dict[str, Any]]:
    """Coresets of blocks, merged in trees of several depths, beside a build from all the rows."""
    blocks, per_block, size = (4, 1000, 30) if quick else (16, 4000, 100)
    width = 4 if quick else 10
    random = np.random.default_rng(0)
    x = random.normal(size=(blocks * per_block, width)).astype(np.float32)
    y = (random.random(len(x)) < 1 / (1 + np.exp(-x.sum(1) / 2))).astype(np.float32)
    full = jc.laplace_approximation(jc.model_likelihood(logistic, (x, y)))
    builder = jc.CoresetBuilder(logistic, size=size, progress_bar=False, proxy=None)
    parts = [
        builder.run(jax.random.key(i), x[at : at + per_block], y[at : at + per_block])
        for i, at in enumerate(range(0, len(x), per_block))
    ]
    rows = [_against(full, builder.run(jax.random.key(0), x, y), "one build from all rows", 0)]
    for arity, name in ((blocks, "all at once"), (4, "in fours"), (2, "in pairs")):
        level, depth = parts, 0
        while len(level) > 1:
            depth += 1
            level = [
                jc.merge(level[at : at + arity], size, jax.random.key(depth))
                for at in range(0, len(level), arity)
            ]
        rows.append(_against(full, level[0], name, depth))
    return rows


def _against(full: Any, coreset: jc.Coreset, name: str, depth: int) -> dict[str, Any]:
    likelihood = jc.model_likelihood(logistic, coreset.args)
    small = jc.laplace_approximation(likelihood, weights=coreset.weights)
    found = {
        "tree": name,
        "depth": depth,
        "rows": len(coreset),
        "KL": jc.diagnostics.laplace_divergence(full, small).symmetrised,
        "KL reported": coreset.report.kl,
    }
    print("  ", found, flush=True)
    return found
