"""The labels of all groups that a coreset stands for, which tell an earlier group from a new one.

Labels that the build numbers, such as text, identify groups. The labels 0, 1, … do not if their
user has numbered the groups: the first new group is then number 0 as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from jaxcoreset.data.chosen_groups import padded
from jaxcoreset.data.messages import listed
from jaxcoreset.data.processes import ProcessGroup
from jaxcoreset.likelihood.arguments import ModelError

_NUMBERS = "biuf"


@dataclass(frozen=True, eq=False)
class GroupNames:
    """The labels of G groups.

    Attributes:
        labels: shape (G,), in the order of the groups' numbers; None if they are these numbers
            themselves, or not known.
        are_known: False for a coreset from a file of an earlier version, which has no labels.
    """

    labels: Shaped[np.ndarray, " g"] | None = None
    are_known: bool = True

    def of(self, num_groups: int) -> Shaped[np.ndarray, " g"] | None:
        """The labels of this number of groups; None if they are not known."""
        if not self.are_known:
            return None
        return np.arange(num_groups) if self.labels is None else self.labels

    def joined(self, num: int, new: "GroupNames", num_new: int, argument: str) -> "GroupNames":
        """The labels of these groups and of new ones, which come after them.

        Args:
            num: the number of these groups.
            new: the labels of the new groups.
            num_new: their number.
            argument: the argument that the labels are in, for messages.

        Raises:
            ModelError: if labels identify groups, and a new group has the label of an earlier one,
                or a label of another kind.
        """
        if not self.are_known or (self.labels is None and new.labels is None):
            return self
        before, own = self.of(num), new.of(num_new)
        assert before is not None
        assert own is not None
        if not _are_alike(before, own):
            raise ModelError(
                f"the labels in argument {argument}, such as {own.tolist()[0]!r}, are of another "
                f"kind than those of the earlier groups, such as {before.tolist()[0]!r}, so they "
                "do not show which groups are new; pass labels of the same kind."
            )
        known = own[np.isin(own, before)].tolist()
        if known:
            raise ModelError(
                f"{len(known)} of the {own.size} labels in argument {argument} are those of groups "
                f"that the coreset has been built from: {listed(known)}. Expected new groups only, "
                "each with all its rows. New rows of an earlier group change its integral over "
                "effects, which needs its earlier rows: build a new coreset from all rows. If "
                "these are other groups, give them other labels."
            )
        labels = np.concatenate([before, own])
        are_numbers = labels.dtype.kind in "iu" and np.array_equal(labels, np.arange(labels.size))
        return GroupNames(None if are_numbers else labels)

    def numbers_of(self, other: "GroupNames") -> Int[np.ndarray, " g"] | None:
        """For each group of the same data, laid out anew, its number here.

        Returns:
            None if labels do not identify groups, so that their numbers are the same.

        Raises:
            ModelError: if there are other groups.
        """
        if not self.are_known or self.labels is None or other.labels is None:
            return None
        own, what = other.labels, "of another kind"
        if _are_alike(self.labels, own):
            unknown = np.setdiff1d(own, self.labels, assume_unique=True)
            missing = np.setdiff1d(self.labels, own, assume_unique=True)
            if not unknown.size and not missing.size:
                order = np.argsort(self.labels)
                return order[np.searchsorted(self.labels, own, sorter=order)]
            own, what = (unknown, "unknown") if unknown.size else (missing, "missing")
        raise ModelError(
            f"the data have other groups than those that the coreset was built from; the labels "
            f"{listed(own.tolist())} are {what}. Pass the same data."
        )

    def to_dict(self) -> dict[str, Any]:
        """The labels as an array, and whether they are known."""
        return {"labels": self.labels, "are_known": self.are_known}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], num_groups: int) -> "GroupNames":
        """The inverse of `to_dict`; a ValueError if it is damaged."""
        labels = plain["labels"]
        if labels is not None and np.shape(labels) != (num_groups,):
            raise ValueError(
                f"the labels of groups are of shape {np.shape(labels)}; expected ({num_groups},)"
            )
        return cls(labels, bool(plain["are_known"]))


def as_labels(values: np.ndarray) -> np.ndarray:
    """Labels of a type that can be stored: objects other than numbers become text."""
    return np.array([str(x) for x in values.tolist()]) if values.dtype.kind in "OT" else values


def labels_of_all(
    own: np.ndarray | None, num_groups: int, processes: ProcessGroup
) -> np.ndarray | None:
    """The labels of the groups of all processes, in the order of the processes.

    Args:
        own: shape (G,), those of this process; None if they are the groups' numbers.
        num_groups: the number G of groups of this process.
        processes: the processes.
    """
    if processes.count == 1:
        return own
    is_number, is_float = False, False
    width = len(str(num_groups))
    if own is not None:
        is_number, is_float = own.dtype.kind in _NUMBERS, own.dtype.kind == "f"
        width = max(width, own.astype(str).dtype.itemsize // 4)
    shown = {"own": own is not None, "text": own is not None and not is_number}
    shown |= {"float": is_float, "width": width}
    found = processes.gather({name: np.asarray(value) for name, value in shown.items()})
    most = {name: max(int(one[name]) for one in found) for name in shown}
    if not most["own"]:
        return None
    own = np.arange(num_groups) if own is None else own
    if not most["text"]:
        return np.concatenate(gathered(own.astype(float if most["float"] else int), processes))
    # Text travels as numbers.
    values = own.astype(f"U{most['width']}").view(np.uint32).reshape(num_groups, -1)
    return np.concatenate(gathered(values, processes)).view(f"U{most['width']}")[:, 0]


def gathered(own: np.ndarray, processes: ProcessGroup) -> list[np.ndarray]:
    """The arrays of all processes, which differ in their number of rows only."""
    sizes = [int(one["num"]) for one in processes.gather({"num": np.asarray(len(own))})]
    found = processes.gather({"values": padded(own, max(sizes))})
    return [one["values"][:size] for one, size in zip(found, sizes, strict=True)]


def _are_alike(one: np.ndarray, two: np.ndarray) -> bool:
    kinds = {"n" if labels.dtype.kind in _NUMBERS else labels.dtype.kind for labels in (one, two)}
    return len(kinds) == 1
