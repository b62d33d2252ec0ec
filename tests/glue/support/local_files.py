"""Local files without what Hadoop does beside: it starts `chmod` for each file and folder it makes.

That is 140 processes for a test, and a file of checksums beside each file. Nothing here relies on
permissions, and a lake on S3 has neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync_spark.common.java import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = "LocalFiles"
_JAVA = f"""
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class {_NAME} extends LocalFileSystem {{
    static class Raw extends RawLocalFileSystem {{
        public void setPermission(Path path, FsPermission permission) {{}}
    }}

    public {_NAME}() {{
        super(new Raw());
        setWriteChecksum(false);
        setVerifyChecksum(false);
    }}
}}
"""


def use_plain_files(spark: SparkSession) -> None:
    """Put another file system in the place of Hadoop's own, for this Java and all of its sessions.

    Hadoop keeps one for each scheme, whatever a configuration says later.
    """
    compiler = java_class(spark, "org.codehaus.janino.SimpleCompiler")()
    compiler.cook(_JAVA)
    own = spark.sparkContext._jsc.hadoopConfiguration()
    configuration = java_class(spark, "org.apache.hadoop.conf.Configuration")(own)
    configuration.setClassLoader(compiler.getClassLoader())
    configuration.set("fs.file.impl", _NAME)
    systems = java_class(spark, "org.apache.hadoop.fs.FileSystem")
    systems.closeAll()
    made = systems.get(java_class(spark, "java.net.URI")("file:///"), configuration)
    assert made.getClass().getName() == _NAME
