"""Puts what the Glue jobs install into the lake's bucket, when the stack is made or changed."""

from lakesync.runtime import wiring
from lakesync.runtime.materialise import JobPackagesSettings, job_packages_handler, packages_folder

handler = job_packages_handler(wiring.load(JobPackagesSettings), packages_folder())
