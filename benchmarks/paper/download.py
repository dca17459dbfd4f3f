"""The papers' data sets from where they are public, checked before they are kept.

The files of Campbell and Broderick (2018) and Zhang et al. (2021) are in the latter's repository
(github.com/jackyzyb/bayesian-coresets-optimization, one fixed commit), in two parts each, to train
and to test, with a last column of ones. Here the parts are put together and that column dropped:
models add their own. The phishing data of 68 columns are from LIBSVM's page, since the file of that
name in the repository has ten principal components. California's house prices come through
scikit-learn, and the UK's from the repository.

A file is fetched into memory, its checksum compared where it is known, its shape and counts with
those in the papers, and only then written, whole.
"""

import hashlib
import io
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_COMMIT = "5e3d5e636aac747aa0f3df7da72941bcfec23065"
REPOSITORY = (
    "https://raw.githubusercontent.com/jackyzyb/bayesian-coresets-optimization/"
    f"{_COMMIT}/examples/data"
)
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_SECONDS = 60
_LARGEST = 200_000_000

Arrays = dict[str, np.ndarray]


class DownloadError(RuntimeError):
    """A data set could not be fetched, or is not what it should be."""


@dataclass(frozen=True)
class Source:
    """A data set: where it is, how it is read, and what it must look like.

    Attributes:
        name: of the file that is written, without its ending.
        url: where it is; None where `read` fetches it itself.
        read: from the bytes to "X" and "y".
        shape: of X; a None in it stands for any length.
        sha256: of the bytes, where they do not change.
        classes: how many rows have each response, for ±1.
        total: the sum of the responses, for counts.
    """

    name: str
    url: str | None
    read: Callable[[bytes], Arrays]
    shape: tuple[int | None, int]
    sha256: str | None = None
    classes: dict[int, int] | None = None
    total: int | None = None


def _both_parts(content: bytes) -> Arrays:
    """Training and test rows of a file of the repository, without the column of ones."""
    with np.load(io.BytesIO(content), allow_pickle=False) as parts:
        x = np.vstack([parts["X"], parts["Xt"]])
        y = np.concatenate([parts["y"], parts["yt"]])
    return _without_ones(x, y)


def _first_part(content: bytes) -> Arrays:
    """The 500 rows of a small set."""
    with np.load(io.BytesIO(content), allow_pickle=False) as parts:
        return _without_ones(parts["X"], parts["y"])


def _without_ones(x: np.ndarray, y: np.ndarray) -> Arrays:
    if not np.all(x[:, -1] == 1):
        raise DownloadError("the last column is not the intercept's: wanted ones")
    return {"X": x[:, :-1], "y": y.astype(np.int32)}


def _libsvm(content: bytes) -> Arrays:
    """LIBSVM's text, ``label index:value …``, with every row scaled to norm one."""
    rows, labels = [], []
    for line in content.decode().splitlines():
        label, *pairs = line.split()
        labels.append(1 if float(label) > 0 else -1)
        rows.append([pair.split(":") for pair in pairs])
    width = max(int(index) for row in rows for index, _ in row)
    x = np.zeros((len(rows), width))
    for at, row in enumerate(rows):
        for index, value in row:
            x[at, int(index) - 1] = float(value)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return {"X": x / np.where(norms > 0, norms, 1), "y": np.array(labels, np.int32)}


def _prices(content: bytes) -> Arrays:
    """Latitude, longitude and price."""
    table = np.load(io.BytesIO(content), allow_pickle=False)
    return {"X": table[:, :2], "y": table[:, 2]}


def _california(content: bytes) -> Arrays:
    from sklearn.datasets import fetch_california_housing

    x, y = fetch_california_housing(return_X_y=True)
    # Its last two columns are latitude and longitude; prices are in 100,000 dollars.
    return {"X": np.asarray(x)[:, 6:8], "y": 100_000 * np.asarray(y)}


def _small(name: str, width: int, sha256: str, **checks: object) -> Source:
    url = f"{REPOSITORY}/{name}.npz"
    return Source(f"{name}_500", url, _first_part, (500, width), sha256, **checks)  # type: ignore


