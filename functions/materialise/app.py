"""Starts runs of the Glue job when batches are announced, as many as what waits is worth."""

from lakesync.runtime import wiring, wiring_materialise
from lakesync.runtime.materialise import materialise_handler
from lakesync.runtime.settings import MaterialiseSettings

settings = wiring.load(MaterialiseSettings)
handler = materialise_handler(wiring_materialise.glue_runs(settings), settings.runs_max)
