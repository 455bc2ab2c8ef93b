"""Reports: what runs have shown, as one page, a picture and tables."""

from undrift.report.making import summary
from undrift.report.page import write_report
from undrift.report.summary import Row, Summary

__all__ = ["Row", "Summary", "summary", "write_report"]
