"""The command line: `python3 -m tidegauge`."""

import argparse
import datetime
import pathlib
import sys

from . import pipeline, report, store


def main(argv=None):
    parser = argparse.ArgumentParser(prog="tidegauge")
    parser.add_argument("--data", default="data", type=pathlib.Path)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="process one day of one station")
    run.add_argument("--day", required=True, type=datetime.date.fromisoformat)
    run.add_argument("--station", required=True, type=int)
    show = commands.add_parser("report", help="print hourly maxima and alerts of a day")
    show.add_argument("--day", required=True, type=datetime.date.fromisoformat)
    arguments = parser.parse_args(argv)
    if arguments.command == "run":
        result = pipeline.process(arguments.data, arguments.station, arguments.day)
        print(report.summary(result))
        return 0
    for result in store.load_day(arguments.data, arguments.day):
        print(report.summary(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
