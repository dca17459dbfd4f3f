"""Labels of groups as people have them: text in lists, columns and tables, or pytrees."""

import numpy as np
import pandas as pd
import pytest

import jaxcoreset as jc
from jaxcoreset.likelihood import ModelError
from jaxcoreset.likelihood.arguments import plain_call
from jaxcoreset.likelihood.group_likelihood import group_likelihood
from tests.likelihood.group_models import means, normals

NUM_GROUPS = 12
GROUP, Y = means(NUM_GROUPS)
NAMES = np.array([f"N{number:02d}" for number in range(NUM_GROUPS)])
TEXT = NAMES[GROUP]


def of_table(data, num_groups, scale):
    """`normals`, whose arguments are the columns of a table and a scale that is no data."""
    normals(data["group"], num_groups, data["y"] / scale)


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
def test_labels_may_be_an_entry_of_an_argument(kind):
    args = TABLES[kind], NUM_GROUPS, 0.5
    (data, *_), _ = plain_call(of_table, args, {}, "data['group']")
    np.testing.assert_array_equal(data["group"], TEXT)
    np.testing.assert_array_equal(data["y"], Y)
    with pytest.raises(ValueError, match="groups is 'group'") as error:
        group_likelihood(of_table, args, groups="group")
    assert "data['group']" in str(error.value)


def test_a_coreset_of_a_table_recognises_it(tmp_path):
    """A coreset of all groups, for which a build needs no draws."""
    args = TABLES["data frame"], NUM_GROUPS, 0.5
    builder = jc.CoresetBuilder(
        of_table, size=NUM_GROUPS, groups="data['group']", progress_bar=False
    )
    coreset = builder.run(0, *args)
    data, num_groups, _ = coreset.args
    np.testing.assert_array_equal(coreset.group_names, NAMES)
    assert num_groups == NUM_GROUPS == len(coreset)
    for number in range(NUM_GROUPS):
        np.testing.assert_array_equal(data["y"][data["group"] == number], Y[number == GROUP])
    loaded = jc.load(coreset.save(tmp_path / "whole"), of_table)
    layout = loaded.grouping.lay_out_all(of_table, args, {}, loaded.arguments)
    np.testing.assert_array_equal(layout.names.labels, NAMES)
    with pytest.raises(ModelError, match=r"argument scale holds no data, and is 0.7"):
        loaded.grouping.lay_out_all(of_table, (*args[:2], 0.7), {}, loaded.arguments)


@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_labels_are_told(missing):
    labels = TEXT.astype(object)
    labels[4] = missing
    with pytest.raises(ValueError, match=r"argument group has missing .* row 4"):
        group_likelihood(normals, (labels, NUM_GROUPS, Y), groups="group")


def test_other_columns_of_text_are_refused():
    table = pd.DataFrame({"group": TEXT, "y": Y, "carrier": "AA"})
    with pytest.raises(ModelError, match=r"data\['carrier'\] has as many rows"):
        group_likelihood(of_table, (table, NUM_GROUPS, 0.5), groups="data['group']")
