"""Brings small batches into the lake itself, and starts runs of the Glue job for all others."""

from lakesync.runtime import wiring, wiring_materialise
from lakesync.runtime.materialise import materialise_handler
from lakesync.runtime.settings import MaterialiseSettings

settings = wiring.load(MaterialiseSettings)
handler = materialise_handler(
    wiring_materialise.glue_runs(settings),
    settings.runs_max,
    wiring_materialise.small_batches(settings),
)