SOURCES = (
    _small(
        "synth_lr",
        2,
        "49a8ed13262e80e6a9347c75ed7b0192bb220037a23a6bf22b5e057e0ee07a49",
        classes={-1: 270, 1: 230},
    ),
    _small(
        "phishing",
        10,
        "63ed646e6dd7479564c6b9686d7e251e450808703c80086bf79daa4d05fba1c5",
        classes={-1: 229, 1: 271},
    ),
    _small(
        "ds1",
        10,
        "33ffb2df19794dc46f06a850dd3a0181548434d898742c76baf2bea7b27d6b73",
        classes={-1: 482, 1: 18},
    ),
    _small(
        "synth_poiss",
        1,
        "45fbcc0330b4ade2cd491d07e1498bdb50a6464b713b9abf7d00120ff141e9ce",
        total=367,
    ),
    _small(
        "biketrips",
        8,
        "47e02bcfc1e4608430221caa62c7bf0cda8f6df0dae577471dae27e893b6ee25",
        total=91774,
    ),
    _small(
        "airportdelays",
        15,
        "bc3ad40f818088a38d9af3a980e4ecc7358ce06d548f16f3a45eb299fc1a55e4",
        total=26760,
    ),
    Source(
        "ds1",
        f"{REPOSITORY}/ds1_large.npz",
        _both_parts,
        (26733, 10),
        "5a1440aab4e74aa6f4a1f52940321b264760e01c4ef6b76c8d014793d16e728c",
        classes={-1: 25929, 1: 804},
    ),
    Source(
        "synth_poiss",
        f"{REPOSITORY}/synth_poiss_large.npz",
        _both_parts,
        (10000, 1),
        "dfe74f50e1d8b812ef4a0a51e8ad9b320aee0cad505f2ceb58466a65b42d4544",
        total=8125,
    ),
    Source(
        "biketrips",
        f"{REPOSITORY}/biketrips_large.npz",
        _both_parts,
        (17379, 8),
        "4e9a48df9bc457a67255370c7253d0a2a6b11e307ddab99a1102f8e2add2f1dc",
        total=3292679,
    ),
    Source(
        "airportdelays",
        f"{REPOSITORY}/airportdelays_large.npz",
        _both_parts,
        (7580, 15),
        "84e683abf50179c441a60c014a4e644d52e3dacb652f8455b55be9a6de22af29",
        total=424393,
    ),
    Source("phishing", f"{LIBSVM}/phishing", _libsvm, (11055, 68), classes={-1: 4898, 1: 6157}),
    Source("uk_prices", f"{REPOSITORY}/prices2018.npy", _prices, (None, 2)),
    Source("california_housing", None, _california, (20640, 2)),
)


def fetch_all(folder: Path, sources: tuple[Source, ...] = SOURCES) -> list[str]:
    """Fetch the data sets that are not in a folder yet; those that fail are named at the end.

    Args:
        folder: made if it is not there.
        sources: which.

    Returns:
        The names of those that failed.
    """
    failed = []
    for source in sources:
        path = folder / f"{source.name}.npz"
        if path.is_file():
            print(f"{source.name}: there already")
            continue
        try:
            fetch(source, folder)
        except DownloadError as error:
            print(f"{source.name}: {error}")
            failed.append(source.name)
        else:
            print(f"{source.name}: wrote {path}")
    if failed:
        print(f"not fetched: {', '.join(failed)}; what needs them is skipped")
    return failed


def fetch(source: Source, folder: Path) -> Path:
    """Fetch, check and write one data set.

    Raises:
        DownloadError: if it cannot be reached, or is not what it should be; nothing is written.
    """
    try:
        content = b"" if source.url is None else _get(source.url)
        if source.sha256 is not None:
            found = hashlib.sha256(content).hexdigest()
            if found != source.sha256:
                raise DownloadError(
                    f"{source.url} has the SHA-256 {found[:12]}…; wanted {source.sha256[:12]}…. "
                    "The file has changed or was cut short: try again later."
                )
        arrays = source.read(content)
    except DownloadError:
        raise
    except ImportError as error:
        raise DownloadError(f"{error}; pip install 'jaxcoreset[benchmarks]'") from error
    except (OSError, ValueError, KeyError, IndexError, EOFError) as error:
        raise DownloadError(f"cannot read {source.url or 'it'}: {error}") from error
    check(source, arrays)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{source.name}.npz"
    temporary = folder / f"{source.name}.{os.getpid()}.part"
    try:
        with temporary.open("wb") as file:
            np.savez_compressed(file, X=arrays["X"], y=arrays["y"])
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def check(source: Source, arrays: Arrays) -> None:
    """Compare shape, classes and counts with those that are known.

    Raises:
        DownloadError: if they differ, or an entry is not finite.
    """
    x, y = arrays["X"], arrays["y"]
    rows, columns = source.shape
    if x.ndim != 2 or x.shape[1] != columns or (rows is not None and len(x) != rows):
        raise DownloadError(f"X has shape {x.shape}; wanted ({rows or 'any'}, {columns})")
    if y.shape != (len(x),):
        raise DownloadError(f"y has shape {y.shape}; wanted ({len(x)},)")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise DownloadError("some entries are not finite")
    if source.classes is not None:
        values, counts = np.unique(y, return_counts=True)
        found = {int(value): int(count) for value, count in zip(values, counts, strict=True)}
        if found != source.classes:
            raise DownloadError(f"the classes have {found} rows; wanted {source.classes}")
    if source.total is not None and int(y.sum()) != source.total:
        raise DownloadError(f"the counts sum to {int(y.sum())}; wanted {source.total}")


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as response:
            content = response.read(_LARGEST + 1)
    except urllib.error.HTTPError as error:
        raise DownloadError(f"{url} answers {error.code} {error.reason}") from error
    except (urllib.error.URLError, OSError) as error:
        raise DownloadError(f"{url} cannot be reached: {error}") from error
    if len(content) > _LARGEST:
        raise DownloadError(f"{url} has more than {_LARGEST:,} bytes; that is not the data set")
    return content
