"""Assigns groups to splits so that each class has the fractions in every split.

Every group goes to one split. A group is the vector of the parts that it has of each class: 20 of
the 100 records of "cat" are 0.2. The vectors in a split should add up to its fraction in every
class, and every split should have every class. Exactly that is seldom possible, so:

1. Classes in fewer groups than splits count together as one class.
2. Groups, those with the largest parts first, go where the squared deviations of the groups so far
   from their fractions stay smallest.
3. Groups move, and pairs of up to 200 groups are swapped, while that gives a class to a split that
   has none of it, or else reduces the squared deviations.

Of few groups (``_TRIED``), all assignments are compared instead.

**Bound.** A random assignment by the fractions p has on average, summed over all splits and
classes, squared deviations of (1 - sum of p²) times the sum of the squared parts. Step 2 never
exceeds this: the best choice for a group is at most the mean of its choices (the method of
conditional expectations: P. Raghavan, "Probabilistic construction of deterministic algorithms",
1988). Step 3 only reduces it, except for groups that it moves to splits without a class. Where
each group has one class, the result is much closer: a split has more of a class than its fraction
by at most the largest part, and less by no more, unless other splits need their only group of it.
Taking large groups first is from StratifiedGroupKFold in scikit-learn, whose folds are equal.

Everything is computed with integers: the same on all machines.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.splits import Splits
from ...transforms.runs.keys import Keys, text_keys

_TRIED = 1 << 20
"""Up to this many assignments times classes are compared: 10 groups of up to 17 classes in 3
splits."""
_AT_ONCE = 1 << 12
_SWAPPED = 200
"""Up to this many groups, pairs are swapped."""
_SWAPPED_CELLS = 50_000_000
"""… if pairs of groups times classes are no more than these."""
_ROUNDS = 50
_FRACTION_BITS = 20
_CLASS_BITS = 32
_CLASS_MASK = (1 << _CLASS_BITS) - 1
_PENDING = 1 << 20

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class ClassCounts:
    """Records by group and class; sparse, sorted by group, then class."""

    groups: Ints
    """int64[n], indices of groups; each group has at least one entry."""
    classes: Ints
    """int64[n], indices of classes; each class has at least one entry."""
    num_records: Ints
    """int64[n], positive."""

    @property
    def num_groups(self) -> int:
        """The number of groups."""
        return int(self.groups[-1]) + 1

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return int(self.classes.max()) + 1

    def in_splits(self, assigned: Ints, num_splits: int) -> Ints:
        """The number of groups that each split has of each class: int64[splits, classes]."""
        found = np.zeros((num_splits, self.num_classes), np.int64)
        np.add.at(found, (assigned[self.groups], self.classes), 1)
        return found


class PairCounter:
    """Counts the records of each group and class; holds only the pairs that occur."""

    def __init__(self) -> None:
        """Has counted nothing."""
        self._groups: dict[bytes, int] = {}
        self._classes: dict[bytes, int] = {}
        self._pairs = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int64)
        self._pending: list[tuple[Ints, Ints]] = []

    @property
    def num_groups(self) -> int:
        """The number of groups so far."""
        return len(self._groups)

    @property
    def num_pairs(self) -> int:
        """The number of pairs so far, without the latest."""
        return len(self._pairs)

    def add(self, groups: pa.DictionaryArray, classes: pa.DictionaryArray) -> None:
        """Counts n records.

        Args:
            groups: dictionary<int32, large_binary>[n]; records without a group are left out.
            classes: dictionary<int32, large_binary>[n], without nulls.
        """
        rows = np.flatnonzero(groups.indices.is_valid().to_numpy(zero_copy_only=False))
        of_groups, of_classes = (
            _codes(texts.take(pa.array(rows)), known)
            for texts, known in ((groups, self._groups), (classes, self._classes))
        )
        self._pending.append(np.unique(_pair(of_groups, of_classes), return_counts=True))
        if sum(len(pairs) for pairs, _ in self._pending) > _PENDING:
            self._add_up()

    def _add_up(self) -> None:
        parts = [(self._pairs, self._counts), *self._pending]
        pairs, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
        self._pairs, self._counts = _summed(pairs, counts)
        self._pending = []

    def result(self, seed: int) -> tuple[Keys, list[bytes], ClassCounts]:
        """The groups' keys, ascending; the classes, sorted; and the counts in these orders.

        Groups with equal keys, which are extremely unlikely, are one.
        """
        self._add_up()
        keys, groups = np.unique(text_keys(self._groups, seed), return_inverse=True)
        names = sorted(self._classes)
        place = {name: index for index, name in enumerate(names)}
        classes = np.array([place[name] for name in self._classes], np.int64)
        ordered = _pair(groups[self._pairs >> _CLASS_BITS], classes[self._pairs & _CLASS_MASK])
        pairs, counts = _summed(ordered, self._counts)
        return keys, names, ClassCounts(pairs >> _CLASS_BITS, pairs & _CLASS_MASK, counts)


def _codes(texts: pa.DictionaryArray, known: dict[bytes, int]) -> Ints:
    """The number of each text, int64[n]; new ones get the next."""
    indices, names = texts.indices.to_numpy(), texts.dictionary.to_pylist()
    code = np.zeros(len(names), np.int64)
    for index in np.unique(indices).tolist():
        code[index] = known.setdefault(names[index], len(known))
    codes: Ints = code[indices]
    return codes


def _pair(groups: Ints, classes: Ints) -> Ints:
    return groups.astype(np.int64) << _CLASS_BITS | classes


def _summed(keys: Ints, numbers: Ints) -> tuple[Ints, Ints]:
    """The distinct keys, ascending, and the sum of the numbers of each."""
    distinct, index = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, index, numbers)
    return distinct, sums


def assign_stratified(counts: ClassCounts, splits: Splits) -> Ints:
    """The index of each group's split: int64[groups].

    Depends on the order of groups only where several assignments are equally good.

    Args:
        counts: Records by group and class.
        splits: The splits, with their fractions.

    >>> counts = ClassCounts(np.arange(6), np.array([0, 0, 0, 0, 1, 1]), np.full(6, 10))
    >>> assign_stratified(counts, Splits(train=0.5, test=0.5)).tolist()
    [0, 0, 1, 1, 0, 1]
    """
    problem = _Problem.of(counts, splits)
    num_codes = problem.num_splits ** min(problem.num_groups, 64)
    if num_codes * problem.num_classes <= _TRIED:
        return _best_of_all(problem)
    search = _Search(problem, _greedy(problem))
    search.improve()
    return search.assigned


@dataclasses.dataclass(frozen=True, eq=False)
class _Problem:
    """The parts that groups have of classes, in units of which a class has ``2**bits``."""

    num_splits: int
    num_groups: int
    num_classes: int
    ends: Ints
    """int64[splits + 1], cumulative fractions, in units of 2**-20."""
    starts: Ints
    """int64[groups + 1], the range of each group's entries in the following."""
    classes: Ints
    parts: Ints
    norms: Ints
    """int64[groups], the sum of each group's squared parts."""
    totals: Ints
    """int64[classes], about ``2**bits``."""
    covered: npt.NDArray[np.bool_]
    """Whether every split should have the class: bool[classes]."""

    @classmethod
    def of(cls, counts: ClassCounts, splits: Splits) -> _Problem:
        num_splits = len(splits.names)
        scarce = np.bincount(counts.classes) < num_splits
        # Class 0 is all scarce ones together.
        column = np.where(scarce, 0, np.cumsum(~scarce) - (not scarce.any()))
        num_classes = int(column.max()) + 1
        cells, num_records = _summed(
            counts.groups * num_classes + column[counts.classes], counts.num_records
        )
        groups, classes = np.divmod(cells, num_classes)
        of_class = np.zeros(num_classes, np.int64)
        np.add.at(of_class, classes, num_records)
        # Sums over classes of products of two parts, or of differences, fit into 63 bits.
        bits = (58 - num_classes.bit_length()) // 2
        # Division and rounding of floats are exact by the standard: the same on all machines.
        parts = np.rint(num_records / of_class[classes] * float(1 << bits)).astype(np.int64)
        totals = np.zeros(num_classes, np.int64)
        np.add.at(totals, classes, parts)
        starts = np.searchsorted(groups, np.arange(counts.num_groups + 1))
        return cls(
            num_splits=num_splits,
            num_groups=counts.num_groups,
            num_classes=num_classes,
            ends=np.array([0, *(int(end * (1 << _FRACTION_BITS)) for end in splits.boundaries())]),
            starts=starts,
            classes=classes,
            parts=parts,
            norms=np.add.reduceat(parts * parts, starts[:-1]),
            totals=totals,
            covered=np.bincount(classes, minlength=num_classes) >= num_splits,
        )

    def group(self, index: int) -> tuple[Ints, Ints]:
        """A group's classes and its parts of them."""
        entries = slice(self.starts[index], self.starts[index + 1])
        return self.classes[entries], self.parts[entries]

    def wanted(self, totals: Ints) -> Ints:
        """What splits should have of these totals of classes: int64[splits, classes]."""
        return np.diff(self.ends[:, None] * totals >> _FRACTION_BITS, axis=0)

    def dense(self) -> Ints:
        """The parts as int64[groups, classes]."""
        parts = np.zeros((self.num_groups, self.num_classes), np.int64)
        parts[np.repeat(np.arange(self.num_groups), np.diff(self.starts)), self.classes] = (
            self.parts
        )
        return parts

    @property
    def largest_first(self) -> list[int]:
        """The groups by their parts."""
        order: list[int] = np.argsort(-self.norms, kind="stable").tolist()
        return order


