"""Records of finished runs: what is in one, how it is made, written, read and checked. Never imports torch."""

from timestepper.records.diverged import load_diverged, publish_diverged
from timestepper.records.files import RECORD, load_records, publish, read, read_records, write
from timestepper.records.making import commit, file_name, label, make, versions

__all__ = ["RECORD", "commit", "file_name", "label", "load_records", "make", "publish", "read", "read_records"]
__all__ += ["load_diverged", "publish_diverged", "versions", "write"]
