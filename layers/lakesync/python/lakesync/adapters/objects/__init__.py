"""Tables as objects of a bucket: JSON lines that anybody may read."""

from lakesync.adapters.objects.adapter import ObjectsDatabase as ObjectsDatabase
