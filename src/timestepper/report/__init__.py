"""Records and claims in, tables, plots and one page out. Never imports torch."""

from timestepper.report.claim_files import load_claims
from timestepper.report.page import Computed, write_page
from timestepper.report.records import load_records, read_records
from timestepper.report.results import Pending

__all__ = ["Computed", "Pending", "load_claims", "load_records", "read_records", "write_page"]
