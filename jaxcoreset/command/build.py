"""The command ``jaxcoreset build``: a file of rows in, a file of weighted rows out.

Whoever runs it may not know JAX, or Python. What is wrong with the file or the options is told in a
sentence, with exit status 2.
"""

import argparse
import csv
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxcoreset.command.inputs import Inputs, model_inputs, regression_inputs
from jaxcoreset.command.regressions import PRIOR_SCALE, REGRESSIONS
from jaxcoreset.command.tables import SUFFIXES, Table, TableError, read_table
from jaxcoreset.data.messages import require

_OUTPUTS = (".csv", ".parquet", ".npz")
_TOL = 0.01

DESCRIPTION = f"""\
Choose a few rows of a table and give each a weight, so that the posterior of a Bayesian model on
the weighted rows is that on all rows.

FILE is a table: CSV (or TSV) with a header, Parquet, or NPZ, whose arrays are columns (an array X
of several columns gives X[0], X[1], ...). The model is one of these:

  --likelihood NAME   a regression of --response on the other columns, or on --columns:
                      {", ".join(REGRESSIONS)}.
                      Columns of numbers are standardised (minus the mean, over the standard
                      deviation of all rows), and with normal and student_t the response too;
                      true/false columns become 1/0. Columns of text are refused, unless
                      --categorical names them: then there is a 0/1 column for every value but the
                      first. There is always an intercept. Priors: coefficients Normal(0, s),
                      intercept Normal(0, 4 s), with s from --prior-scale.
  --model WHERE       a NumPyro model of your own, module:function or file.py:function. Its
                      arguments are filled by name: an argument takes the column of its name, or
                      the matrix of columns NAME[0], NAME[1], ...; an argument y takes --response;
                      an argument x or X takes the matrix of --columns, or of all columns
                      that are left. Others need a default. Nothing is standardised;
                      columns named by --categorical become whole numbers from 0.
"""
EPILOG = """\
The output has one line a row kept: "row", its number in FILE counted from 0, "weight", and, in CSV
and Parquet, the columns of FILE as they were. NPZ keeps the coreset for jaxcoreset.load.

examples:
  jaxcoreset build flights.csv --likelihood logistic --response late --out coreset.csv
  jaxcoreset build visits.parquet --likelihood poisson --response visits --columns age,income \\
      --tol 0.001 --out coreset.parquet --report report.html
  jaxcoreset build schools.csv --model models.py:schools --categorical school --size 200 \\
      --out coreset.npz
"""


def add_build_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = commands.add_parser(
        "build",
        help="choose weighted rows of a CSV, Parquet or NPZ file",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help=f"one of {', '.join(SUFFIXES)}")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--likelihood", choices=list(REGRESSIONS), help="a regression by name")
    which.add_argument("--model", metavar="WHERE", help="module:function or file.py:function")
    parser.add_argument("--response", metavar="COLUMN", help="the column to be explained")
    parser.add_argument(
        "--columns",
        metavar="A,B,C",
        type=_names,
        help="the columns that explain it (all others); quote a name that has a comma",
    )
    parser.add_argument(
        "--categorical", metavar="A,B", type=_names, default=[], help="columns of categories"
    )
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument("--size", type=positive_integer, help="at most so many rows")
    how_many.add_argument(
        "--tol",
        type=_positive_number,
        help=f"as few rows as bring the estimated KL divergence below so many nats ({_TOL})",
    )
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        type=positive_integer,
        default=2000,
        help="with --tol, the most rows that are tried (2000)",
    )
    parser.add_argument(
        "--out", metavar="PATH", type=Path, required=True, help=f"one of {', '.join(_OUTPUTS)}"
    )
    parser.add_argument("--report", metavar="PATH", type=Path, help="an HTML report, with figures")
    parser.add_argument("--seed", type=_seed, default=0, help="of all random numbers (0)")
    parser.add_argument(
        "--prior-scale",
        metavar="S",
        type=_positive_number,
        help=f"with --likelihood, the prior's standard deviation of a coefficient ({PRIOR_SCALE})",
    )
    parser.add_argument(
        "--no-standardise",
        action="store_true",
        help="with --likelihood, take the columns as they are",
    )
    parser.add_argument(
        "--weight-column", metavar="NAME", default="weight", help="in the output (weight)"
    )
    parser.add_argument(
        "--row-column", metavar="NAME", default="row", help="of row numbers in the output (row)"
    )
    parser.add_argument("--no-progress", action="store_true", help="show no progress")
    parser.add_argument(
        "--debug", action="store_true", help="show where in the code an error comes from"
    )


