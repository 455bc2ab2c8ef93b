"""Reports: what runs have shown, as one page, a picture and tables."""

from undrift.experiments.report.making import summary
from undrift.experiments.report.page import write_report
from undrift.experiments.report.summary import Row, Summary

__all__ = ["Row", "Summary", "summary", "write_report"]
