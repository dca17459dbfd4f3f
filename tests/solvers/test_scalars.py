"""Scalars in arrays, and what a function makes of them in a loop that runs once."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from jaxcoreset.solvers.exchange import scalars
from jaxcoreset.solvers.exchange.scalars import Scalars, in_one_kernel


class Account(eqx.Module):
    open: Array
    balance: Array
    bookings: Array
    lowest: Array


def account(balance=3.0, bookings=2, is_open=True):
    return Account(
        jnp.asarray(is_open), jnp.asarray(balance), jnp.asarray(bookings), jnp.asarray(balance)
    )


def booked(before, amount, *, fee):
    balance = before.balance + amount - fee
    return Account(
        open=before.open & (balance > 0),
        balance=balance,
        bookings=before.bookings + before.open,
        lowest=jnp.minimum(before.lowest, balance),
    )


def values(record):
    return [np.asarray(x).tolist() for x in jax.tree.leaves(record)]


def test_a_record_comes_back_as_it_was():
    record = account()
    packed = Scalars.of(record)
    assert packed.floats.shape == (2,)
    assert packed.ints.shape == (2,)
    again = packed.get()
    assert type(again) is Account
    assert values(again) == values(record)
    assert [x.dtype for x in jax.tree.leaves(again)] == [x.dtype for x in jax.tree.leaves(record)]


@pytest.mark.parametrize("name", ["open", "balance", "bookings", "lowest"])
def test_a_field_is_read_by_its_name(name):
    value = Scalars.of(account())[name]
    assert value.shape == ()
    assert value == getattr(account(), name)


def test_an_unknown_field_is_an_error():
    with pytest.raises(ValueError, match="not in tuple"):
        Scalars.of(account())["debt"]


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("amount", [1.0, -5.0])
def test_one_kernel_gives_what_the_function_gives(monkeypatch, platform, amount):
    monkeypatch.setattr(scalars.jax, "default_backend", lambda: platform)

    @jax.jit
    def run(amount):
        return in_one_kernel(booked, Scalars.of(account()), amount, fee=0.5).get()

    assert values(run(amount)) == values(booked(account(), amount, fee=0.5))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_lanes_give_what_each_gives(monkeypatch, platform):
    monkeypatch.setattr(scalars.jax, "default_backend", lambda: platform)
    balances, amounts = jnp.array([1.0, 4.0, 0.5]), jnp.array([-2.0, 3.0, -0.25])

    def run(balance, amount):
        before = Scalars.of(account(balance))
        return in_one_kernel(booked, before, amount, fee=0.125).get()

    together = jax.jit(jax.vmap(run))(balances, amounts)
    for place, (balance, amount) in enumerate(zip(balances, amounts, strict=True)):
        own = jax.tree.map(lambda x, place=place: x[place], together)
        assert values(own) == values(booked(account(balance), amount, fee=0.125))


def test_a_loop_goes_on_from_what_the_last_turn_left():
    def turn(_, state):
        return in_one_kernel(booked, state, jnp.asarray(-1.0), fee=0.0)

    last = jax.jit(lambda: jax.lax.fori_loop(0, 5, turn, Scalars.of(account())))().get()
    assert values(last) == [False, -2.0, 5, -2.0]
