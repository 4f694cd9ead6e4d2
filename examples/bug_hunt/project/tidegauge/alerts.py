"""Flood alerts from hourly maxima, with hysteresis: an alert ends a fixed amount below the level that started it."""

import dataclasses
import datetime

LEVELS = ("watch", "warning", "flood")
HYSTERESIS_METRES = 0.15


@dataclasses.dataclass(frozen=True)
class Alert:
    """`level` was reached at `start`; `peak` is the highest hourly maximum until `end` (None: still active)."""

    level: str
    start: datetime.datetime
    end: datetime.datetime | None
    peak: float


class Tracker:
    """Follows one threshold through the hours."""

    def __init__(self, level, threshold):
        self.level, self.threshold = level, threshold
        self.start, self.peak = None, 0.0
        self.finished = []

    def feed(self, hour):
        if self.start is None:
            if hour.high >= self.threshold:
                self.start, self.peak = hour.start, hour.high
        elif hour.high < self.threshold - HYSTERESIS_METRES:
            self.finished.append(Alert(self.level, self.start, hour.start, self.peak))
            self.start = None
        else:
            self.peak = max(self.peak, hour.high)

    def alerts(self):
        active = [Alert(self.level, self.start, None, self.peak)] if self.start is not None else []
        return self.finished + active


def find(hours, thresholds):
    """Return the alerts of `hours`, lowest level first. `thresholds` maps a level's name to metres above chart datum."""
    unknown = set(thresholds) - set(LEVELS)
    if unknown:
        raise ValueError(f"unknown alert levels: {', '.join(sorted(unknown))}")
    found = []
    for level in LEVELS:
        if level in thresholds:
            tracker = Tracker(level, thresholds[level])
            for hour in hours:
                tracker.feed(hour)
            found += tracker.alerts()
    return found