def _greedy(problem: _Problem) -> Ints:
    """Assigns one group after the other where squared deviations stay smallest."""
    assigned = np.zeros(problem.num_groups, np.int64)
    loads = np.zeros((problem.num_splits, problem.num_classes), np.int64)
    totals = np.zeros(problem.num_classes, np.int64)
    for group in problem.largest_first:
        classes, parts = problem.group(group)
        totals[classes] += parts
        # With the group in the totals but in no split: what the squares grow by is twice this,
        # and the same for all splits.
        over = loads[:, classes] - problem.wanted(totals[classes])
        split = int(np.argmin(over @ parts))
        loads[split, classes] += parts
        assigned[group] = split
    return assigned


class _Search:
    """Improves an assignment: fewer splits without a class first, then smaller deviations."""

    def __init__(self, problem: _Problem, assigned: Ints) -> None:
        self.assigned = assigned
        self._problem = problem
        splits = np.repeat(assigned, np.diff(problem.starts))
        self._over = -problem.wanted(problem.totals)
        self._members = np.zeros_like(self._over)
        np.add.at(self._over, (splits, problem.classes), problem.parts)
        np.add.at(self._members, (splits, problem.classes), 1)

    def improve(self) -> None:
        """Moves and swaps groups while that helps; every change is an improvement."""
        problem = self._problem
        num_cells = problem.num_groups**2 * problem.num_classes
        swaps = problem.num_groups <= _SWAPPED and num_cells <= _SWAPPED_CELLS
        dense = problem.dense() if swaps else None
        for _ in range(_ROUNDS):
            changed = []
            if dense is not None:
                changed += [self._swap(group, dense) for group in range(problem.num_groups)]
            movable = self._movable()
            # The smallest first: what they give to a split without a class changes shares least.
            smallest_first = reversed(problem.largest_first)
            changed += [self._move(group) for group in smallest_first if movable[group]]
            if not any(changed):
                break

    def _movable(self) -> npt.NDArray[np.bool_]:
        """The groups that a move to some split would help, if nothing else moved: bool[groups]."""
        problem = self._problem
        starts, classes = problem.starts[:-1], problem.classes
        here = np.repeat(self.assigned, np.diff(problem.starts))
        stay = np.add.reduceat(self._over[here, classes] * problem.parts, starts) - problem.norms
        helped = np.zeros(problem.num_groups, np.bool_)
        for over, members in zip(self._over, self._members, strict=True):
            go = np.add.reduceat(over[classes] * problem.parts, starts)
            lacks = ((members == 0) & problem.covered)[classes]
            helped |= (go < stay) | np.logical_or.reduceat(lacks, starts)
        return helped

    def _move(self, group: int) -> bool:
        problem, here = self._problem, int(self.assigned[group])
        classes, parts = problem.group(group)
        covered = problem.covered[classes]
        members = self._members[:, classes]
        lost = int(((members[here] == 1) & covered).sum())
        lacking = lost - ((members == 0) & covered).sum(axis=1)
        over = self._over[:, classes] @ parts
        deviation = over - over[here] + problem.norms[group]
        lacking[here] = deviation[here] = 0
        there = int(np.lexsort((deviation, lacking))[0])
        if (lacking[there], deviation[there]) >= (0, 0):
            return False
        for split, sign in ((here, -1), (there, 1)):
            self._over[split, classes] += sign * parts
            self._members[split, classes] += sign
        self.assigned[group] = there
        return True

    def _swap(self, group: int, dense: Ints) -> bool:
        here, theirs = int(self.assigned[group]), self.assigned
        given = dense[group] - dense
        deviation = ((self._over[theirs] - self._over[here] + given) * given).sum(axis=1)
        has = (dense > 0).astype(np.int64)
        gained = has - has[group]
        before = self._without(self._members)
        after = self._without(self._members[here] + gained)
        after += self._without(self._members[theirs] - gained)
        lacking = after - before[here] - before[theirs]
        same = theirs == here
        lacking[same] = deviation[same] = 0
        other = int(np.lexsort((deviation, lacking))[0])
        if (lacking[other], deviation[other]) >= (0, 0):
            return False
        there = int(theirs[other])
        for split, sign in ((here, -1), (there, 1)):
            self._over[split] += sign * given[other]
            self._members[split] -= sign * gained[other]
        self.assigned[group], self.assigned[other] = there, here
        return True

    def _without(self, members: Ints) -> Ints:
        """How many classes are missing that every split should have; for each row."""
        missing: Ints = ((members == 0) & self._problem.covered).sum(axis=-1)
        return missing


def _best_of_all(problem: _Problem) -> Ints:
    """Compares all assignments; of equally good ones, takes the first."""
    dense, wanted = problem.dense(), problem.wanted(problem.totals)
    has = (dense > 0).astype(np.int64)
    num_codes = problem.num_splits**problem.num_groups
    powers = problem.num_splits ** np.arange(problem.num_groups - 1, -1, -1, dtype=np.int64)
    found: list[tuple[int, int, Ints]] = []
    for start in range(0, num_codes, _AT_ONCE):
        codes = np.arange(start, min(start + _AT_ONCE, num_codes))
        assigned = codes[:, None] // powers % problem.num_splits
        lacking = np.zeros(len(codes), np.int64)
        deviation = np.zeros(len(codes), np.int64)
        for split in range(problem.num_splits):
            inside = (assigned == split).astype(np.int64)
            deviation += ((inside @ dense - wanted[split]) ** 2).sum(axis=1)
            lacking += ((inside @ has == 0) & problem.covered).sum(axis=1)
        best = int(np.lexsort((codes, deviation, lacking))[0])
        found.append((int(lacking[best]), int(deviation[best]), assigned[best]))
    return min(found, key=lambda one: one[:2])[2]
