import datetime
import pathlib
import shutil
import tempfile
import unittest

from tidegauge import pipeline, report, store

DATA = pathlib.Path(__file__).parents[1] / "data"
DAY = datetime.date(2026, 3, 29)


class Process(unittest.TestCase):
    def setUp(self):
        self.data = pathlib.Path(tempfile.mkdtemp()) / "data"
        shutil.copytree(DATA, self.data, ignore=shutil.ignore_patterns("results"))

    def test_north_mole(self):
        result = pipeline.process(self.data, 3, DAY)
        self.assertEqual(result.serials, ["TG-2210-A"])
        self.assertEqual([alert.level for alert in result.alerts], ["watch", "warning"])

    def test_result_is_saved_and_read_back(self):
        result = pipeline.process(self.data, 9, DAY)
        (loaded,) = store.load_day(self.data, DAY)
        self.assertEqual(report.summary(loaded), report.summary(result))

    def test_unsaved_result_leaves_no_file(self):
        pipeline.process(self.data, 9, DAY, save=False)
        self.assertFalse((self.data / "results").exists())

    def test_only_readings_of_the_day_count(self):
        result = pipeline.process(self.data, 3, DAY)
        self.assertEqual(result.hours[0].start.date(), DAY)


if __name__ == "__main__":
    unittest.main()
