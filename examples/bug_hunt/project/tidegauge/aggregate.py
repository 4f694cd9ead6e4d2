"""Hourly values in UTC."""

import dataclasses
import datetime

MINIMUM_SAMPLES = 6
"""An hour with fewer good readings than this has no value."""


@dataclasses.dataclass(frozen=True)
class Hour:
    start: datetime.datetime
    samples: int
    low: float
    mean: float
    high: float


def hour_of(time):
    return time.replace(minute=0, second=0, microsecond=0)


def hourly(levels):
    """Return the hours of `(time, level)` pairs in order; hours with too few samples are left out."""
    buckets = {}
    for time, level in levels:
        buckets.setdefault(hour_of(time), []).append(level)
    return [
        Hour(start, len(found), min(found), sum(found) / len(found), max(found))
        for start, found in sorted(buckets.items())
        if len(found) >= MINIMUM_SAMPLES
    ]
