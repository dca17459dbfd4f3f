"""Labels of groups as people have them: text in lists, columns and tables, or pytrees."""

import numpy as np
import pandas as pd
import pytest

import jaxcoreset as jc
from jaxcoreset.likelihood import ModelError
from jaxcoreset.likelihood.arguments import plain_call
from tests.likelihood.group_models import means, normals

NUM_GROUPS = 12
GROUP, Y = means(NUM_GROUPS)
NAMES = np.array([f"N{number:02d}" for number in range(NUM_GROUPS)])
TEXT = NAMES[GROUP]


def of_table(data, num_groups):
    """`normals`, whose arguments are the columns of a table."""
    normals(data["group"], num_groups, data["y"])


def _whole(model, groups, *args):
    """All groups, for which a build needs no draws."""
    builder = jc.CoresetBuilder(model, size=NUM_GROUPS, groups=groups, progress_bar=False)
    return builder.run(0, *args)


def _check(coreset, group, y, num_groups):
    np.testing.assert_array_equal(coreset.group_names, NAMES)
    assert num_groups == NUM_GROUPS == len(coreset)
    for number in range(NUM_GROUPS):
        np.testing.assert_array_equal(y[group == number], Y[number == GROUP])


COLUMNS = {
    "array": TEXT,
    "objects": TEXT.astype(object),
    "list": TEXT.tolist(),
    "tuple": tuple(TEXT.tolist()),
    "column": pd.Series(TEXT),
    "categories": pd.Series(TEXT).astype("category"),
    "table": pd.DataFrame({"plane": TEXT}),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_labels_may_be_text_in_any_column(kind):
    (found, _, y), _ = plain_call(normals, (COLUMNS[kind], NUM_GROUPS, Y), {}, "group")
    assert found.dtype.kind == "U"
    np.testing.assert_array_equal(found, TEXT)
    np.testing.assert_array_equal(y, Y)


TABLES = {
    "dictionary": {"group": TEXT, "y": Y},
    "dictionary of lists": {"group": TEXT.tolist(), "y": Y},
    "data frame": pd.DataFrame({"group": TEXT, "y": Y}),
}


@pytest.mark.parametrize("kind", TABLES)
def test_labels_may_be_an_entry_of_an_argument(kind, tmp_path):
    coreset = _whole(of_table, "data['group']", TABLES[kind], NUM_GROUPS)
    data, num_groups = coreset.args
    _check(coreset, data["group"], data["y"], num_groups)
    loaded = jc.load(coreset.save(tmp_path / "whole"), of_table)
    # The same table is recognised.
    layout = loaded.grouping.lay_out_all(of_table, (TABLES[kind], NUM_GROUPS), {}, loaded.arguments)
    np.testing.assert_array_equal(layout.names.labels, NAMES)


@pytest.mark.parametrize("kind", TABLES)
def test_the_name_of_an_entry_alone_suggests_its_argument(kind):
    with pytest.raises(ValueError, match="groups is 'group'") as error:
        _whole(of_table, "group", TABLES[kind], NUM_GROUPS)
    assert "data['group']" in str(error.value)


@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_labels_are_told(missing):
    labels = TEXT.astype(object)
    labels[4] = missing
    with pytest.raises(ValueError, match=r"argument group has missing .* row 4"):
        _whole(normals, "group", labels, NUM_GROUPS, Y)


def test_other_columns_of_text_are_refused():
    table = pd.DataFrame({"group": TEXT, "y": Y, "carrier": "AA"})
    with pytest.raises(ModelError, match=r"data\['carrier'\] has as many rows"):
        _whole(of_table, "data['group']", table, NUM_GROUPS)


def test_an_argument_that_is_no_data_stays_the_same():
    coreset = _whole(_scaled, "group", TEXT, NUM_GROUPS, 0.5, Y)
    args = (TEXT, NUM_GROUPS, 0.5, Y)
    coreset.grouping.lay_out_all(_scaled, args, {}, coreset.arguments)
    with pytest.raises(ModelError, match=r"argument scale holds no data, and is 0.7"):
        coreset.grouping.lay_out_all(_scaled, (TEXT, NUM_GROUPS, 0.7, Y), {}, coreset.arguments)


def _scaled(group, num_groups, scale, y=None):
    normals(group, num_groups, y / scale)
