"""Small builders for the tests."""

import datetime

from tidegauge.aggregate import Hour
from tidegauge.readings import Reading

UTC = datetime.timezone.utc


def at(hour, minute=0, day=29):
    return datetime.datetime(2026, 3, day, hour, minute, tzinfo=UTC)


def series(*levels, start=None, minutes=5):
    start = start or at(0)
    return [Reading(start + datetime.timedelta(minutes=minutes * n), level) for n, level in enumerate(levels)]


def hour(number, high, low=0.0):
    return Hour(at(number), 12, low, (low + high) / 2, high)
