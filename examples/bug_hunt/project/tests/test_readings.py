import pathlib
import tempfile
import unittest

from tests.helpers import at
from tidegauge import readings


def written(text):
    file = pathlib.Path(tempfile.mkdtemp()) / "station.csv"
    file.write_text(text)
    return file


class ParseTime(unittest.TestCase):
    def test_utc(self):
        self.assertEqual(readings.parse_time("2026-03-29T04:05:00Z"), at(4, 5))

    def test_offset_becomes_utc(self):
        self.assertEqual(readings.parse_time("2026-03-29T06:05:00+02:00"), at(4, 5))

    def test_time_without_zone_is_refused(self):
        with self.assertRaisesRegex(ValueError, "without a zone"):
            readings.parse_time("2026-03-29T04:05:00")


class ReadFile(unittest.TestCase):
    def test_rows_are_sorted_by_time(self):
        file = written("time,level,flag\n2026-03-29T04:05:00Z,2.0,\n2026-03-29T04:00:00Z,1.0,\n")
        found, skipped = readings.read_file(file)
        self.assertEqual([each.level for each in found], [1.0, 2.0])
        self.assertEqual(skipped, 0)

    def test_later_row_with_the_same_time_wins(self):
        file = written("time,level\n2026-03-29T04:00:00Z,1.0\n2026-03-29T04:00:00Z,1.5\n")
        found, _ = readings.read_file(file)
        self.assertEqual([each.level for each in found], [1.5])

    def test_bad_rows_are_skipped_and_counted(self):
        file = written("time,level\n2026-03-29T04:0#:00Z,1.0\n2026-03-29T04:05:00Z,\n2026-03-29T04:10:00Z,2.0\n")
        found, skipped = readings.read_file(file)
        self.assertEqual((len(found), skipped), (1, 2))

    def test_missing_header_is_an_error(self):
        with self.assertRaisesRegex(readings.BadRow, "expected a header"):
            readings.read_file(written("2026-03-29T04:00:00Z,1.0\n"))


if __name__ == "__main__":
    unittest.main()