def run_build(options: argparse.Namespace, arguments: Sequence[str] = ()) -> int:
    """Run the command.

    Args:
        options: what the parser made of the arguments.
        arguments: those, as they were, for the report.

    Returns:
        The exit status: 0, or 2 after an error that was told on standard error.
    """
    try:
        _check_options(options)
        _build(options, arguments)
    except (TableError, ModuleNotFoundError, ValueError) as error:
        return _failed(str(error), options)
    except OSError as error:
        return _failed(f"cannot read or write {error.filename}: {error.strerror}", options)
    except MemoryError:
        return _failed("there is not enough memory for this table.", options)
    except Exception as error:
        if options.model is None:
            raise
        return _failed(_model_trouble(options.model, error), options)
    return 0


def _failed(message: str, options: argparse.Namespace) -> int:
    if options.debug:
        traceback.print_exc()
    print(f"jaxcoreset: {message}", file=sys.stderr)
    return 2


def _model_trouble(spec: str, error: Exception) -> str:
    """What a user's model raised, and where in the user's file."""
    frames = traceback.extract_tb(error.__traceback__)
    stem = Path(spec.rpartition(":")[0]).stem.rpartition(".")[2]
    places = [frame for frame in frames if Path(frame.filename).stem == stem]
    place = f" in {Path(places[-1].filename).name}, line {places[-1].lineno}" if places else ""
    message = str(error).strip().partition("\n")[0]
    return (
        f"the model {spec} failed with {type(error).__name__}{place}: {message} (--debug shows "
        "more.)"
    )


def _check_options(options: argparse.Namespace) -> None:
    """See that the options fit together, before any work is done."""
    if options.likelihood is not None and options.response is None:
        raise TableError(
            f"--likelihood {options.likelihood} explains a column by the others, and --response is "
            "missing; wanted --response COLUMN."
        )
    if options.model is not None:
        for option in ("prior_scale", "no_standardise"):
            if getattr(options, option):
                raise TableError(
                    f"--{option.replace('_', '-')} goes with --likelihood; with --model the model "
                    "itself says what its priors and scales are."
                )
    if options.out.suffix.lower() not in _OUTPUTS:
        raise TableError(f"--out is {options.out}; wanted a name in {', '.join(_OUTPUTS)}.")
    written = [path for path in (options.out, options.report) if path is not None]
    for path in written:
        if not path.parent.is_dir():
            raise TableError(f"{path} cannot be written: there is no directory {path.parent}.")
        if path.is_dir():
            raise TableError(f"{path} cannot be written: it is a directory.")
        if path.resolve() == options.file.resolve():
            raise TableError(f"{path} is the file that is read; wanted another name to write to.")
    if options.report is not None:
        require("matplotlib")
        require("jinja2")
        if options.report.resolve() == options.out.resolve():
            raise TableError(f"--out and --report are both {options.out}; wanted two names.")
    if options.out.suffix.lower() == ".parquet":
        require("pyarrow")
    if options.out.suffix.lower() != ".npz" and options.weight_column == options.row_column:
        raise TableError(
            f"--weight-column and --row-column are both {options.row_column!r}; wanted two names."
        )


