import pathlib
import tempfile
import unittest

from tests.helpers import at, series
from tidegauge import calibration

TABLE = """station,valid_from,serial,offset,note
5,2024-01-10,AA-1,0.100,installed
5,2025-06-01,AA-2,0.250,replaced
8,2024-01-10,BB-1,-0.050,installed
"""


def table(text=TABLE):
    file = pathlib.Path(tempfile.mkdtemp()) / "calibration.csv"
    file.write_text(text)
    return calibration.load(file)


class Applicable(unittest.TestCase):
    def test_latest_entry_before_the_time_applies(self):
        self.assertEqual(calibration.applicable(table(), 5, at(4)).serial, "AA-2")

    def test_entry_applies_from_its_first_day(self):
        import datetime

        first = datetime.datetime(2025, 6, 1, tzinfo=datetime.timezone.utc)
        self.assertEqual(calibration.applicable(table(), 5, first).serial, "AA-2")
        self.assertEqual(calibration.applicable(table(), 5, first - datetime.timedelta(seconds=1)).serial, "AA-1")

    def test_order_of_rows_does_not_matter(self):
        header, *rows = TABLE.splitlines()
        shuffled = "\n".join([header, *reversed(rows)]) + "\n"
        self.assertEqual(calibration.applicable(table(shuffled), 5, at(4)).serial, "AA-2")

    def test_station_without_calibration(self):
        with self.assertRaisesRegex(calibration.NoCalibration, "station 6"):
            calibration.applicable(table(), 6, at(4))


class Apply(unittest.TestCase):
    def test_offset_is_added(self):
        levels, serials = calibration.apply(series(2.0, 3.0), table(), 8)
        self.assertEqual([round(level, 3) for _, level in levels], [1.95, 2.95])
        self.assertEqual(serials, ["BB-1"])


if __name__ == "__main__":
    unittest.main()
