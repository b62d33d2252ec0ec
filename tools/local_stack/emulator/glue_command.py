"""What Glue does with a job's arguments: one command and its environment. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ICEBERG_CATALOGUE = re.compile(
    r"^spark\.sql\.catalog\.(\w+)=org\.apache\.iceberg\.spark\.Spark(?:Session)?Catalog$"
)
# Short runs on few cores: one collector thread, and the quick compiler only.
_DRIVER_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


@dataclass(frozen=True)
class Credentials:
    """The temporary credentials of the job's role."""

    access_key: str
    secret_key: str
    session_token: str = ""


@dataclass(frozen=True)
class Machine:
    """What a run finds around it: programs, jars, and where AWS is."""

    python: Path
    spark_home: Path
    java_home: Path
    spark_jars: Sequence[Path]
    iceberg_jars: Sequence[Path]
    endpoint: str
    region: str
    cores: int = 2
    java_options: Sequence[str] = ()
    packages: Sequence[Path] = ()


@dataclass(frozen=True)
class Submission:
    """A job's script, its merged arguments, and the files of `--extra-py-files` on this disk."""

    script: Path
    arguments: Mapping[str, str]
    folder: Path
    python_files: Sequence[Path] = field(default=())


def command(submission: Submission, machine: Machine) -> list[str]:
    """The command of a run: the script in a Python that starts Spark when it asks for a session.

    Not `spark-submit script`, which mixes the script's errors into its output.
    """
    return [
        str(machine.python),
        str(submission.script),
        # Glue hands its own special arguments on too: a script must read those that it knows.
        *(word for pair in submission.arguments.items() for word in pair),
    ]


def submit_arguments(submission: Submission, machine: Machine) -> list[str]:
    """What Spark is started with, as spark-submit would get it."""
    settings = [
        *cluster_settings(submission, machine),
        *chained_settings(submission.arguments.get("--conf", "")),
    ]
    settings += endpoint_settings(settings, machine.endpoint)
    return [
        "--driver-java-options", driver_options(machine),
        "--driver-class-path", class_path(submission.arguments, machine),
        *(word for setting in settings for word in ("--conf", setting)),
        "pyspark-shell",
    ]  # fmt: skip


def cluster_settings(submission: Submission, machine: Machine) -> list[str]:
    """What a cluster as small as this machine sets before the job's own settings."""
    return [
        f"spark.master=local[{machine.cores}]",
        f"spark.default.parallelism={machine.cores}",
        f"spark.sql.shuffle.partitions={2 * machine.cores}",
        "spark.driver.memory=2g",
        "spark.ui.enabled=false",
        "spark.sql.ui.explainMode=simple",  # each plan is written out for those pages all the same
        "spark.ui.showConsoleProgress=false",
        f"spark.sql.warehouse.dir={submission.folder / 'warehouse'}",
    ]


def chained_settings(value: str) -> list[str]:
    """The settings in `--conf`, which is one argument: `a=1 --conf b=2 --conf c=3`."""
    return [word for word in shlex.split(value) if word != "--conf"]


def endpoint_settings(settings: Sequence[str], endpoint: str) -> list[str]:
    """Where S3 and the Glue catalogue are: on AWS nobody says it, here only this function does."""
    catalogues = [m[1] for setting in settings if (m := _ICEBERG_CATALOGUE.match(setting))]
    return [
        "spark.hadoop.fs.s3.impl=org.apache.hadoop.fs.s3a.S3AFileSystem",
        f"spark.hadoop.fs.s3a.endpoint={endpoint}",
        "spark.hadoop.fs.s3a.path.style.access=true",
        (
            "spark.hadoop.fs.s3a.aws.credentials.provider="
            "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"
        ),
        *(
            f"spark.sql.catalog.{name}.{setting}"
            for name in catalogues
            for setting in (
                f"s3.endpoint={endpoint}",
                "s3.path-style-access=true",
                f"glue.endpoint={endpoint}",
            )
        ),
    ]


def driver_options(machine: Machine) -> str:
    """The Java options of the driver, which is the whole cluster here."""
    logs = f"-Dlog4j2.configurationFile=file:{_LOG_SETTINGS}"
    return " ".join([logs, *_DRIVER_OPTIONS, *machine.java_options])


def class_path(arguments: Mapping[str, str], machine: Machine) -> str:
    """Jars in place before the script starts: S3 always, Iceberg when the job asks for it."""
    formats = arguments.get("--datalake-formats", "").split(",")
    jars = [*machine.spark_jars, *(machine.iceberg_jars if "iceberg" in formats else ())]
    return ":".join(str(jar) for jar in jars)


def environment(
    submission: Submission, machine: Machine, credentials: Credentials
) -> dict[str, str]:
    """The environment of a run: nothing of the emulator's own, as nothing of yours is in Glue."""
    token = {"AWS_SESSION_TOKEN": credentials.session_token} if credentials.session_token else {}
    return {
        "PATH": f"{machine.python.parent}:{machine.java_home / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(submission.folder),
        "TMPDIR": str(submission.folder),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": ":".join(str(p) for p in python_path(submission.python_files, machine)),
        "PYSPARK_PYTHON": str(machine.python),
        "PYSPARK_SUBMIT_ARGS": shlex.join(submit_arguments(submission, machine)),
        "SPARK_HOME": str(machine.spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(submission.folder / "spark"),
        "JAVA_HOME": str(machine.java_home),
        "AWS_ENDPOINT_URL": machine.endpoint,
        "AWS_REGION": machine.region,
        "AWS_DEFAULT_REGION": machine.region,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ACCESS_KEY_ID": credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
        **token,
    }


def python_path(files: Sequence[Path], machine: Machine) -> list[Path]:
    """Modules are found in their folder; a zip or a wheel is itself a place to import from.

    A Spark that is not among the Python's own packages is found before the one that is.
    """
    places = [file.parent if file.suffix == ".py" else file for file in files]
    return list(dict.fromkeys([*places, *machine.packages]))


def distribution_name(requirement: str) -> str:
    """The normalised name in one entry of `--additional-python-modules`."""
    name = re.split(r"[\s\[=<>!~;@]", requirement.strip(), maxsplit=1)[0]
    return re.sub(r"[-_.]+", "_", name).lower()
