"""Checks on raw readings. A reading that fails is dropped and counted, never corrected."""

import collections
import dataclasses
import statistics

SPIKE_METRES = 0.60
"""A level further than this from the median of its neighbours is a spike."""
NEIGHBOURS = 3
FLAT_SAMPLES = 24
"""As many equal levels in a row (two hours) are a stuck sensor."""
RANGE_METRES = (-3.0, 9.0)


@dataclasses.dataclass
class Counts:
    range: int = 0
    spike: int = 0
    flat: int = 0
    flagged: int = 0

    @property
    def dropped(self):
        return self.range + self.spike + self.flat + self.flagged


def neighbours(readings, place):
    low, high = max(0, place - NEIGHBOURS), place + NEIGHBOURS + 1
    return [each.level for at, each in enumerate(readings[low:high], low) if at != place]


def is_spike(readings, place):
    """Whether the reading at `place` is far from the median of the three before and the three after it."""
    around = neighbours(readings, place)
    if len(around) < NEIGHBOURS:
        return False
    return abs(readings[place].level - statistics.median(around)) > SPIKE_METRES


def flat_places(readings):
    """Return the places of readings in runs of equal levels that are too long."""
    places, run = set(), collections.deque()
    for place, reading in enumerate(readings):
        if run and readings[run[-1]].level != reading.level:
            run.clear()
        run.append(place)
        if len(run) >= FLAT_SAMPLES:
            places.update(run)
    return places


def check(readings):
    """Return the good readings and the counts of those that were dropped."""
    counts, good = Counts(), []
    flat = flat_places(readings)
    for place, reading in enumerate(readings):
        low, high = RANGE_METRES
        if reading.flag.upper() in ("M", "E"):  # maintenance, error
            counts.flagged += 1
        elif not low <= reading.level <= high:
            counts.range += 1
        elif place in flat:
            counts.flat += 1
        elif is_spike(readings, place):
            counts.spike += 1
        else:
            good.append(reading)
    return good, counts
