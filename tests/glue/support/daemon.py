"""Spark's Python daemon, without the zip files that Spark puts on the path of its workers.

At the beginning of each task, a worker forgets what it knows of the places on its path, and Python
then reads the list of files of each zip again: nine tenths of the time of the workers. All that is
in those zips is found in the folders behind them.
"""

from __future__ import annotations

import runpy
import sys

sys.path[:] = [place for place in sys.path if not place.endswith((".zip", ".jar"))]
sys.path_importer_cache.clear()
runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
