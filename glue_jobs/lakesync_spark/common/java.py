"""Java's classes, for what Spark's Python has no name for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class by its full name.

    ``spark._jvm.org.apache…`` would look up each part of the name in every jar.
    """
    # PySpark keeps it private; Glue runs classic Spark, where it exists.
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
    return JavaClass(name, gateway._gateway_client)  # noqa: SLF001


def java_items(collection: Any) -> list[Any]:
    """Return the items of a Java collection.

    A Python loop over it would end with a Java exception, which PySpark compares with every class
    of exception that it knows. Each comparison searches all jars for the class.
    """
    iterator = collection.iterator()
    items = []
    while iterator.hasNext():
        items.append(iterator.next())
    return items


def is_java_error(error: Exception, name: str) -> bool:
    java: Any = getattr(error, "java_exception", None)
    return java is not None and bool(java.getClass().getName() == name)
