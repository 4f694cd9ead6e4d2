"""One station's day from its file to hourly values and alerts."""

import dataclasses
import datetime

from . import aggregate, alerts, calibration, clock, quality, readings, stations, store


@dataclasses.dataclass(frozen=True)
class Result:
    station: int
    name: str
    zone: str
    day: datetime.date
    used: int
    dropped: int
    skipped: int
    serials: list
    hours: list
    alerts: list

    @classmethod
    def from_plain(cls, row):
        time = datetime.datetime.fromisoformat
        hours = [aggregate.Hour(time(each["start"]), *(each[name] for name in ("samples", "low", "mean", "high"))) for each in row["hours"]]
        found = [
            alerts.Alert(each["level"], time(each["start"]), time(each["end"]) if each["end"] else None, each["peak"])
            for each in row["alerts"]
        ]
        return cls(**{**row, "day": datetime.date.fromisoformat(row["day"]), "hours": hours, "alerts": found})


def of_day(found, day):
    start, end = clock.day_bounds(day)
    return [reading for reading in found if start <= reading.time < end]


def process(data, number, day, *, save=True):
    """Process one day of a station and return its Result."""
    station = stations.find(stations.load(data / "stations.json"), number)
    raw, skipped = readings.read_file(data / station.file.format(number=number))
    good, counts = quality.check(of_day(raw, day))
    table = calibration.load(data / "calibration.csv")
    levels, serials = calibration.apply(good, table, number)
    hours = aggregate.hourly(levels)
    result = Result(
        number, station.name, station.zone, day, len(good), counts.dropped, skipped, serials, hours,
        alerts.find(hours, station.thresholds),
    )
    if save:
        store.save(data, result)
    return result
