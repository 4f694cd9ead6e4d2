"""The stations: name, local time zone, thresholds."""

import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class Station:
    number: int
    name: str
    zone: str
    thresholds: dict
    file: str


class UnknownStation(LookupError):
    """There is no station with that number."""


def load(path):
    with open(path) as file:
        rows = json.load(file)["stations"]
    return {
        row["number"]: Station(row["number"], row["name"], row["zone"], row["thresholds"], row.get("file", "station{number}.csv"))
        for row in rows
    }


def find(stations, number):
    if number not in stations:
        raise UnknownStation(f"no station {number}; known: {', '.join(map(str, sorted(stations)))}")
    return stations[number]
