"""Records and claims in, tables, plots and one page out. Never imports torch."""