def _build(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    say = _silent if options.no_progress else _say
    say(f"Reading {options.file} ...")
    table = read_table(options.file)
    say(f"{len(table):,} rows, {len(table.columns):,} columns.")
    for name in (options.weight_column, options.row_column):
        if options.out.suffix.lower() != ".npz" and name in table.columns:
            raise TableError(
                f"{table.path} has a column {name!r} already, as the output is to have; wanted "
                "another name: --weight-column or --row-column."
            )
    inputs = _inputs(options, table)
    for note in inputs.notes:
        say(note)
    say(f"Building a coreset for {inputs.title} ...")

    import jax

    from jaxcoreset.builders.builder import CoresetBuilder
    from jaxcoreset.builders.settings import Tolerance

    tol = None if options.size is not None else (options.tol or _TOL)
    builder = CoresetBuilder(
        inputs.model,
        size=options.size,
        tol=None if tol is None else Tolerance(tol, max_size=options.max_size),
        data_axes=inputs.data_axes,
        progress_bar=not options.no_progress,
    )
    coreset = builder.run(jax.random.key(options.seed), **inputs.arguments)
    names = {"weight": options.weight_column, "row": options.row_column}
    if options.out.suffix.lower() == ".npz":
        written = coreset.save(options.out)
    elif options.out.suffix.lower() == ".csv":
        written = coreset.to_csv(options.out, table.frame, **names)
    else:
        written = coreset.to_parquet(options.out, table.frame, **names)
    print(coreset.report)
    print(f"Wrote {written}: {len(coreset):,} rows with their weights.")
    if options.report is not None:
        _report(options, arguments, table, inputs, coreset, tol)
        print(f"Wrote {options.report}.")


def _inputs(options: argparse.Namespace, table: Table) -> Inputs:
    if options.model is not None:
        return model_inputs(
            table, options.model, options.response, options.columns, options.categorical
        )
    return regression_inputs(
        table,
        options.likelihood,
        options.response,
        options.columns,
        options.categorical,
        scale_columns=not options.no_standardise,
        prior_scale=options.prior_scale or PRIOR_SCALE,
    )


def _report(
    options: argparse.Namespace,
    arguments: Sequence[str],
    table: Table,
    inputs: Inputs,
    coreset: Any,
    tol: float | None,
) -> None:
    from importlib.metadata import version

    from jaxcoreset.command.export import loading_program, programs
    from jaxcoreset.command.html import compare_laplace, write_html_report

    facts = {
        "file": f"{options.file.name}, {len(table):,} rows",
        "model": inputs.title + (f" of {inputs.response}" if inputs.likelihood else ""),
        "columns": ", ".join(inputs.columns),
        "coreset": options.out.name,
        "command": "jaxcoreset " + shlex.join(arguments),
        "made by": f"jaxcoreset {version('jaxcoreset')}",
    }
    notes = list(inputs.notes)
    if inputs.likelihood:
        scale = inputs.arguments["prior_scale"]
        notes.append(
            f"Priors: coefficients Normal(0, {scale:g}), intercept Normal(0, {4 * scale:g})"
            + (", on the standardised columns." if inputs.scaling else ".")
        )
    for name, levels in inputs.levels.items():
        notes.append(
            f"Categories of {name}, the first one being the baseline: {', '.join(levels)}."
        )
    if inputs.classes:
        notes.append(f"Classes, compared with the first: {', '.join(inputs.classes)}.")
    elsewhere = {}
    if inputs.likelihood and options.out.suffix.lower() != ".npz":
        elsewhere = programs(inputs, options.out, options.weight_column)
    elif options.out.suffix.lower() == ".npz":
        elsewhere = loading_program(options.out)
    write_html_report(
        options.report,
        coreset,
        title=f"Coreset of {options.file.name}",
        facts=facts,
        notes=notes,
        tol=tol,
        comparison=compare_laplace(coreset, inputs.parameter_name, inputs.data_axes),
        scaling=inputs.scaling,
        programs=elsewhere,
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _silent(text: str) -> None:
    pass


def _names(text: str) -> list[str]:
    """Names between commas, as CSV has them."""
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not names or not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name; wanted a,b,c")
    return names


def positive_integer(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return number


def _seed(text: str) -> int:
    """A whole number that JAX takes for a seed."""
    try:
        number = int(text)
    except ValueError:
        number = 2**63
    if not -(2**63) <= number < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number below 2**63 = {2**63:,}")
    return number


def _positive_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return number
