"""Brings small batches into the lake itself, and starts runs of the Glue job for all others."""

from lakesync.runtime import materialise, wiring
from lakesync.runtime.materialise import materialise_handler
from lakesync.runtime.settings import MaterialiseSettings

settings = wiring.load(MaterialiseSettings)
handler = materialise_handler(
    materialise.glue_runs(settings),
    settings.runs_max,
    materialise.small_batches(settings),
)
